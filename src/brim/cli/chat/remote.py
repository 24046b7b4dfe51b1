"""`brim chat --url`: the same conversation in the terminal, answered by a server."""

from __future__ import annotations

import argparse
import asyncio
import base64
import mimetypes
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from brim.cli.chat.commands import ChatCommand, obey, with_common
from brim.cli.chat.local import tell
from brim.cli.chat.loop import converse
from brim.cli.chat.reading import reader
from brim.cli.engine_options import DEFAULT_MODEL
from brim.cli.serve import KEY_VARIABLE
from brim.client.address import parse_url
from brim.client.client import Client, Response
from brim.client.conversation import RemoteConversation, ServerReply
from brim.errors import InvalidRequest

_OF_THE_SERVER = ("kv_tokens", "rolling_threshold", "low_water", "load", "draft")


def run_remote(options: argparse.Namespace) -> int:
    """The command, with a server."""
    for name in _OF_THE_SERVER:
        if getattr(options, name) is not None:
            raise InvalidRequest(f"{name.replace('_', '-')}: with --url the server decides that; leave it out")
    key = options.api_key or os.environ.get(KEY_VARIABLE)
    with asyncio.Runner() as runner:
        client = Client(parse_url(options.url), key)
        model, context = runner.run(_model(client, options.model))
        chat = RemoteConversation(
            client, _sampling(options, model), system=options.system, rolls=options.strategy != "error"
        )
        talk = RemoteChat(chat, runner, context)
        converse(talk, reader(talk.gauge, list(COMMANDS)), options.as_json)
        client.close()
    return 0


async def _model(client: Client, wanted: str) -> tuple[str, int | None]:
    """The model's name on the server, and its context where that is told."""
    found: Response = await client.get("/v1/models")
    if found.status != 200:
        raise InvalidRequest(f"url {client.address}: it lists no models ({found.status}): {found.problem}")
    listed = {one.get("id"): one for one in (found.json() or {}).get("data") or ()}
    name = wanted if wanted in listed or wanted != DEFAULT_MODEL else next(iter(listed), wanted)
    if listed and name not in listed:
        raise InvalidRequest(f"model '{name}' is not on {client.address}; it has {', '.join(map(str, listed))}")
    return name, listed.get(name, {}).get("max_model_len")


def _sampling(options: argparse.Namespace, model: str) -> dict[str, Any]:
    wanted = {name: getattr(options, name) for name in ("max_tokens", "temperature", "top_p", "seed")}
    given = {name: value for name, value in wanted.items() if value is not None}
    return {"model": model, "temperature": 0.0, "top_p": 1.0, **given}


class RemoteChat:
    """A conversation with a server, in the terminal."""

    def __init__(self, chat: RemoteConversation, runner: asyncio.Runner, context: int | None) -> None:
        self.chat = chat
        self.media: list[dict[str, Any]] = []  # parts of the next turn
        self.last: ServerReply | None = None
        self._runner = runner
        self._context = context

    def obey(self, line: str, as_json: bool) -> dict[str, Any] | None:
        return obey(self, line, COMMANDS, as_json)

    def reply(self, text: str) -> dict[str, Any]:
        self.last = self._runner.run(self.chat.send(text, self._taken_media()))
        return asdict(self.last)

    def answer(self, text: str) -> None:
        self._show(self.chat.send(text, self._taken_media(), show=_print, dropped=_tell_dropped))

    def retry(self) -> None:
        self._show(self.chat.retry(show=_print, dropped=_tell_dropped))

    def reply_again(self) -> dict[str, Any]:
        self.last = self._runner.run(self.chat.retry())
        return asdict(self.last)

    def gauge(self) -> str:
        if self.last is None:
            return "nothing was said yet"
        tokens = self.last.prompt_tokens + self.last.completion_tokens
        context = f" of {self._context:,}" if self._context else ""
        return f"conversation {tokens:,}{context} tokens  ·  {self.last.reused_tokens:,} were found in the KV pool"

    def _show(self, answering: Any) -> None:
        """Print the pieces; an interrupt ends the answer, and keeps what there is of it."""
        try:
            self.last = self._runner.run(answering)
        except KeyboardInterrupt:
            print(flush=True)
            tell("stopped; what was said so far is kept")
            return
        print(flush=True)

    def _taken_media(self) -> list[dict[str, Any]]:
        media, self.media = self.media, []
        return media


def _print(piece: str) -> None:
    print(piece, end="", flush=True)


def _tell_dropped(turns: int, tokens: int) -> None:
    tell(f"{turns} turns ({tokens} tokens) were dropped to make room")


def _usage(talk: RemoteChat, _: str) -> None:
    print(talk.gauge())
    for number, turn in enumerate(talk.chat.turns):
        content = turn["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        print(f"{number:>4} {turn['role']:9} {' '.join(text.split())[:60]}")


def _usage_entry(talk: RemoteChat, _: str) -> dict[str, Any]:
    last = talk.last
    tokens = None if last is None else last.prompt_tokens + last.completion_tokens
    return {"tokens": tokens, "turns": [{"role": turn["role"]} for turn in talk.chat.turns]}


def _image(talk: RemoteChat, argument: str) -> None:
    _attach(talk, argument, "image", "an image, like photo.png")


def _audio(talk: RemoteChat, argument: str) -> None:
    _attach(talk, argument, "audio", "audio, like speech.wav")


def _attach(talk: RemoteChat, argument: str, kind: str, expected: str) -> None:
    """A file as a part of the next turn; the server says whether it can be read."""
    path = Path(argument).expanduser()
    form = mimetypes.guess_type(path.name)[0]
    if form is None or not form.startswith(f"{kind}/"):
        raise InvalidRequest(f"{kind} {argument}: its name is not that of {expected}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequest(f"{kind} {argument}: cannot be read ({error.strerror})") from None
    name = f"{kind}_url"
    talk.media.append({"type": name, name: {"url": f"data:{form};base64,{base64.b64encode(content).decode()}"}})
    tell(f"{path.name} goes with the next turn")


COMMANDS = with_common(
    {
        "/usage": ChatCommand("", "the turns, and the tokens of the last answer", _usage, _usage_entry),
        "/image": ChatCommand("FILE", "show an image with the next turn", _image),
        "/audio": ChatCommand("FILE", "play a WAV file to it with the next turn", _audio),
    }
)
