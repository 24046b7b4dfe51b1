"""Cost of detokenising on the host: milliseconds per step for many requests, and per token in the worst cases.

    python benchmarks/detokenise.py [--requests 256] [--steps 300] [--write]

A byte-level BPE tokenizer is trained on the spot (the pages in `docs/`), so that no files are needed. One core.

* plain: requests that each get a token in a step, with the library's streaming decoder (what `TextStream` uses), with
  the window that is used where a tokenizer is not one of the library's, and as it was before: the last tokens
  decoded twice through transformers
* stops: `MAX_STOPS` stop strings of `MAX_STOP_LENGTH` characters in one request, whose text always ends with all but
  the last character of each
* lone bytes: a run of tokens that never becomes a character, after 1,000 of them
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from brim.engine.front.decoding import WindowDecoder
from brim.engine.front.detokenise import TextStream
from brim.engine.requests.params import MAX_STOP_LENGTH, MAX_STOPS

BAR_MILLISECONDS = 0.6
ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "detokenise.json"
Push = Callable[[int], str]


def trained() -> tuple[Any, list[int], list[int]]:
    """A tokenizer, the tokens of a text, and its tokens for single bytes."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md")))
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=8000, special_tokens=["<s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([text], trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    return tokenizer, backend.encode(text).ids, [backend.token_to_id(letter) for letter in alphabet]


class DecodedTwice:
    """As it was before: the text of the last tokens, and theirs without the newest."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._settled = self._shown = 0
        self.text = ""

    def push(self, token: int) -> str:
        self._tokens.append(token)
        before = self._tokenizer.decode(self._tokens[self._settled : self._shown], skip_special_tokens=True)
        now = self._tokenizer.decode(self._tokens[self._settled :], skip_special_tokens=True)
        if len(now) > len(before) and not now.endswith("\N{REPLACEMENT CHARACTER}"):
            self.text += now[len(before) :]
            self._settled, self._shown = self._shown, len(self._tokens)
            return str(now[len(before) :])
        return ""


def step_milliseconds(make: Callable[[], Push], tokens: list[int], requests: int, steps: int) -> float:
    """The median over steps in which every request gets a token; each reads the text from another place on."""
    pushes = [make() for _ in range(requests)]
    times = []
    for step in range(steps):
        row = [tokens[(number * 997 + step) % len(tokens)] for number in range(requests)]
        began = time.perf_counter()
        for push, token in zip(pushes, row, strict=True):
            push(token)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


def stop_milliseconds(tokenizer: Any, steps: int) -> float:
    """A token of one request with as many and as long stop strings as may be."""
    stops = [f"{'a' * (MAX_STOP_LENGTH - 1 - number)}b" for number in range(MAX_STOPS)]
    stream = TextStream(tokenizer, stops)
    token = tokenizer.convert_tokens_to_ids("a")
    for _ in range(2 * MAX_STOP_LENGTH):
        stream.push(token)
    return step_milliseconds(lambda: stream.push, [token], 1, steps)


def lone_milliseconds(push: Push, token: int, steps: int) -> float:
    for _ in range(1000):
        push(token)
    times = []
    for _ in range(steps):  # the mean: some tokens settle many
        began = time.perf_counter()
        push(token)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.mean(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256, help="requests in a step (default 256)")
    parser.add_argument("--steps", type=int, default=300, help="steps to measure (default 300)")
    parser.add_argument("--write", action="store_true", help=f"also write the JSON to {RESULT.relative_to(ROOT)}")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    tokenizer, tokens, single = trained()
    requests, steps = arguments.requests, arguments.steps
    lone = next(token for token in single if "\N{REPLACEMENT CHARACTER}" in tokenizer.decode([token]))

    def window() -> Push:
        return WindowDecoder(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True))).push

    result: dict[str, Any] = {
        "requests": requests,
        "steps": steps,
        "vocabulary": len(tokenizer),
        "python": sys.version.split()[0],
        "bar_milliseconds": BAR_MILLISECONDS,
        "step_milliseconds": {
            "decoded twice": step_milliseconds(lambda: DecodedTwice(tokenizer).push, tokens, requests, steps),
            "window": step_milliseconds(window, tokens, requests, steps),
            "streaming": step_milliseconds(lambda: TextStream(tokenizer, ()).push, tokens, requests, steps),
            "streaming, two stops": step_milliseconds(
                lambda: TextStream(tokenizer, ("\n\nUser:", "</answer>")).push, tokens, requests, steps
            ),
        },
        "token_milliseconds": {
            f"{MAX_STOPS} stops of {MAX_STOP_LENGTH}": stop_milliseconds(tokenizer, 3 * steps),
            "lone bytes, decoded twice": lone_milliseconds(DecodedTwice(tokenizer).push, lone, steps),
            "lone bytes, streaming": lone_milliseconds(TextStream(tokenizer, ()).push, lone, steps),
        },
    }
    result["within_bar"] = result["step_milliseconds"]["streaming"] <= BAR_MILLISECONDS
    for kind, title in (("step", f"a step of {requests} requests"), ("token", "a token of one request")):
        print(f"milliseconds, {title}")
        for name, milliseconds in result[f"{kind}_milliseconds"].items():
            print(f"  {name:28}{milliseconds:9.4f}")
    print(f"the bar is {BAR_MILLISECONDS:g} ms a step: {'kept' if result['within_bar'] else 'MISSED'}")
    line = json.dumps(result)
    print(line)
    if arguments.write:
        RESULT.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
