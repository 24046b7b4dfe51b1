"""A client of OpenAI-compatible servers, on the standard library alone: for load, for conversations, for watching."""
