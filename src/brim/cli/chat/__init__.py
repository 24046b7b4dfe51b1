"""`brim chat`: a conversation in the terminal."""

from brim.cli.chat.command import add_command

__all__ = ["add_command"]
