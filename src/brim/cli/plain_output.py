"""Output for terminals and pipes whose encoding lacks characters that Brim draws with.

`PYTHONIOENCODING=cp1252`, `LANG=C` and older consoles cannot write a block or an arrow: each becomes a plain character
of the same width, so that columns stay where they are, and nothing ends in an error of encoding.
"""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

_HANDLER = "brim-plain"
_PLAIN = {
    **dict.fromkeys("█▓▇▆▅", "#"),
    **dict.fromkeys("▒▄▃", "="),
    **dict.fromkeys("░▂▁·•", "."),
    **dict.fromkeys("▶→▸›", ">"),
    **dict.fromkeys("◀←‹", "<"),
    **dict.fromkeys("┃│┆", "|"),
    **dict.fromkeys("─━╸╺╴╶–—−", "-"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
    **dict.fromkeys("✓✔", "v"),
    **dict.fromkeys("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "*"),  # a spinner
    "×": "x",
    "…": ".",
    "≤": "<",
    "≥": ">",
    "≈": "~",
    "\N{NO-BREAK SPACE}": " ",
}


def write_plainly_where_needed() -> None:
    """From now on, standard output and errors replace what their encoding cannot write."""
    codecs.register_error(_HANDLER, _replaced)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and codecs.lookup(stream.encoding).name != "utf-8":
            stream.reconfigure(errors=_HANDLER)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(character, "?") for character in error.object[error.start : error.end]), error.end
