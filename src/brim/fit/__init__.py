"""Sizes the KV cache by measurement, and proves the size before the first request."""
