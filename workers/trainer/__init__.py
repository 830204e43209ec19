"""The training engine: what every rank of an attempt runs. `loop.py` is the place to start reading."""
