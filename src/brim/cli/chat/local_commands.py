"""What a conversation with an engine of this process can do besides talking."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brim.cli.chat.commands import ChatCommand, with_common
from brim.cli.chat.local import LocalChat, tell
from brim.errors import InvalidRequest
from brim.units import format_bytes

_SHOWN = 48  # characters of a turn


def _usage(talk: LocalChat, _: str) -> None:
    usage = talk.chat.usage
    print(f"{'':4} {'':9} {'tokens':>7} {'KV':>10}")
    if usage.opening_tokens:
        print(f"{'':4} {'opening':9} {usage.opening_tokens:>7}")
    for number, (turn, used) in enumerate(zip(talk.chat.turns, usage.turns, strict=True)):
        text = " ".join(turn.content.split())
        shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 1]}…"
        pin = "pinned " if used.pinned else ""
        print(f"{number:>4} {used.role:9} {used.tokens:>7} {format_bytes(used.bytes):>10}  {pin}{shown}")
    rolling = talk.chat.rolling
    print(
        f"{'':4} {'all':9} {usage.tokens:>7} {format_bytes(usage.bytes):>10}  the oldest go at {rolling.threshold:,} "
        f"tokens, down to {rolling.low_water:,}"
    )


def _usage_entry(talk: LocalChat, _: str) -> dict[str, Any]:
    return asdict(talk.chat.usage)


def _number(text: str) -> int:
    """The number of a turn; the last one where nothing is said."""
    try:
        return int(text) if text else -1
    except ValueError:
        raise InvalidRequest(f"'{text[:40]}' is not the number of a turn; /usage lists them") from None


def _pin(talk: LocalChat, argument: str) -> None:
    talk.chat.pin(_number(argument))
    tell("the exchange of this turn stays")


def _unpin(talk: LocalChat, argument: str) -> None:
    talk.chat.pin(_number(argument), pinned=False)
    tell("the exchange of this turn may go")


def _save(talk: LocalChat, argument: str) -> None:
    talk.chat.save(Path(argument).expanduser())
    tell(f"saved to {argument}")


def _load(talk: LocalChat, argument: str) -> None:
    talk.load(Path(argument).expanduser())
    tell(f"{len(talk.chat.turns)} turns loaded")


def _image(talk: LocalChat, argument: str) -> None:
    talk.images.append(_checked(argument, "image", talk.chat.engine.image_tokens))


def _audio(talk: LocalChat, argument: str) -> None:
    talk.audios.append(_checked(argument, "audio", talk.chat.engine.audio_tokens))


def _checked(argument: str, kind: str, tokens_of: Callable[[str], int]) -> Path:
    """A file of the next turn; a model that takes none, or cannot read it, says so now."""
    path = Path(argument).expanduser()
    if not path.is_file():
        raise InvalidRequest(f"{kind} {argument}: there is no such file")
    tokens_of(str(path))
    tell(f"{path.name} goes with the next turn")
    return path


COMMANDS = with_common(
    {
        "/usage": ChatCommand("", "tokens and bytes of every turn", _usage, _usage_entry),
        "/pin": ChatCommand("[TURN]", "keep the exchange of a turn (the last one), whatever is dropped", _pin),
        "/unpin": ChatCommand("[TURN]", "let it go again", _unpin),
        "/image": ChatCommand("FILE", "show an image with the next turn", _image),
        "/audio": ChatCommand("FILE", "play a WAV file to it with the next turn", _audio),
        "/save": ChatCommand("FILE", "write the conversation to a file", _save),
        "/load": ChatCommand("FILE", "go on with one that was saved", _load),
    }
)
