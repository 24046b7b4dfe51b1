"""Tensor parallelism: processes that share a model and run in lockstep."""
