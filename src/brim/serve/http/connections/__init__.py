"""Clients' connections: how many there may be, what may come over one, and how long it may take."""
