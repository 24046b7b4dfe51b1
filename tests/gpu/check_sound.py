"""Nothing one request does may hurt another, on a GPU: scores, failed steps, one-row graphs, shared prompts.

    python tests/gpu/check_sound.py [--only scores|failures|memory|small|forks|penalties|preemption] [--out FILE]
        [--commit HASH]

Needs the repository's root on the path: tiny models and faults are those of the integration tests.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

GIB = 1 << 30
Row = dict[str, Any]


def check_scores() -> Iterator[Row]:
    """Prompt log-probabilities of chunked prompts beside those of one forward of the class itself."""
    import torch

    from brim import Engine, EngineSettings, SamplingParams
    from brim.engine.weights.load import load

    reference = load("llama-3.2-1b", load_format="dummy", dtype="fp32", device="cuda", attention="sdpa").model
    draw = random.Random(1)
    vocab = reference.config.vocab_size
    prompts = [[draw.randrange(10, vocab) for _ in range(length)] for length in (3000, 777, 1500, 130)]
    wanted = []
    for prompt in prompts:
        with torch.inference_mode():
            logits = reference(torch.tensor([prompt], device="cuda"), use_cache=False).logits[0]
            scores = logits[:-1].log_softmax(-1).gather(1, torch.tensor(prompt[1:], device="cuda")[:, None])[:, 0]
        wanted.append(scores.cpu())
    del reference, logits
    torch.cuda.empty_cache()
    settings = EngineSettings(max_batch=8, max_batch_tokens=256, max_length=4096)
    params = SamplingParams(max_tokens=4, temperature=0, prompt_logprobs=3, ignore_eos=True)
    with Engine(
        "llama-3.2-1b", load_format="dummy", dtype="fp32", device="cuda", settings=settings, kv_tokens=32768
    ) as one:
        for round_ in range(3):
            worst = 0.0
            for answer, scores in zip(one.generate(prompts, params), wanted, strict=True):
                got = torch.tensor([each.logprob for each in answer.prompt_logprobs])
                worst = max(worst, float((got - scores).abs().max())) if got.shape == scores.shape else float("inf")
            yield {"check": "scores", "case": f"round {round_}", "largest_difference": worst, "ok": worst < 5e-3}


def cuda_load(name: str) -> Any:
    """The load of the integration test, on the GPU."""
    from brim import Engine, EngineSettings
    from brim.engine.weights.builtin import ByteTokenizer
    from tests.gpu.check_engine import on_cuda
    from tests.integration import test_failed_steps as failed
    from tests.integration.test_engine import family

    load = failed.text_load(name)
    settings = EngineSettings(max_batch=5, max_batch_tokens=19, block_size=8)
    load.engine = Engine(
        on_cuda(family(name).loaded), kv_tokens=0, settings=settings, device="cuda", tokenizer=ByteTokenizer()
    )
    return load


def check_failures() -> Iterator[Row]:
    """An error or an interrupt at any point of any step: every request gets the answer of an undisturbed run."""
    from tests.integration import test_failed_steps as failed
    from tests.integration.faults import KINDS, Faults

    for name in ("llama", "gemma3_text", "qwen3_next"):
        load, counted = cuda_load(name), Faults()
        wanted = failed.plain(load.run(counted))
        draw, same, runs = random.Random(name), 0, 9
        for number in range(runs):
            at = draw.sample(range(1, counted.points), failed.FAULTS)
            same += failed.plain(load.run(Faults(at, KINDS[number % len(KINDS)]))) == wanted
        yield {
            "check": "failures",
            "case": name,
            "points": counted.points,
            "same": same,
            "of": runs,
            "ok": same == runs,
        }


def check_memory() -> Iterator[Row]:
    """A step that really runs out of memory, in the middle of others: all of them go on, in smaller parts."""
    import torch

    from brim import Engine, EngineSettings, SamplingParams
    from tests.gpu.near_ties import NEAR_TIE, gap

    settings = EngineSettings(max_batch=16, max_batch_tokens=8192, max_length=16384)
    greedy = SamplingParams(max_tokens=40, temperature=0, ignore_eos=True, logprobs=2)
    draw = random.Random(2)
    with Engine(
        "llama-3.2-1b", load_format="dummy", dtype="bf16", device="cuda", settings=settings, kv_tokens=65536
    ) as engine:
        short = [[draw.randrange(10, 100_000) for _ in range(60)] for _ in range(8)]
        long = [draw.randrange(10, 100_000) for _ in range(8000)]

        def run(ballast: bool) -> tuple[list[Any], int]:
            ids = [engine.submit(prompt, greedy) for prompt in short]
            for _ in range(10):
                engine.step()
            ids.append(engine.submit(long, greedy))
            done = {}
            held: list[Any] = []
            if ballast:
                torch.cuda.synchronize()
                torch.cuda.empty_cache()
                free, _ = torch.cuda.mem_get_info()
                held.append(torch.empty(free - 120 * 2**20, dtype=torch.uint8, device="cuda"))
            while not engine.idle:
                for update in engine.step():
                    if update.completion is not None:
                        done[update.request_id] = update.completion
            held.clear()
            torch.cuda.empty_cache()
            return [done[one] for one in ids], engine.health.rescues

        wanted, _ = run(ballast=False)
        engine.teardown()
        engine.build(65536)
        got, rescues = run(ballast=True)
        gaps = [gap(one, other.tokens) for one, other in zip(wanted, got, strict=True)]
        held = engine.figures.blocks_held
        yield {
            "check": "memory",
            "case": "a step of 8,000 tokens where 120 MiB are free",
            "rescues": rescues,
            "same": gaps.count(0.0),
            "largest_gap": max(gaps),  # of log-probabilities, where they part
            "of": len(wanted),
            "ok": rescues >= 1 and max(gaps) < NEAR_TIE and not held,
        }


def check_small() -> Iterator[Row]:
    """Engines for one, two and three requests, captured, of few KV heads and long contexts."""
    from brim import Engine, EngineSettings, SamplingParams

    greedy = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
    prompts = [[5 * number + place % 900 + 10 for place in range(300)] for number in range(4)]
    for model in ("qwen2.5-0.5b", "gemma-3-1b"):
        answers = []
        for batch, graphs in ((4, False), (1, True), (2, True), (3, True)):
            settings = EngineSettings(max_batch=batch, max_batch_tokens=1024, max_length=16384, graphs=graphs)
            with Engine(
                model, load_format="dummy", dtype="fp32", device="cuda", settings=settings, kv_tokens=32768
            ) as engine:
                answers.append([one.tokens for one in engine.generate(prompts, greedy)])
                warnings = list(engine.warnings)
        same = sum(one == answers[0] for one in answers[1:])
        yield {"check": "small", "case": model, "same": same, "of": 3, "warnings": warnings, "ok": same == 3}


def check_forks() -> Iterator[Row]:
    """Eight answers to one prompt: computed once, also with windows and recurrent layers; all tokens as expected."""
    from brim import Engine, EngineSettings
    from tests.gpu.check_engine import on_cuda
    from tests.integration.test_engine import drawn, family, prompts_of

    prompt = prompts_of([200], seed=9)[0]
    for name in ("llama", "gemma3_text", "qwen3_next", "granitemoehybrid", "lfm2"):
        settings = EngineSettings(max_batch=8, max_batch_tokens=64, block_size=8, reuse_prefixes=False)
        with Engine(on_cuda(family(name).loaded), kv_tokens=4096, settings=settings, device="cuda") as engine:
            together = [one.tokens for one in engine.generate([prompt], drawn(8, 5, n=8))]
            computed = engine.loop.figures.tokens
            apart = [engine.generate([prompt], drawn(8, 5 + number))[0].tokens for number in range(8)]
        same = sum(one == other for one, other in zip(together, apart, strict=True))
        fewest = len(prompt) + 7 + 8 * 7  # and a token for each that is drawn behind the first
        yield {
            "check": "forks",
            "case": name,
            "same": same,
            "of": 8,
            "computed": computed,
            "ok": same == 8 and computed <= fewest + 8,  # steps launched ahead of the last token
        }


def check_penalties() -> Iterator[Row]:
    """Penalties over tokens that stay on the device: the answers of an engine on the CPU, with the same weights."""
    from brim import Engine, EngineSettings
    from tests.gpu.check_engine import on_cuda
    from tests.integration.test_engine import EAGER, drawn, family, greedy, prompts_of

    prompts = prompts_of([30, 5, 17, 60, 9, 41], seed=12)
    kinds: tuple[dict[str, float], ...] = (
        {"repetition_penalty": 1.3},
        {"presence_penalty": 1.5},
        {"frequency_penalty": 0.7, "repetition_penalty": 0.8},
    )
    params = [greedy(60, **kinds[number % 3]) for number in range(5)] + [drawn(60, 5, n=2, presence_penalty=0.5)]
    for name in ("llama", "gemma3_text"):
        answers = []
        for device in ("cpu", "cuda"):
            loaded = family(name).loaded if device == "cpu" else on_cuda(family(name).loaded)
            settings = EngineSettings(max_batch=5, max_batch_tokens=32, block_size=8, **EAGER)
            with Engine(loaded, kv_tokens=320, settings=settings, device=device) as engine:
                answers.append([one.tokens for one in engine.generate(prompts, params)])
                preempted = engine.figures.preemptions
        same = sum(one == other for one, other in zip(*answers, strict=True))
        row = {"check": "penalties", "case": name, "preemptions": preempted, "same": same, "of": len(answers[0])}
        yield row | {"ok": same == len(answers[0])}


def check_preemption() -> Iterator[Row]:
    """Requests that wait in pinned host memory: the answers of an engine that preempts nobody, and the rates."""
    from dataclasses import asdict

    from brim import Engine, EngineSettings
    from tests.gpu.check_engine import on_cuda
    from tests.integration.test_engine import EAGER, drawn, family, greedy, prompts_of
    from tests.integration.test_preemption import CHEAP, NAMES

    prompts = prompts_of([30, 5, 17, 60, 9, 41], seed=12)
    params = [greedy(60), drawn(60, 1), drawn(60, 2, n=2), greedy(60, presence_penalty=1.0), greedy(60), drawn(60, 5)]
    for name in NAMES:
        loaded, answers = on_cuda(family(name).loaded), []
        for kv_tokens, host_memory in ((4096, 0), (320, 64 << 20)):
            settings = EngineSettings(max_batch=7, max_batch_tokens=32, block_size=8, host_memory=host_memory, **EAGER)
            with Engine(loaded, kv_tokens=kv_tokens, settings=settings, device="cuda") as engine:
                measured = engine.figures.preemption.rates
                if host_memory:
                    engine.loop.scheduler.host_copies.rates = CHEAP  # tiny models are computed faster than copied
                answers.append([one.tokens for one in engine.generate(prompts, params)])
                figures, warnings = engine.figures.preemption, engine.warnings
        same = sum(one == other for one, other in zip(*answers, strict=True))
        yield {
            "check": "preemption",
            "case": name,
            "same": same,
            "of": len(answers[0]),
            "copied_back": figures.copied_back,
            "recomputed": figures.recomputed,
            "rates": None if measured is None else asdict(measured),
            "warnings": warnings,
            "ok": same == len(answers[0]) and figures.copied_back > 0,
        }


CHECKS: dict[str, Callable[[], Iterator[Row]]] = {
    "scores": check_scores,
    "failures": check_failures,
    "memory": check_memory,
    "small": check_small,
    "forks": check_forks,
    "penalties": check_penalties,
    "preemption": check_preemption,
}


def main() -> None:
    from benchmarks.stamp import stamp

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=CHECKS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()
    rows: list[Row] = []
    for name, check in CHECKS.items():
        if options.only in (None, name):
            started = time.perf_counter()
            for row in check():
                rows.append(row)
                print(json.dumps(row), flush=True)
            print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
    result = {
        **stamp(options.commit),
        "rows": rows,
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    failed = [row for row in rows if not row["ok"]]
    print(f"{len(rows) - len(failed)} of {len(rows)} ok")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
