"""What a client gets: OpenAI's objects."""
