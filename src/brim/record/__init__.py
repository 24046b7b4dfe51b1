"""The black box of a server: its last steps and what happened, in a file that survives a SIGKILL. No torch in here."""
