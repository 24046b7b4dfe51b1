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


def near(text: str, names: Iterable[str]) -> str | None:
    """The one name that a misspelt word looks most like; None where it looks like none."""
    import difflib  # only for the message

    plain = {_letters(name): name for name in names}
    wanted = _letters(text[:_LONGEST_SHOWN])
    found = [wanted] if wanted in plain else difflib.get_close_matches(wanted, plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def _letters(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def did_you_mean(names: list[str]) -> str:
    """The suggestions as part of a message; nothing where there are none."""
    return f"did you mean {', '.join(names)}? Or " if names else ""


def shown(text: str) -> str:
    """What the user wrote, on one line and shortened, for a message."""
    return " ".join(text.split())[:_LONGEST_SHOWN]
