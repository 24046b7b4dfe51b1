"""`brim serve`: an OpenAI-compatible server around one engine.

asked/     what a client wrote, as checked records; raw JSON ends here
prepare/   templates, tokens, images and audio, in a process of their own
shape/     what a client gets: OpenAI's objects, and errors
http/      the endpoints
lifecycle.py    starting, ready, degraded, draining, failed
gate.py    how many requests may be inside
server.py  the process: socket, signals, start and drain
"""
