"""What somebody may have meant by a name that nobody knows."""

from __future__ import annotations

from collections.abc import Iterable

_LONGEST_SHOWN = 60


def suggestions(text: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Names that continue the text, then names the text continues, then names that look like it."""
    import difflib  # only for the message

    wanted = text.strip().lower()[:_LONGEST_SHOWN]
    known = list(names)
    if not wanted:
        return []
    continuing = sorted((name for name in known if name.startswith(wanted)), key=lambda name: (len(name), name))
    continued = sorted((name for name in known if len(name) > 1 and wanted.startswith(name)), key=len, reverse=True)
    alike = difflib.get_close_matches(wanted, known, n=count, cutoff=0.5)
    return list(dict.fromkeys([*continuing, *continued, *alike]))[:count]


def did_you_mean(names: list[str]) -> str:
    """The suggestions as part of a message; nothing where there are none."""
    return f"did you mean {', '.join(names)}? Or " if names else ""


def shown(text: str) -> str:
    """What the user wrote, on one line and shortened, for a message."""
    return " ".join(text.split())[:_LONGEST_SHOWN]
