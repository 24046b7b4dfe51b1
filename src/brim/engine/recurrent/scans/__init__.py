"""Recurrences over many tokens at once, as matrix products: faster than the reference code of `transformers`."""
