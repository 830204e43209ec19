"""Datasets: reading tables and JSON Lines, checking every row, measuring. Used by hosts and by the web side's commands;
knows neither Django nor Paddle.

parsing.py     files → rows, whatever is wrong with them; a look at the beginning of a file
checking.py    rows → findings, statistics, train.jsonl and dev.jsonl
places.py      which paths may be read
order.py       what a check is told, and how it answers
run.py         one check as a process with limits, on a host
from_paddlenlp.py  a dataset that PaddleNLP knows by name
task.py        what the host's worker does with a request to check
"""
