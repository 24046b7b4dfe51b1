"""Log-probabilities of prompts: memory, time and error of scoring in pieces, and prompt tokens a second of an engine.

    python benchmarks/prompt_scores.py [--out FILE] [--commit HASH] [--no-engine]     # a GPU: three minutes
    python benchmarks/prompt_scores.py --tiny --out FILE                              # anywhere: only that it runs

Scoring alone, on random hidden states and weights (8,192 tokens, a vocabulary of 262,144): what it takes beyond its
results, and its time beside that of logits computed in pieces of which only the log-sum-exp is kept, in whole rows and
in the same pieces as ours; with torch's operations in place of the kernel; and with pieces of other sizes. Its error
beside logits of float32 products and sums of the same hidden states, for the forms that heads have. The engine: random
weights in the dimensions of a real model, 8 prompts of 2,048 tokens with 5 alternatives each.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from stamp import stamp

from brim.engine.run.scoring.pieces import PieceSize, piece_size, score_in_pieces
from brim.engine.run.scoring.running import Reduction, TorchReduction, reduction_for
from brim.engine.run.scoring.scores import PromptLogprobs, joined, slices
from brim.engine.weights.head import LogitsHead
from brim.units import MIB

RESULT = Path(__file__).parent / "results" / "prompt_scores_h200.json"
BASELINE_ROWS = 256  # of whole logits at once
BARS = {"peak_bytes": 64 * MIB, "times_of_logits": 1.3, "error": 1e-3, "tokens_per_second": 31_579}
VLLM_TOKENS_PER_SECOND = 34_061  # vLLM 0.26, measured apart from this script


@dataclass(frozen=True, slots=True)
class Problem:
    """Hidden states to score, and the form of the head."""

    tokens: int = 8192
    vocab: int = 262_144
    width: int = 3840  # of Gemma 3 12B
    count: int = 5
    kind: str = "bfloat16"
    scale: float = 1.0
    cap: float | None = None
    bias: bool = False

    def made(self, device: str) -> tuple[LogitsHead, torch.Tensor, torch.Tensor]:
        numbers = torch.Generator(device).manual_seed(0)
        dtype = getattr(torch, self.kind)

        def normal(*shape: int, spread: float = 1.0) -> torch.Tensor:
            return (torch.randn(*shape, generator=numbers, device=device) * spread).to(dtype)

        weight = torch.empty(self.vocab, self.width, dtype=dtype, device=device)
        for here in slices(self.vocab, 16_384):
            weight[here] = normal(here.stop - here.start, self.width, spread=3 / self.width**0.5)
        head = LogitsHead(weight, normal(self.vocab) if self.bias else None, self.scale, self.cap)
        targets = torch.randint(0, self.vocab, (self.tokens,), generator=numbers, device=device)
        return head, normal(self.tokens, self.width), targets


LARGE = Problem()
FORMS = (  # a vocabulary of whole tiles, and one that is not even
    Problem(1024, 262_144, 2560, cap=30.0),
    Problem(1024, 50_257, 2048, count=20, scale=0.125),
    Problem(512, 50_257, 2048, kind="float16", bias=True, count=1),
    Problem(256, 50_257, 1024, kind="float32", cap=15.0, bias=True, count=0),
)


class Device:
    """Time and memory of one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cuda = name == "cuda"

    def peak_bytes(self, action: Callable[[], Any]) -> int | None:
        """What an action takes beyond what it leaves behind; None where that is not counted."""
        if not self.cuda:
            action()
            return None
        action()  # workspaces and compiled kernels are there
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        kept = action()
        torch.cuda.synchronize()
        results = torch.cuda.memory_allocated() - before
        peak = torch.cuda.max_memory_allocated() - before
        del kept
        return peak - results

    def seconds(self, action: Callable[[], Any], times: int = 5) -> float:
        """The median of several."""
        action()
        found = []
        for _ in range(times):
            self.wait()
            started = time.perf_counter()
            action()
            self.wait()
            found.append(time.perf_counter() - started)
        return sorted(found)[len(found) // 2]

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()


Made = tuple[LogitsHead, torch.Tensor, torch.Tensor]


def scored(made: Made, count: int, reduction: Reduction, size: PieceSize) -> PromptLogprobs:
    head, hidden, targets = made
    parts = [
        score_in_pieces(hidden[here], targets[here], count, head, reduction, size)
        for here in slices(len(hidden), size.rows)
    ]
    return joined(parts)


def whole_logits(made: Made) -> torch.Tensor:
    """The log-sum-exp of logits in the class's type, whole rows of them at a time."""
    head, hidden, _ = made
    parts = [(hidden[here] @ head.weight.t()).float().logsumexp(-1) for here in slices(len(hidden), BASELINE_ROWS)]
    return torch.cat(parts)


def logits_in_pieces(made: Made, size: PieceSize) -> torch.Tensor:
    """The log-sum-exp of products that stay float32, in pieces of this size."""
    head, hidden, _ = made
    found = []
    for here in slices(len(hidden), size.rows):
        sums = [_product(hidden[here], head.weight[part]).logsumexp(-1) for part in slices(head.vocab, size.columns)]
        found.append(torch.stack(sums).logsumexp(0))
    return torch.cat(found)


def _product(rows: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    if rows.is_cuda and rows.dtype != torch.float32:
        return torch.mm(rows, weight.t(), out_dtype=torch.float32)
    return rows.float() @ weight.float().t()


def errors(made: Made, found: PromptLogprobs, count: int, rows: int = 64) -> dict[str, float]:
    """The largest distance from logits with float32 products and sums, and how often tokens or ranks are others."""
    head, hidden, targets = made
    step = max(1, len(hidden) // rows)
    picked = torch.arange(0, len(hidden), step, device=hidden.device)
    wide = LogitsHead(head.weight, head.bias, head.scale, head.cap)
    logits = torch.cat(
        [
            wide.finish_(hidden[picked].float() @ head.weight[here].float().t(), here.start)
            for here in slices(head.vocab, 16_384)
        ],
        -1,
    )
    scores = logits.double().log_softmax(-1)
    own = scores.gather(-1, targets[picked, None])
    top = scores.topk(count)
    there = scores.gather(-1, found.top_tokens[picked])
    near = 1e-4
    least, most = (scores > own + near).sum(-1) + 1, (scores > own - near).sum(-1)
    ranks = found.rank[picked]
    apart = [found.logprob[picked] - own[:, 0], (found.top_logprobs[picked] - top.values).flatten()]
    return {
        "rows": len(picked),
        "largest": float(torch.cat([part.abs() for part in apart]).max()),
        "other_tokens_beyond_ties": int(((there - top.values).abs() > near).sum()),
        "other_ranks_beyond_ties": int(((ranks < least) | (ranks > most.maximum(least))).sum()),
    }


def of_scoring(problem: Problem, device: Device, memory: int, sweep: bool) -> dict[str, Any]:
    """Memory, time and error of one problem."""
    made = problem.made(device.name)
    head, hidden, _ = made
    ours = reduction_for(hidden.device)
    size = piece_size(len(hidden), head, problem.count, ours, memory)
    plain = TorchReduction()
    plain_size = piece_size(len(hidden), head, problem.count, plain, memory)
    run = lambda: scored(made, problem.count, ours, size)  # noqa: E731
    without = lambda: scored(made, problem.count, plain, plain_size)  # noqa: E731
    found: dict[str, Any] = {
        "problem": asdict(problem),
        "piece": asdict(size),
        "peak_bytes": device.peak_bytes(run),
        "full_logits_bytes": problem.tokens * problem.vocab * 4,
        "errors": errors(made, run(), problem.count),
        "seconds": {
            "scores": device.seconds(run),
            "scores_by_torch": device.seconds(without),
            "logits_in_whole_rows": device.seconds(lambda: whole_logits(made)),
            "logits_in_same_pieces": device.seconds(lambda: logits_in_pieces(made, size)),
        },
        "peak_bytes_by_torch": device.peak_bytes(without),
    }
    seconds = found["seconds"]
    fastest = min(seconds["logits_in_whole_rows"], seconds["logits_in_same_pieces"])
    found["times_of_logits"] = seconds["scores"] / fastest
    if sweep:
        found["other_pieces"] = {
            f"{rows}x{columns}": device.seconds(lambda: scored(made, problem.count, ours, PieceSize(rows, columns)), 3)  # noqa: B023
            for rows, columns in ((1024, 4096), (1024, 8192), (2048, 2048), (2048, 4096), (2816, 3072), (4096, 2048))
            if rows <= len(hidden)
        }
    return found


def of_engine(model: str, prompts: int, length: int, batch_tokens: int, device: Device) -> dict[str, Any]:
    """Prompt tokens a second, with 5 alternatives of each and without."""
    from brim.engine.engine import Engine
    from brim.engine.requests.params import SamplingParams
    from brim.engine.settings import EngineSettings

    settings = EngineSettings(max_batch=prompts, max_batch_tokens=batch_tokens, max_length=length + 16)
    draw = random.Random(0)
    found: dict[str, Any] = {"model": model, "prompts": prompts, "length": length, "batch_tokens": batch_tokens}
    kv_tokens = 2 * prompts * (length + 32)
    with Engine(model, load_format="dummy", device=device.name, kv_tokens=kv_tokens, settings=settings) as engine:
        for name, scores in (("scored", 5), ("plain", None)):
            params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, prompt_logprobs=scores)
            rounds = []
            for _ in range(4):  # other tokens each time: no prefix is found again
                asked = [[draw.randrange(5, engine.loaded.vocab) for _ in range(length)] for _ in range(prompts)]
                device.wait()
                started = time.perf_counter()
                answers = engine.generate(asked, params)
                rounds.append(time.perf_counter() - started)
                assert scores is None or all(len(one.prompt_logprobs) == length - 1 for one in answers)
            found[name] = {"seconds": rounds, "tokens_per_second": prompts * length / min(rounds[1:])}
    return found


def passed(large: dict[str, Any], forms: list[dict[str, Any]], engines: list[dict[str, Any]]) -> dict[str, bool | None]:
    """Which of the bars are met; None: not measured."""
    all_errors = [one["errors"] for one in (large, *forms)]
    best = max((one["scored"]["tokens_per_second"] for one in engines), default=None)
    return {
        "peak_bytes": None if large["peak_bytes"] is None else large["peak_bytes"] <= BARS["peak_bytes"],
        "times_of_logits": large["times_of_logits"] <= BARS["times_of_logits"],
        "error": all(one["largest"] <= BARS["error"] for one in all_errors),
        "tokens_and_ranks": not any(
            one["other_tokens_beyond_ties"] or one["other_ranks_beyond_ties"] for one in all_errors
        ),
        "tokens_per_second": None if best is None else best >= BARS["tokens_per_second"],
        "vllm_tokens_per_second": None if best is None else best >= VLLM_TOKENS_PER_SECOND,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="llama-3.1-8b", help="the engine's dimensions (llama-3.1-8b)")
    parser.add_argument("--tiny", action="store_true", help="small dimensions, on any device")
    parser.add_argument("--no-engine", action="store_true", help="scoring alone")
    parser.add_argument("--out", type=Path, default=RESULT, metavar="FILE")
    parser.add_argument("--commit", default="", metavar="HASH")
    arguments = parser.parse_args()
    device = Device("cuda" if torch.cuda.is_available() else "cpu")
    large, forms, memory = LARGE, FORMS, 64 * MIB
    engine: tuple[str, int, int, tuple[int, ...]] = (arguments.model, 8, 2048, (4096, 8192, 16_384))
    if arguments.tiny:
        large, memory = Problem(64, 2000, 32), MIB
        forms = tuple(replace(form, tokens=24, vocab=min(form.vocab, 700) + 1, width=32) for form in FORMS)
        engine = ("brim-random", 2, 24, (16,))
    with torch.inference_mode():
        scoring = of_scoring(large, device, memory, sweep=not arguments.tiny)
        print(json.dumps(scoring), flush=True)
        others = []
        for form in forms:
            others.append(of_scoring(form, device, memory, sweep=False))
            print(json.dumps(others[-1]), flush=True)
    gc.collect()
    if device.cuda:
        torch.cuda.empty_cache()
    model, prompts, length, steps = engine
    engines = [] if arguments.no_engine else [of_engine(model, prompts, length, step, device) for step in steps]
    for one in engines:
        print(json.dumps(one), flush=True)
    result = {
        **stamp(arguments.commit),
        "bars": {**BARS, "vllm_tokens_per_second": VLLM_TOKENS_PER_SECOND},
        "passed": passed(scoring, others, engines),
        "scoring": scoring,
        "forms": others,
        "engine": engines,
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(result["passed"]))


if __name__ == "__main__":
    main()
