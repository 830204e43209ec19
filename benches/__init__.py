"""Measurements, each a table with what bounds it: `make bench-NAME`."""
