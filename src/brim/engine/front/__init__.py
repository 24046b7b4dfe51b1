"""The front: requests checked at the door, tokens into text, answers as callers get them."""
