"""Recurrences over many tokens at once, as matrix products: Brim's own forms of what `transformers` only has slowly."""
