"""Which torch and transformers a trace is of: read from package metadata, so that nothing heavy is imported."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version

FORMAT = 1  # of stored curves; raise it when the tracer's rules change


@cache
def traced_with() -> str:
    """ "torch 2.13.0, transformers 5.22.2, format 1"; empty where either is not installed."""
    try:
        return f"torch {version('torch')}, transformers {version('transformers')}, format {FORMAT}"
    except PackageNotFoundError:
        return ""
