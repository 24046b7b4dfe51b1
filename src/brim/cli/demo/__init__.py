"""`make demo`: the commands as one would use them from the shell, then a server with all that may happen to it."""
