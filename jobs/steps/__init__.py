"""The step store: raw lines in the open tail, sealed columnar blocks, and levels for charts."""
