"""The model's own code on the meta device: every storage is recorded from allocation to free.

torch and transformers are imported inside this package's functions, never at the top of a module that others import.
"""
