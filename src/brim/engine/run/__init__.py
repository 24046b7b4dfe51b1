"""A scheduled step on the device: packed, launched, sampled, read back."""
