"""Readings of a device's memory: of a CUDA device, or of a budget on the CPU that counts and refuses like a device."""
