"""One label for one text, with PaddleNLP's ERNIE for sequence classification."""
