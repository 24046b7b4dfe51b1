"""Quantised weights: how a config says so, one file per tool that writes such checkpoints, and how they are stored."""
