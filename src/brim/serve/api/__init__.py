"""The endpoints that generate, each from a body to the events of its answer.

answering.py     the way of every request: read, let in, prepared, submitted, streamed
chat.py          /v1/chat/completions, and what all chats share
completions.py   /v1/completions
messages.py      /v1/messages
responses.py     /v1/responses
"""
