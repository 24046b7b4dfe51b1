"""What a client wrote: JSON in, checked records out. Every wrong or unknown field is refused by its name."""
