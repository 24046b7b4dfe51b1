"""How fast a runner computes prompts, measured with a step of its own."""

from __future__ import annotations

import time

from brim.engine.kv.ledger import KvLedger
from brim.engine.run.runner import Runner
from brim.engine.stress.text import PLAIN, run_text_shape
from brim.records.memory import StressShape

_GPU_TOKENS = 256  # as the warm-up: a GPU computes about as fast from there on, and the fit counts no larger step twice
_CPU_TOKENS = 16  # a CPU does from here on, and takes a second for more
_LONG_SECONDS = 0.1  # a step that takes this long is not run a second time


def prefill_rate(runner: Runner, ledger: KvLedger, max_length: int) -> int:
    """Tokens a second, in a step that is large enough to keep the device busy. Nothing stays in the pool."""
    enough = _GPU_TOKENS if runner.shape.device.type == "cuda" else _CPU_TOKENS
    room = min(runner.shape.max_batch_tokens, max_length - 1, min(ledger.available()) * ledger.block_size)
    tokens = min(enough, room)
    shape = StressShape(PLAIN, tokens, 1)
    seconds = _seconds(shape, runner, ledger, max_length)
    if seconds < _LONG_SECONDS:
        seconds = min(seconds, _seconds(shape, runner, ledger, max_length))
    return max(1, int(tokens / seconds))


def _seconds(shape: StressShape, runner: Runner, ledger: KvLedger, max_length: int) -> float:
    started = time.perf_counter()
    run_text_shape(shape, runner, ledger, max_length)
    return time.perf_counter() - started
