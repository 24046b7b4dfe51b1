"""The OpenAPI document of a server: what it takes, from the declarations that bodies are read by, and what it gives.

responses.py   the bodies of answers
document.py    the endpoints
"""
