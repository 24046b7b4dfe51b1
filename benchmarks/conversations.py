"""Many long conversations at once on a GPU: what rolling computes again, and whether memory stays flat.

    python benchmarks/conversations.py [--chats 32] [--turns 100] [--model llama-3.1-8b] [--out FILE] [--commit HASH]

The model has random weights in its real dimensions, and the vocabulary and template of `brim-tiny`: there is text to
apply a template to. Answers are drawn from whole words, so that their text has the same tokens again. A turn is
`--said` tokens of the user and `--answered` of the answer. Every tenth turn some of the answers are made again from the
turns that were kept, with nothing of them found in the pool: they may part only where two tokens are nearly as likely.
`--tiny` runs on the CPU with `brim-tiny`, to try this script.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

from stamp import stamp

from brim import Chat, Engine, EngineSettings, SamplingParams, fit_engine
from brim.engine.chat.chat import send_all
from brim.engine.chat.reply import Reply
from brim.model.packaged import packaged_folder
from brim.model.source import load_config

SYSTEM = "You are Ada. Answer in capitals."
FLAT_BYTES = 32 << 20  # by which two readings of the same state may differ
BAR_COMPUTED = 2.0  # tokens of prompts computed for each new one
WORDS = 16
SPACE = "Ġ"  # in the names of byte-level tokens
NEAR_TIE = 0.25  # of log-probabilities: other kernels round otherwise in bf16
CHECK_EVERY = 10  # turns
CHECKED = 8  # conversations


def whole_words(tokenizer: Any) -> dict[str, int]:
    """Words that are one token behind a space."""
    named = tokenizer.get_vocab().items()
    words = [(name[1:], token) for name, token in named if name[0] == SPACE and name[1:].isalpha()]
    return dict(sorted(words, key=lambda one: (-len(one[0]), one))[:WORDS])


class Talk:
    """All conversations, turn by turn, and what they cost."""

    def __init__(self, engine: Engine, probe: Any, options: argparse.Namespace) -> None:
        self.engine, self.probe, self.options = engine, probe, options
        self.chats = [Chat(engine, SYSTEM, rolling_threshold=options.threshold) for _ in range(options.chats)]
        self._draw = random.Random(0)
        self._words = whole_words(engine.tokenizer)
        bias = tuple((token, 100.0) for token in self._words.values())
        self.params = SamplingParams(max_tokens=options.answered, ignore_eos=True, logit_bias=bias, temperature=0)
        self.rows: list[dict[str, Any]] = []
        self.gaps: list[float] = []  # of answers that were made again; 0: the same

    def turn(self) -> None:
        texts = [" ".join(self._draw.choices(list(self._words), k=self.options.said)) for _ in self.chats]
        before = [chat.conversation for chat in self.chats]
        began = time.perf_counter()
        replies = send_all(self.chats, texts, self.params)
        spent = time.perf_counter() - began
        self.rows.append(
            {
                "seconds": spent,
                "prompt_tokens": sum(one.prompt_tokens for one in replies),
                "computed": sum(one.prompt_tokens - one.reused_tokens for one in replies),
                "evicted_turns": sum(one.evicted_turns for one in replies),
                "evicted_tokens": sum(one.evicted_tokens for one in replies),
                "kept_in_threshold": self._in_threshold(replies),
                "system_kept": all(chat.conversation.messages[0]["content"] == SYSTEM for chat in self.chats),
                "told": all(
                    len(now.turns) == len(old.turns) + 2 - one.evicted_turns
                    for now, old, one in zip((chat.conversation for chat in self.chats), before, replies, strict=True)
                ),
                "allocated_bytes": self.probe.reading().allocated_bytes,
                "blocks_held": self.engine.figures.blocks_held,
            }
        )

        if len(self.rows) % CHECK_EVERY == 0:
            self.gaps += [self._gap(*one) for one in list(zip(self.chats, replies, strict=True))[:CHECKED]]

    def _gap(self, chat: Chat, reply: Reply) -> float:
        """How much likelier its token was where the answer of a fresh prefill parts from this one; inf: much."""
        asked = chat.conversation.until(len(chat.turns) - 1)
        params = replace(self.params, logprobs=2)
        name = self.engine.submit(chat._prompts.prompt(asked), params, salt=b"%d" % len(self.gaps))
        done = None
        while done is None:
            done = next((one.completion for one in self.engine.step() if one.request_id == name), None)
        assert done.logprobs is not None
        for row, ours, fresh in zip(done.logprobs, reply.tokens, done.tokens, strict=True):
            if ours != fresh:
                (_, first), (token, second) = row.top
                return float(first - second) if token == ours else inf
        return 0.0

    def _in_threshold(self, replies: Sequence[Reply]) -> bool:
        return all(one.prompt_tokens + self.params.max_tokens <= self.options.threshold for one in replies)


def result_of(talk: Talk) -> dict[str, Any]:
    rows, options = talk.rows, talk.options
    settled = rows[len(rows) // 10 :]
    computed = sum(row["computed"] for row in rows)
    new = len(rows) * len(talk.chats) * (options.said + options.answered)
    memory = [row["allocated_bytes"] for row in settled]
    return {
        "turns": len(rows),
        "chats": len(talk.chats),
        "threshold": options.threshold,
        "seconds_per_turn": sum(row["seconds"] for row in rows) / len(rows),
        "computed_per_new_token": computed / new,
        "everything_per_new_token": sum(row["prompt_tokens"] for row in rows) / new,
        "evicted_turns": sum(row["evicted_turns"] for row in rows),
        "evicted_tokens": sum(row["evicted_tokens"] for row in rows),
        "memory_spread_bytes": max(memory) - min(memory),
        "preemptions": talk.engine.figures.preemptions,
        "rescues": talk.engine.health.rescues,
        "made_again": len(talk.gaps),
        "made_again_the_same": talk.gaps.count(0.0),
        "largest_gap": max(talk.gaps, default=0.0),
        "right": {
            "memory flat": max(memory) - min(memory) <= FLAT_BYTES,
            "no block held": not any(row["blocks_held"] for row in rows),
            "within the threshold": all(row["kept_in_threshold"] for row in rows),
            "system prompt kept": all(row["system_kept"] for row in rows),
            "every evicted turn told": all(row["told"] for row in rows),
            "made again the same": max(talk.gaps, default=0.0) <= NEAR_TIE,
            "computed at most twice": computed <= BAR_COMPUTED * new,
        },
    }


def make_engine(options: argparse.Namespace) -> tuple[Engine, Any, Any]:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(packaged_folder("brim-tiny")))
    config = {**load_config(options.model)[1], "vocab_size": len(tokenizer), "eos_token_id": 1, "bos_token_id": None}
    settings = EngineSettings(
        max_batch=max(4, options.chats),
        max_batch_tokens=options.batch_tokens,
        max_length=options.threshold,
        compile=options.compile and not options.tiny,
    )
    probe = _probe(options.tiny)
    where = {"device": "cpu", "probe": probe, "dtype": "fp32"} if options.tiny else {"device": "cuda", "dtype": "bf16"}
    engine = Engine(config, load_format="dummy", settings=settings, kv_tokens=0, tokenizer=tokenizer, **where)
    report = fit_engine(engine, probe=probe, canary_bytes=(1 if options.tiny else 256) << 20)
    return engine, probe, report


def _probe(tiny: bool) -> Any:
    if tiny:
        from brim.probes.cpu import CpuProbe

        return CpuProbe(1 << 30)
    from brim.probes.cuda import CudaProbe

    return CudaProbe(0)


def main() -> None:
    options = _options()
    engine, probe, report = make_engine(options)
    talk = Talk(engine, probe, options)
    for number in range(options.turns):
        talk.turn()
        row = talk.rows[-1]
        print(
            f"turn {number + 1} of {options.turns}: {row['seconds']:.2f} s, {row['computed']:,} of "
            f"{row['prompt_tokens']:,} prompt tokens computed, {row['evicted_turns']} turns evicted",
            file=sys.stderr,
            flush=True,
        )
    result = {**stamp(options.commit), "model": options.model, "kv_tokens": report.kv_tokens, **result_of(talk)}
    print(json.dumps(result), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if not all(result["right"].values()):
        sys.exit(1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b")
    parser.add_argument("--chats", type=int, default=32)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--said", type=int, default=936, help="tokens of the user's turn")
    parser.add_argument("--answered", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--threshold", type=int, default=8192)
    parser.add_argument("--batch-tokens", type=int, default=8192)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--tiny", action="store_true", help="on the CPU: to try this script")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    if options.tiny:
        options.model = "brim-tiny"
    return options


if __name__ == "__main__":
    main()
