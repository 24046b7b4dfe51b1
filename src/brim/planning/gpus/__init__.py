"""GPUs by name: the catalogue, and how people and drivers spell it."""
