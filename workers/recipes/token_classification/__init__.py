"""A tag for each token of a text (names, places, parts of speech …) with ERNIE, BERT or another model of PaddleNLP."""
