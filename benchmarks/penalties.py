"""What penalties cost a step: many requests with long texts, drawn from on one core of the CPU, or on a GPU.

    python benchmarks/penalties.py [--requests 256] [--tokens 4096] [--vocab 32000] [--device cpu] [--write]

Half of each text is prompt, half is output; all three penalties are on. No model: the logits are random.

* none: the same draws without penalties
* sent: the texts go up with every step, as they did before; a step also had to be read before the next was launched
* held: the texts are on the device (`TokenHistory`), and each step adds a token

"prepare" is what the host does about the texts alone, "host" what passes until everything is in the device's queue,
"step" until the tokens are there. On the CPU the last two are the same, and the time of this process is counted, so
that others on the machine do not show.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from brim.engine.device.staging import Staging
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence
from brim.engine.run.packing import sample_rows
from brim.engine.run.sampling import sampler
from brim.engine.run.sampling.history import LookedUp, TokenHistory, pool_pages
from brim.engine.run.sampling.penalties import PAGE_TOKENS
from brim.engine.run.sampling.sampler import ROWS_AT_ONCE, SampleRow, sample
from brim.engine.schedule.plan import StepPlan

RESULT = Path(__file__).parent / "results" / "penalties.json"
MANY = 1_000_000
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.3, "frequency_penalty": 0.2}


def sequences_of(requests: int, tokens: int, vocab: int, **params: float) -> list[Sequence]:
    """Requests that generate. Words come as often as in texts: some often, most hardly ever."""
    numbers = random.Random(0)
    made = []
    for number in range(requests):
        text = [min(vocab - 1, int(numbers.paretovariate(0.7))) for _ in range(tokens)]
        kind = SamplingParams(max_tokens=MANY, **params)
        request = Request(f"{number}/0", tuple(text[: tokens // 2]), kind, number, MANY)
        made.append(Sequence(request, text, unseen=1))
    return made


def plan_of(sequences: list[Sequence]) -> StepPlan:
    lengths = tuple(len(sequence.tokens) for sequence in sequences)
    return StepPlan(tuple(sequences), tuple(range(len(sequences))), lengths, ())


Rows = Callable[[], list[SampleRow]]


def measure(
    rows: Rows, keep: Callable[[torch.Tensor], None], sequences: list[Sequence], logits: torch.Tensor, steps: int
) -> dict[str, float]:
    """Medians over some steps, the first of which do not count."""
    clock = time.process_time if logits.device.type == "cpu" else time.perf_counter
    found: dict[str, list[float]] = {"prepare": [], "host": [], "step": []}
    for _ in range(steps + 2):
        began = clock()
        made = rows()
        for first in range(0, len(made), ROWS_AT_ONCE):
            sampler._changes(made[first : first + ROWS_AT_ONCE], logits)
        found["prepare"].append(clock() - began)
        began = clock()
        tokens = sample(logits, rows()).tokens
        keep(tokens)
        found["host"].append(clock() - began)
        drawn = tokens.tolist()
        found["step"].append(clock() - began)
        for sequence, token in zip(sequences, drawn, strict=True):
            sequence.tokens.append(token)
    return {name: statistics.median(times[2:]) * 1000 for name, times in found.items()}


def without(requests: int, tokens: int, logits: torch.Tensor, steps: int) -> dict[str, float]:
    sequences = sequences_of(requests, tokens, logits.shape[1])
    return measure(lambda: sample_rows(tuple(sequences)), lambda _: None, sequences, logits, steps)


def sent(requests: int, tokens: int, logits: torch.Tensor, steps: int) -> dict[str, float]:
    sequences = sequences_of(requests, tokens, logits.shape[1], **PENALTIES)

    def rows() -> list[SampleRow]:
        return [
            row._replace(prompt=sequence.request.prompt, output=sequence.tokens[sequence.prompt_length :])
            for row, sequence in zip(sample_rows(tuple(sequences)), sequences, strict=True)
        ]

    return measure(rows, lambda _: None, sequences, logits, steps)


def held(requests: int, tokens: int, logits: torch.Tensor, steps: int) -> dict[str, float]:
    sequences = sequences_of(requests, tokens, logits.shape[1], **PENALTIES)
    history = TokenHistory(requests, 2 * tokens, logits.device, Staging(logits.device))
    last = torch.zeros(requests + 1, dtype=torch.int64, device=logits.device)
    looked_up: list[LookedUp] = []

    def rows() -> list[SampleRow]:
        found = history.look_up(plan_of(sequences), sample_rows(tuple(sequences)), logits.shape[1], last)
        assert not found.read_first
        looked_up[:] = [found]
        return found.rows

    return measure(rows, lambda drawn: history.append(looked_up[0], drawn), sequences, logits, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=256, help="requests in a step (default 256)")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of each (default 4096)")
    parser.add_argument("--vocab", type=int, default=32_000)
    parser.add_argument("--steps", type=int, default=15, help="steps to measure (default 15)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--write", action="store_true", help=f"also write the JSON to benchmarks/results/{RESULT.name}")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    torch.set_num_threads(1)
    logits = torch.randn(arguments.requests, arguments.vocab, generator=torch.Generator().manual_seed(0))
    logits = logits.to(arguments.device)
    result: dict[str, Any] = {
        "requests": arguments.requests,
        "tokens": arguments.tokens,
        "vocab": arguments.vocab,
        "device": arguments.device,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "pool_bytes": pool_pages(arguments.requests, 2 * arguments.tokens) * PAGE_TOKENS * 4,
        "milliseconds": {},
    }
    print(f"{arguments.requests} requests of {arguments.tokens} tokens, ms{'prepare':>14}{'host':>9}{'step':>9}")
    for name, run in (("none", without), ("sent", sent), ("held", held)):
        with torch.inference_mode():
            found = run(arguments.requests, arguments.tokens, logits, arguments.steps)
        result["milliseconds"][name] = found
        print(f"  {name:34}{found['prepare']:9.2f}{found['host']:9.2f}{found['step']:9.2f}")
    line = json.dumps(result)
    print(line)
    if arguments.write:
        RESULT.write_text(line + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
