"""Attention over paged keys and values: what a step calls, and the backends that do it."""
