"""Shared by every part that touches the device: the layout of a step, staging, allocator settings."""
