"""What a server goes through in the demo: a conversation that rolls, a burst, an image, and an out-of-memory.

Everything is checked as it is shown: what is not as it must be ends the demo with exit code 1.
"""

from __future__ import annotations

import asyncio
import base64
import random
from typing import Any

from brim.bench.asking import ask_once
from brim.bench.bodies import CHAT, COMPLETIONS, png
from brim.bench.records import Ask, Ending, RequestOutcome
from brim.cli.demo.server import DemoServer, demo_server
from brim.client.client import Client
from brim.client.conversation import RemoteConversation
from brim.units import format_bytes

_CONTEXT, _ANSWER = 256, 24
_INJECTED = 240  # tokens of a prompt that runs out of memory: no turn of the conversation is as long
_PLACES = 8
_SIZES = f"--memory 512MiB --max-len {_CONTEXT} --max-seqs 4 --max-queue {_PLACES - 4} --batch-tokens 256 --scaling off"
_TEXT = f"{_SIZES} --inject-out-of-memory {_INJECTED}"
_VISION = "brim-tiny-vl --memory 512MiB --max-len 256 --max-seqs 2 --max-queue 2 --batch-tokens 256 --scaling off"
_TURNS = (
    "My name is Ada.",
    "What is my name?",
    "My favourite colour is green.",
    "What is 3 plus 4?",
    "What comes after Monday?",
    "Repeat: the quick brown fox jumps over the lazy dog.",
    "Count from one to five.",
    "What is 9 minus 2?",
    "What is my favourite colour?",
    "What comes after Friday?",
    "What is 2 plus 2?",
    "Repeat: a stitch in time saves nine.",
    "What comes after Sunday?",
    "What is 8 minus 5?",
)


class DemoFailed(Exception):
    """Something that the demo shows did not happen."""


def must(happened: bool, what: str) -> None:
    if not happened:
        raise DemoFailed(what)


def show_serving() -> int:
    """Run the story; the exit code."""
    try:
        asyncio.run(_story())
    except DemoFailed as problem:
        print(f"NOT AS IT MUST BE: {problem}")
        return 1
    return 0


def _title(text: str) -> None:
    print(f"\n\033[1m# {text}\033[0m", flush=True)


async def _story() -> None:
    _title("A server: the model in the package, on the CPU, within 512 MiB")
    with demo_server(_TEXT) as server:
        print(f"$ brim {server.command}")
        print(f"  ready after {await server.ready():.1f} s at {server.url}")
        with demo_server(_VISION) as seeing:  # it starts while the first one is busy
            await _conversation(server)
            await _burst(server)
            await _out_of_memory(server)
            await _ledger(server)
            await _image(seeing)
            must(seeing.stop() == 0, "the second server drains")
        must(server.stop() == 0, "the server drains and ends with exit code 0")
    print("  SIGTERM: drained, exit code 0")


async def _conversation(server: DemoServer) -> None:
    _title(f"A conversation outgrows its {_CONTEXT} tokens: the oldest turns go, and the answer says so")
    print(f"$ brim chat --url {server.url}")
    chat = RemoteConversation(server.client(), {"max_tokens": _ANSWER, "temperature": 0}, rolls=True)
    dropped = 0
    for turn in _TURNS:
        reply = await chat.send(turn)
        dropped += reply.evicted_turns
        if reply.evicted_turns:
            print(f"  [{reply.evicted_turns} turns ({reply.evicted_tokens} tokens) were dropped to make room]")
        print(f"> {turn}\n{reply.text}")
    must(dropped > 0, "the conversation rolls")


def _completion(tokens: int, answer: int, seed: int) -> tuple[Ask, dict[str, Any]]:
    numbers = random.Random(seed)
    prompt = [numbers.randrange(100, 400) for _ in range(tokens)]
    body = {"prompt": prompt, "max_tokens": answer, "ignore_eos": True, "stream": True, "temperature": 0}
    return Ask(tokens, answer), body | {"stream_options": {"include_usage": True}}


async def _asked(client: Client, tokens: int, answer: int, seed: int) -> RequestOutcome:
    ask, body = _completion(tokens, answer, seed)
    return await asyncio.create_task(ask_once(client, COMPLETIONS, body, ask, 0.0))


async def _burst(server: DemoServer) -> None:
    """More at once than there is room for; who is refused comes back when it was told to."""
    count = 2 * _PLACES
    _title(f"{count} requests at once, and room for {_PLACES}: the others are told when to come back")
    client, refusals = server.client(), []

    async def one(seed: int) -> RequestOutcome:
        while (found := await _asked(client, 24, _ANSWER, seed)).ending is Ending.REFUSED:
            refusals.append(found)
            await asyncio.sleep(found.retry_after)
        return found

    outcomes = await asyncio.gather(*(one(seed) for seed in range(count)))
    whole = sum(found.ending is Ending.ANSWERED and found.answer_tokens == _ANSWER for found in outcomes)
    waits = sorted({found.retry_after for found in refusals})
    told = ", ".join(f"{wait:g}" for wait in waits)
    print(f"  {len(refusals)} × 429 with Retry-After {told} s; {whole} of {count} answered in full")
    must(len(refusals) > 0, "a burst beyond the queue is refused with 429")
    must(whole == count, "nothing is lost")


async def _out_of_memory(server: DemoServer) -> None:
    _title(f"One of four requests runs out of memory (injected: a prompt of {_INJECTED} tokens)")
    client = server.client()
    others = [asyncio.create_task(_asked(client, 24, 2 * _ANSWER, seed)) for seed in (100, 101, 102)]
    failed = await _asked(client, _INJECTED, _ANSWER, 103)
    outcomes = [await other for other in others]
    print(f"  it: {failed.error}: {failed.said}")
    print(f"  the others: {', '.join(f'{found.ending}, {found.answer_tokens} tokens' for found in outcomes)}")
    health, memory = await server.tell("/health"), await server.tell("/v1/memory")
    print(f"  /health: {health['status']}: {health.get('reason', '')}")
    must(failed.ending is Ending.FAILED and "request_failed" in str(failed.error), "the request fails")
    must(all(found.ending is Ending.ANSWERED for found in outcomes), "it costs one request")
    must(memory["health"]["ended_requests"] == 1, "one request ended for lack of memory")


async def _ledger(server: DemoServer) -> None:
    _title("The ledger: /v1/memory")
    memory = await server.tell("/v1/memory")
    print(f"  {'':12} {'predicted':>12} {'measured':>12}")
    for item in memory["fit"]["items"]:
        sizes = (item.get("predicted_bytes"), item.get("measured_bytes"))
        print(f"  {item['name']:12} " + " ".join(f"{'—' if one is None else format_bytes(one):>12}" for one in sizes))
    kv, now = memory["kv"], memory["now"]
    print(
        f"  KV blocks: {kv['blocks_held']} held, {kv['blocks_cached']} cached, {kv['blocks_free']} free; "
        f"{format_bytes(now['total_bytes'] - now['free_bytes'])} of {format_bytes(now['total_bytes'])} used"
    )
    must(kv["blocks_held"] == 0, "no block is held when nobody is inside")
    must(now["free_bytes"] >= 0, "the budget is kept")


async def _image(server: DemoServer) -> None:
    _title("An image, to a tiny vision-language model with random weights")
    print(f"$ brim {server.command}")
    print(f"  ready {await server.ready():.1f} s after its start, which was beside all of the above")
    uri = f"data:image/png;base64,{base64.b64encode(png(112, bytes((200, 30, 30)))).decode()}"
    content = [{"type": "image_url", "image_url": {"url": uri}}, {"type": "text", "text": "What is it?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 8, "temperature": 0}
    with_image = await server.client().post(CHAT, body)
    without = await server.client().post(CHAT, body | {"messages": [{"role": "user", "content": "What is it?"}]})
    tokens = [found.json()["usage"]["prompt_tokens"] for found in (with_image, without)]
    seen = tokens[0] - tokens[1]
    print(f"  answered with {with_image.status}: {tokens[0]} tokens of prompt, {seen} of them the image")
    must(tokens[0] > tokens[1], "the image is seen")
