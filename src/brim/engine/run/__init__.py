"""A planned step on the device: packed, launched, sampled, read back."""
