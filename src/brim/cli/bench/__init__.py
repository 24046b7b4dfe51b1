"""`brim bench`: load for any OpenAI-compatible server."""

from brim.cli.bench.command import add_command

__all__ = ["add_command"]
