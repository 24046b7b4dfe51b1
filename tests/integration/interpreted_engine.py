"""Engines whose attention is the Triton kernels, interpreted, beside `transformers`' own `generate`.

    PYTHONPATH=src:. TRITON_INTERPRET=1 python tests/integration/interpreted_engine.py FILE

Writes a row for each family into FILE. A script and not a test, since Triton decides when it is imported whether it
interprets.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from brim.engine.attention.backends import BackendSizes, register_backend
from brim.engine.attention.triton_backend import TritonAttention
from tests.integration.test_engine import family, greedy, prompts_of

MULTIPROCESSORS = 132  # as if for an H100: short contexts are cut into parts too
FAMILIES = ("deepseek_v3", "gemma4_text, shared KV")  # latents; windows, and borrowed keys and values

TOKENS = 2  # sampled by a prefill step, and by a decode step


def make(sizes: BackendSizes) -> TritonAttention:
    return TritonAttention(sizes.layers, sizes.decode_batches, sizes.max_length, sizes.device, MULTIPROCESSORS)


def check(name: str) -> dict[str, Any]:
    model, prompts = family(name), prompts_of([26, 5])
    with model.engine(attention="interpreted") as engine:
        tokens = [list(answer.tokens) for answer in engine.generate(prompts, greedy(TOKENS))]
    return {"family": name, "tokens": tokens, "wanted": [model.greedy(prompt, TOKENS) for prompt in prompts]}


def main() -> None:
    torch.set_num_threads(1)
    register_backend("interpreted", make)
    Path(sys.argv[1]).write_text(json.dumps([check(name) for name in FAMILIES], indent=1) + "\n")


if __name__ == "__main__":
    main()
