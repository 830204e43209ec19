"""One number for one text, or for two, with ERNIE, BERT or another model of PaddleNLP for sequence classification."""
