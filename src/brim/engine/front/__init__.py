"""The front: requests validated, tokens into text, answers as callers get them."""
