"""Plan, trace, generate, fit, chat and hold, as one would from the shell."""

from __future__ import annotations

import io
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from brim.cli.main import run

_STEPS = (
    ("Does a vision-language model fit on a gaming card?", "plan qwen2.5-vl-7b --gpu rtx-4090 --max-len 32k"),
    ("The same with smaller images", "plan qwen2.5-vl-7b --gpu rtx-4090 --max-len 32k --image-pixels 1280x784"),
    ("A 70B on one H200, as vLLM's command", "plan llama-3.3-70b --gpu h200 --weights fp8 --engine vllm"),
    ("DeepSeek V3 over eight H200s: the latent is small", "plan deepseek-v3 --gpu 8xh200 --max-seqs 256"),
    (
        "A 31B in four bits on 24 GB: what was left open is lowered",
        "plan gemma-4-31b --weights nvfp4 --gpu l4",
    ),
    ("Too large, and what would help", "plan qwen3-32b --gpu rtx-4090 --max-len 16k"),
    ("One model over many GPUs", "plan gpt-oss-20b --compare"),
)


_TRACE = "trace llama-3.1-8b --tokens 8192"
_SERVING = (
    ("Brim's own engine, on the model in the package", "generate --prompt 'My name is Ada. What is my name?'"),
    ("It follows instructions", "generate --system 'Answer in capital letters.' --prompt 'What is 3 plus 4?'"),
    (
        "Its KV cache sized by measurement under a memory budget, and proven",
        "fit --memory 64MiB --canary 1MiB --max-seqs 8 --batch-tokens 256 --no-store",
    ),
)

_CHAT = "chat --quiet --max-tokens 24 --rolling-threshold 140"
_TURNS = (
    "My name is Ada.",
    "/pin",
    "My favourite colour is green.",
    "What is 3 + 4?",
    "What comes after Monday?",
    "Repeat: the quick brown fox jumps over the lazy dog.",
    "What is my favourite colour?",
    "Count from one to five.",
    "What is 9 minus 2?",
    "What is my name?",
    "What is my favourite colour?",
    "/usage",
)
_NEIGHBOUR = "hold --gpu cpu:demo:1GiB 200MiB -- brim leases --gpu cpu:demo"


def show_commands() -> None:
    for title, line in _STEPS:
        print(f"\n\033[1m# {title}\033[0m\n$ brim {line}")
        run(shlex.split(line))
    picture = Path(tempfile.gettempdir()) / "brim-plan.svg"
    print("\n\033[1m# A hybrid model, with a picture\033[0m")
    run(["plan", "qwen3.5-27b", "--gpu", "h100", "--svg", str(picture)])
    print(f"The picture is in {picture}")
    print(f"\n\033[1m# The model's own code on the meta device\033[0m\n$ brim {_TRACE}")
    run(shlex.split(_TRACE))
    for title, line in _SERVING:
        print(f"\n\033[1m# {title}\033[0m\n$ brim {line}")
        run(shlex.split(line))
    print(f"\n\033[1m# A conversation outgrows its memory: a pinned turn stays\033[0m\n$ brim {_CHAT}")
    with _typed(_TURNS):
        run(shlex.split(_CHAT))
    print(f"\n\033[1m# A neighbour on the card says what it takes\033[0m\n$ brim {_NEIGHBOUR}", flush=True)
    brim = [sys.executable, "-m", "brim.cli.main"]
    command = [part for word in shlex.split(_NEIGHBOUR) for part in (brim if word == "brim" else [word])]
    subprocess.run([*brim, *command], check=True)


@contextmanager
def _typed(lines: tuple[str, ...]) -> Iterator[None]:
    """Standard input holds these lines, and each is shown when it is read."""

    class Shown(io.StringIO):
        def __next__(self) -> str:  # type: ignore[override]
            line = super().__next__()
            print(f"> {line}", end="", flush=True)
            return line

    before, sys.stdin = sys.stdin, Shown("".join(f"{line}\n" for line in lines))
    try:
        yield
    finally:
        sys.stdin = before
