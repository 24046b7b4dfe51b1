"""How results are shown: words, tables, bars and pictures."""
