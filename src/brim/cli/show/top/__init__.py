"""What `brim top` shows.

brim_server.py  a server of Brim, by its `/v1/memory`
any_server.py   a server of any engine, by its metrics
machine.py      the GPUs of this machine, who holds what of them
whole.py        all of it, as text and as JSON
"""
