"""Attention over paged keys and values: what the model calls, and the backends."""
