"""What every part that touches the device shares: the layout of a step, staging, how torch asks for memory."""
