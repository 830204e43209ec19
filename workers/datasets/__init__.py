"""Datasets: reading tables and JSON Lines, checking every row, measuring. Used by hosts and by the web side's commands;
knows neither Django nor Paddle.

parsing.py     files → rows, whatever is wrong with them, one by one or many at once
guess.py       whether the first rows look like numeric sequences, and how they would be read
checking.py    the entry: a function per kind of dataset
texts.py       rows of texts with labels → findings, statistics, splits
numbered.py    the same of texts with numbers
sequences.py   the same of numeric sequences
tagged.py      the same of tokens with a tag each
tagging.py     tags and the spans they make; how a text falls into tokens
archives.py    zip, tar, tar.gz and folders, read without unpacking them
layouts.py     which label or text belongs to which picture
pictures.py    pictures with labels or texts → findings, statistics, splits; needs Pillow
findings.py    what a check finds and makes
splits.py      train.jsonl and dev.jsonl, written once; rows from all over them
tokens.py      how many tokens a text has for training from scratch
places.py      which paths may be read
order.py       what a check is told, and how it answers
run.py         one check as a process with limits, on a host
from_paddlenlp.py  a dataset that PaddleNLP knows by name
task.py        what the host's worker does with a request to check
"""
