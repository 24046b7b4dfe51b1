"""Tensor parallelism: processes that share a model, and stay in step."""
