"""What was left open is solved for: the fullest device, and what is lowered before the answer is no."""
