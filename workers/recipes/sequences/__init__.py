"""A number, a label or the next value for each numeric sequence, with an LSTM or GRU."""
