"""What a server can do, asked before the load begins: its model, its tokenizer, whether answers can be made long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brim.bench.bodies import CHAT, COMPLETIONS
from brim.bench.words import Count, Words, known_by_word, known_on_average
from brim.client.client import Client, Response
from brim.errors import InvalidRequest

_SECONDS = 120.0  # for the first answers: a server may still load something


@dataclass(frozen=True, slots=True)
class Abilities:
    """What was found out."""

    model: str | None
    words: Words
    ignores_end: bool  # it takes `ignore_eos`
    notes: tuple[str, ...]


async def find_model(client: Client) -> str | None:
    """The first model that the server lists; None where it lists none."""
    found = await client.get("/v1/models")
    if found.status == 401:
        raise InvalidRequest(f"api-key: {client.address} refused it; {found.problem}")
    if found.status != 200:
        return None
    try:
        return str(found.json()["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        return None


async def abilities(client: Client, model: str | None, chat: bool) -> Abilities:
    """Ask for an answer of one token, and for the costs of words."""
    prober = _Prober(client, model, chat)
    first = await prober.answer("hello", ignore_eos=True)
    ignores = first.status == 200
    notes = []
    if not ignores:
        first = await prober.answer("hello")
        notes.append("the server takes no ignore_eos: answers end where the model ends them")
    if first.status != 200:
        raise InvalidRequest(f"{client.address}{prober.path} does not answer ({first.status}): {first.problem}")
    count = await prober.tokenizer()
    if count is not None:
        words = await known_by_word(count)
    else:
        words = await known_on_average(prober.counted_by_answer)
        notes.append("the server has no /tokenize: prompts have about the tokens that were asked for")
    return Abilities(model, words, ignores, tuple(notes))


class _Prober:
    def __init__(self, client: Client, model: str | None, chat: bool) -> None:
        self._client = client
        self._model = {} if model is None else {"model": model}
        self._chat = chat
        self.path = CHAT if chat else COMPLETIONS

    def _said(self, text: str) -> dict[str, Any]:
        return {"messages": [{"role": "user", "content": text}]} if self._chat else {"prompt": text}

    async def answer(self, text: str, **options: Any) -> Response:
        """An answer of one token."""
        body = {**self._said(text), **self._model, "max_tokens": 1, **options}
        return await self._client.post(self.path, body, seconds=_SECONDS)

    async def counted_by_answer(self, text: str) -> int:
        found = (await self.answer(text)).json()
        try:
            return int(found["usage"]["prompt_tokens"])
        except (KeyError, TypeError, ValueError):
            raise InvalidRequest(f"{self._client.address}: its answers have no usage.prompt_tokens") from None

    async def tokenizer(self) -> Count | None:
        """How the server counts tokens; None where it has no endpoint for that."""
        found = await self._tokenized("hello")
        if found.status != 200 or not isinstance((found.json() or {}).get("count"), int):
            return None

        async def count(text: str) -> int:
            return int((await self._tokenized(text)).json()["count"])

        return count

    async def _tokenized(self, text: str) -> Response:
        return await self._client.post("/tokenize", {**self._said(text), **self._model}, seconds=_SECONDS)
