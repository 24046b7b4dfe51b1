"""A model from files or with random weights, and what its layers cache."""
