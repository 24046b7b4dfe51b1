"""Eyes on a device's memory: CUDA's, and a budget on the CPU that counts and refuses as a device does."""
