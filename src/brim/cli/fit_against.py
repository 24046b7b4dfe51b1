"""`brim fit --against FILE`: a check for CI that an upgrade does not cost KV tokens."""

from __future__ import annotations

import argparse
import json
import sys

from brim.errors import InvalidRequest

FELL = 1
_LARGEST_REPORT = 16 << 20


def read_earlier(options: argparse.Namespace) -> int | None:
    """The KV tokens of the report that was named, read before anything is started; None where none was."""
    path = options.against
    if not 0 <= options.allowed_drop < 100:
        raise InvalidRequest(f"allowed-drop is {options.allowed_drop:g}; it must be from 0 to below 100 percent")
    if path is None:
        return None
    try:
        if path.stat().st_size > _LARGEST_REPORT:
            raise ValueError("it is too large for a report")
        tokens = json.loads(path.read_text(encoding="utf-8"))["kv_tokens"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(
            f"against '{path}': not a report of brim fit ({type(error).__name__}: {str(error)[:80]}); write one with "
            "brim fit … --json"
        ) from None
    if not isinstance(tokens, int) or isinstance(tokens, bool) or tokens < 1:
        raise InvalidRequest(f"against '{path}': kv_tokens is {tokens!r}; it must be a count of at least 1")
    return tokens


def compared(tokens: int, earlier: int | None, options: argparse.Namespace) -> int:
    """The exit code, with a line on standard error."""
    if earlier is None:
        return 0
    percent = 100 * (tokens - earlier) / earlier
    fell = tokens < earlier * (1 - options.allowed_drop / 100)
    said = f"{earlier:,} KV tokens before, {tokens:,} now ({percent:+.1f} %)"
    verdict = f"more than the {options.allowed_drop:g} % that are allowed" if fell else "within what is allowed"
    print(f"brim fit: {said}: {verdict}", file=sys.stderr)
    return FELL if fell else 0
