"""`brim completion`: the commands and their options, for the completion of a shell."""

from brim.cli.completion.command import add_command

__all__ = ["add_command"]
