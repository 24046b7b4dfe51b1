"""A model from files or at random, and what its layers keep."""
