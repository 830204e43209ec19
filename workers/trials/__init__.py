"""Trying an exported model on a host: rows that somebody typed go in, predictions come out."""
