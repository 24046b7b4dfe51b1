"""The serving engine: runs a model within the memory that was fitted for it."""
