"""Servers and machines seen from outside: for `brim top`, and for the recordings of `brim watch`.

exposition.py  the text of `/metrics` as samples
engines.py     samples of Brim, vLLM, SGLang and TGI as the same figures
history.py     figures of several moments as rates and percentiles
asking.py      one bounded question over HTTP
server.py      a server: what it is, and how it is now
listening.py   which process of this machine listens at an address
watched.py     several servers and the machine at one moment
machine.py     the GPUs of this machine, who holds what of them, leases and recordings
"""
