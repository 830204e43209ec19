"""The text on a picture of one line, by convolutions, recurrent layers and CTC."""
