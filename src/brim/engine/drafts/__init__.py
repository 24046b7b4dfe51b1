"""Speculation: tokens are drafted, and the model's own step decides which of them stand."""
