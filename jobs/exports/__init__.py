"""Metrics of an attempt as files of other formats, made while they are read: memory stays flat, whatever the length of a run."""
