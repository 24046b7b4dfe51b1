"""From nothing to both model folders and their metrics: tokenizer, training, distillation, evaluation.

    python -m models.tiny.make --out build/tiny --metrics build/tiny/metrics.json

On an H200 the defaults take some five minutes. On a CPU give fewer and smaller steps.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

from benchmarks.stamp import stamp
from models.tiny.architecture import DRAFT_SIZES, MODEL_SIZES, new_model, parameters, save_model
from models.tiny.distil import distil
from models.tiny.evaluate import evaluate
from models.tiny.tokenizer import learn_tokenizer
from models.tiny.train import Plan, train

MODEL, DRAFT = "brim-tiny", "brim-tiny-draft"


def main() -> None:
    options = _options()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the batches are made by processes
    seconds: dict[str, float] = {}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    plan = Plan(options.steps, options.batch_tokens, options.rate, options.seed, device, options.workers)
    model_folder, draft_folder = options.out / MODEL, options.out / DRAFT
    with _timed("start", seconds):
        tokenizer, model, draft = _new(options.seed) if options.start is None else _stored(options.start)
    with _timed("train", seconds):
        course = train(model, tokenizer, plan)
        save_model(model, tokenizer, model_folder)
    with _timed("distil", seconds):
        draft_course = distil(draft, model, tokenizer, replace(plan, steps=options.draft_steps))
        save_model(draft, tokenizer, draft_folder)
    with _timed("evaluate", seconds):
        metrics = evaluate(model_folder, draft_folder)
    record = {
        **stamp(options.commit),
        "plan": {
            **asdict(plan),
            "device": str(device),
            "draft_steps": options.draft_steps,
            "start": options.start and options.start.name,
        },
        "parameters": {"model": parameters(model), "draft": parameters(draft)},
        "seconds": {**seconds, "all": round(sum(seconds.values()), 1)},
        **metrics,
        "training": {"model": asdict(course), "draft": asdict(draft_course)},
    }
    options.metrics.parent.mkdir(parents=True, exist_ok=True)
    options.metrics.write_text(json.dumps(record, indent=1) + "\n")


Models = tuple[Tokenizer, Qwen3ForCausalLM, Qwen3ForCausalLM]  # the tokenizer, the model and the draft


def _new(seed: int) -> Models:
    tokenizer = learn_tokenizer(seed)
    return tokenizer, new_model(MODEL_SIZES, tokenizer, seed), new_model(DRAFT_SIZES, tokenizer, seed)


def _stored(folder: Path) -> Models:
    """As an earlier run left them in its folder."""
    model, draft = (Qwen3ForCausalLM.from_pretrained(folder / name, dtype=torch.float32) for name in (MODEL, DRAFT))
    return Tokenizer.from_file(str(folder / MODEL / "tokenizer.json")), model, draft


@contextmanager
def _timed(what: str, seconds: dict[str, float]) -> Iterator[None]:
    started = time.perf_counter()
    yield
    seconds[what] = round(time.perf_counter() - started, 1)
    print(f"{what}: {seconds[what]} s", file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where the two folders are written")
    parser.add_argument("--metrics", type=Path, required=True, help="a JSON file")
    parser.add_argument("--commit", default="", help="what the metrics say they were made from")
    parser.add_argument("--start", type=Path, help="go on from the folders of an earlier run (default: from nothing)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=3600)
    parser.add_argument("--draft-steps", type=int, default=900)
    parser.add_argument("--batch-tokens", type=int, default=98_304)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument(
        "--workers", type=int, default=max(1, (os.cpu_count() or 2) - 2), help="processes that make data"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
