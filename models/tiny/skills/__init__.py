"""What the model learns to do, a file for each group of skills. A skill makes one exchange from random numbers."""
