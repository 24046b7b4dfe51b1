"""The OpenAPI document of a server: what it takes and what it gives, from the tables that requests are checked by.

words.py      small schemas that others are made of
asked.py      the bodies of requests
answered.py   the bodies of answers
document.py   the endpoints
"""
