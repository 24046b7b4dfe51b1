"""The model's own code, run on no device: storages are watched as they live and die.

torch and transformers are imported inside this package's functions, never at the top of a module that others import.
"""
