"""The engine on a GPU: the same tokens as `generate` on the CPU, memory that goes back, steps as large as traced.

    python tests/gpu/check_engine.py
        [--only tokens|drafts|trained|images|audio|encoders|towers|families|memory|steps] [--out FILE]

Needs the repository's root on the path: tiny models and references are those of the integration tests.
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

MIB = 1 << 20
STEP_MODELS = (
    *("llama-3.2-1b", "qwen3-4b", "gemma-3-4b", "gpt-oss-20b", "qwen3-30b-a3b"),
    *("deepseek-v2-lite", "nemotron-nano-12b-v2"),  # latents; a hybrid
)
STEP_TOKENS = (512, 2048, 8192)
AUDIO_MODELS = ("qwen2-audio-7b", "qwen2.5-omni-7b", "gemma-4-e2b")
NEAR_TIE = 0.1  # of log-probabilities, in bf16


def on_cuda(loaded: Any) -> Any:
    return replace(loaded, model=copy.deepcopy(loaded.model).to("cuda"))


def check_tokens() -> Iterator[dict[str, Any]]:
    """Every family of the integration tests, in chunks and captured steps."""
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from tests.integration.test_engine import FAMILIES, family, greedy, prompts_of

    for name in FAMILIES:
        model = family(name)
        prompts = prompts_of([3, 45, 17, 30, 8, 61])
        wanted = [model.greedy(prompt, 12) for prompt in prompts]
        settings = EngineSettings(max_batch=4, max_batch_tokens=24, block_size=8)
        with Engine(on_cuda(model.loaded), kv_tokens=512, settings=settings, device="cuda") as engine:
            got = [list(one.tokens) for one in engine.generate(prompts, greedy(12))]
            left = engine.figures.blocks_held
        same = sum(one == other for one, other in zip(got, wanted, strict=True))
        yield {"check": "tokens", "case": name, "same": same, "of": len(wanted), "ok": same == len(wanted) and not left}


def check_drafts() -> Iterator[dict[str, Any]]:
    """Speculation changes no token in fp32, for every family."""
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from tests.integration.test_engine import FAMILIES, family, greedy, prompts_of
    from tests.integration.test_speculation import SPECULATES, remembering

    for name in FAMILIES:
        model = family(name)
        prompts = prompts_of([3, 45, 17, 30])
        wanted = [model.greedy(prompt, 18) for prompt in prompts]
        settings = EngineSettings(max_batch=4, max_batch_tokens=24, block_size=8, **SPECULATES)
        with Engine(on_cuda(model.loaded), kv_tokens=512, settings=settings, device="cuda") as engine:
            speculator = remembering(engine, {tuple(one): answer for one, answer in zip(prompts, wanted, strict=True)})
            got = [list(one.tokens) for one in engine.generate(prompts, greedy(18))]
            left = engine.figures.blocks_held
        same = sum(one == other for one, other in zip(got, wanted, strict=True))
        accepted = speculator.figures.accepted
        ok = same == len(wanted) and accepted > 0 and not left
        yield {"check": "drafts", "case": name, "same": same, "of": len(wanted), "accepted": accepted, "ok": ok}


def check_trained_drafts() -> Iterator[dict[str, Any]]:
    """The trained tiny model in bf16, with prompt lookup and with its draft model: only near-ties may differ."""
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from tests.gpu.near_ties import NEAR_TIE, gap
    from tests.integration.test_engine import greedy

    texts = [f"Repeat this: the {one} and the {other}" for one in ("cat", "dog") for other in ("park", "river", "road")]
    options = {"kv_tokens": 8192, "device": "cuda", "dtype": "bf16"}
    with Engine("brim-tiny", settings=EngineSettings(max_length=512), **options) as engine:
        plain = engine.generate(texts, greedy(32, logprobs=2))
    for speculate, draft in (("lookup", None), (None, "brim-tiny-draft")):
        settings = EngineSettings(max_length=512, speculate=speculate)
        with Engine("brim-tiny", draft=draft, settings=settings, **options) as engine:
            got = engine.generate(texts, greedy(32))
            figures = engine.figures.speculation
        gaps = [gap(one, other.tokens) for one, other in zip(plain, got, strict=True) if one.tokens != other.tokens]
        yield {
            "check": "drafts",
            "case": f"brim-tiny bf16, {draft or speculate}",
            "same": len(plain) - len(gaps),
            "of": len(plain),
            "largest_gap": max(gaps, default=0.0),  # of log-probabilities, where they part
            "accepted": figures.accepted,
            "ok": max(gaps, default=0.0) < NEAR_TIE and figures.accepted > 0,
        }


def check_images() -> Iterator[dict[str, Any]]:
    """Every vision-language family of the integration tests."""
    from brim.engine.engine import Engine
    from tests.integration.test_engine_vision import KINDS, answers_of, engine_of, prompts_of, run, tokens_of

    for kind in KINDS:
        wanted = list(answers_of(kind))
        host = engine_of(kind)
        loaded, settings = host.loaded, host.settings
        host.close()
        with Engine(on_cuda(loaded), kv_tokens=512, settings=settings, device="cuda") as engine:
            got = tokens_of(run(engine, prompts_of(kind)))
        same = sum(one == other for one, other in zip(got, wanted, strict=True))
        yield {"check": "images", "case": kind, "same": same, "of": len(wanted), "ok": same == len(wanted)}


def check_audio() -> Iterator[dict[str, Any]]:
    """Every family of the integration tests that takes audio, with images beside it; steps as large as stressed."""
    import torch

    from brim.engine.engine import Engine
    from tests.integration.test_engine_audio import KINDS, answers_of, engine_of, prompts_of, run, tokens_of

    for kind in KINDS:
        wanted = list(answers_of(kind))
        host = engine_of(kind)
        loaded, settings = host.loaded, replace(host.settings, max_length=256)
        host.close()
        with Engine(on_cuda(loaded), kv_tokens=512, settings=settings, device="cuda") as engine:
            got = tokens_of(run(engine, prompts_of(kind)))
            peaks = [_peak(engine, shape) for shape in engine.stress_shapes() if shape.name in ("image", "audio")]
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            run(engine, prompts_of(kind))
            peak = torch.cuda.max_memory_allocated() - before
        same = sum(one == other for one, other in zip(got, wanted, strict=True))
        ok = same == len(wanted) and peak <= max(peaks)
        yield {
            "check": "audio",
            "case": kind,
            "same": same,
            "of": len(wanted),
            "stressed_bytes": max(peaks),
            "served_bytes": peak,
            "ok": ok,
        }


def _peak(engine: Any, shape: Any) -> int:
    """The most that a worst step allocates at once; the first time it may load kernels."""
    import torch

    for _ in range(2):
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        engine.stress(shape)
    return int(torch.cuda.max_memory_allocated() - before)


def check_families() -> Iterator[dict[str, Any]]:
    """Every verified family against its own forward, by the check that other families get when they are loaded."""
    import torch

    from brim.engine.settings import EngineSettings
    from brim.engine.verify import agreement
    from brim.engine.weights.verified import VERIFIED
    from tests.integration.meta_models import known_types
    from tests.integration.test_verified import loaded_model
    from tests.integration.tiny_models import tiny_config

    for kind in sorted(VERIFIED & known_types()):
        for dtype in ("bf16", "fp32"):
            loaded = on_cuda(loaded_model(tiny_config(kind, tie_word_embeddings=False), dtype))
            gc.collect()
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated()
            found = agreement(loaded, EngineSettings(), torch.device("cuda"))
            gc.collect()
            left = torch.cuda.memory_allocated() - before
            yield {
                "check": "families",
                "case": f"{kind} {dtype}",
                "error": found.error,
                "own_error": found.own_error,
                "tolerance": found.tolerance,
                "left_bytes": left,  # what cuBLAS keeps once it has run is there from the first family on
                "ok": found.holds,
            }


def check_memory() -> Iterator[dict[str, Any]]:
    """`teardown` frees what `build` allocated: graphs, tables, kernels' scratch and all."""
    import torch

    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings

    for compiled in (False, True):
        settings = EngineSettings(max_batch=64, max_batch_tokens=2048, max_length=8192, compile=compiled)
        others = {segment["address"] for segment in torch.cuda.memory._snapshot()["segments"]}  # of earlier checks
        options = {"load_format": "dummy", "dtype": "bf16", "device": "cuda", "kv_tokens": 0}
        engine = Engine("llama-3.2-1b", settings=settings, **options)
        readings, segments = [], []
        reserved = torch.cuda.memory_reserved()
        for tokens in (65_536, 1_000_000, 65_536):
            engine.build(tokens)
            for shape in engine.stress_shapes():
                engine.stress(shape)
            segments += torch.cuda.memory._snapshot()["segments"]
            engine.teardown()
            gc.collect()
            torch.cuda.empty_cache()
            readings.append((torch.cuda.mem_get_info()[0], torch.cuda.memory_allocated()))
        lost = max(abs(free - readings[0][0]) for free, _ in readings)
        grown = readings[-1][1] - readings[0][1]
        kept = torch.cuda.memory_reserved() - reserved  # what a fit would see of it as a leak
        segments_grow = all(segment["is_expandable"] for segment in segments if segment["address"] not in others)
        yield {
            "check": "memory",
            "case": "compiled" if compiled else "eager",
            "driver_lost_bytes": lost,
            "allocated_grown_bytes": grown,
            "reserved_kept_bytes": kept,
            "segments_grow": segments_grow,
            "ok": lost <= 64 * MIB and grown == 0 and kept <= 192 * MIB and segments_grow,
        }
        del engine
        gc.collect()
        torch.cuda.empty_cache()


def check_steps() -> Iterator[dict[str, Any]]:
    """The peak of a full step of prompts against its trace, for models of real dimensions."""
    import torch

    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from brim.predictions import traced_steps
    from brim.records.memory import StressShape

    for name in STEP_MODELS:
        settings = EngineSettings(max_batch=64, max_batch_tokens=max(STEP_TOKENS), max_length=8192, graphs=False)
        engine = Engine(name, load_format="dummy", dtype="bf16", device="cuda", settings=settings, kv_tokens=32_768)
        for tokens in STEP_TOKENS:
            shape = StressShape("plain", tokens, 64)
            engine.stress(shape)
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            engine.stress(shape)
            measured = torch.cuda.max_memory_allocated() - before
            (predicted,) = traced_steps(engine, [shape])
            yield {
                "check": "steps",
                "case": f"{name} {tokens}",
                "measured_bytes": measured,
                "predicted_bytes": predicted,
                "error": predicted / measured - 1,
                "ok": measured <= 1.02 * predicted,
            }
        engine.close()
        del engine
        gc.collect()
        torch.cuda.empty_cache()


def check_encoders() -> Iterator[dict[str, Any]]:
    """Media through a process of its own: the text of inline, also after that process was killed."""
    from brim.engine.encoders.start import EncoderPlace, start_encoders
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings
    from brim.probes.nvml import device_uuid
    from tests.integration.test_encoders import MODEL, SETTINGS, family_of

    for kind in (MODEL, "qwen3_omni_moe_thinker"):
        with tempfile.TemporaryDirectory() as folder:
            family = family_of(kind, Path(folder) / "model")
            sizes = {**SETTINGS, "max_audio_seconds": 2}
            options: dict[str, Any] = {"kv_tokens": 1024, "device": "cuda", "dtype": "fp32"}
            with Engine(family.model, settings=EngineSettings(**sizes), **options) as engine:
                wanted = family.answers(engine)
            settings = EngineSettings(encoder="process", **sizes)
            place = EncoderPlace("cuda", device_uuid(0), "of a check")
            encoders = start_encoders(family.model, settings, (place,), load_format="auto", dtype="fp32", seed=0)
            with Engine(family.model, settings=settings, encoders=encoders, **options) as engine:
                assert engine.encoders is not None
                got = family.answers(engine)
                for shape in engine.stress_shapes():
                    engine.stress(shape)
                facts, shared = engine.encoders.facts, engine.encoders.on_device
                os.kill(engine.encoders.pids[0], signal.SIGKILL)
                engine.teardown()  # features and prefixes that are kept would need no encoder
                engine.build(1024)
                again = family.answers(engine)
                restarts = engine.encoders.figures.restarts
        same = sum(one == other for one, other in zip((*got, *again), (*wanted, *wanted), strict=True))
        yield {
            "check": "encoders",
            "case": kind,
            "same": same,
            "of": 2 * len(wanted),
            "restarts": restarts,
            "features_on_device": list(shared),
            "weight_bytes": facts.weight_bytes,
            "predicted_bytes": facts.predicted_bytes,
            "promised_bytes": facts.promised_bytes,
            "held_bytes": facts.held_bytes,
            "peak_bytes": facts.peak_bytes,
            "ok": same == 2 * len(wanted) and restarts == 1 and facts.held_bytes <= facts.promised_bytes,
        }


def check_towers() -> Iterator[dict[str, Any]]:
    """The longest audio through towers of real dimensions, with another's features alive, against its trace."""
    import torch

    from brim.engine.engine import Engine
    from brim.engine.media.towers import encode
    from brim.engine.settings import EngineSettings
    from brim.predictions import traced_audio

    for name in AUDIO_MODELS:
        settings = EngineSettings(max_batch=8, max_batch_tokens=2048, max_length=8192, graphs=False)
        engine = Engine(name, load_format="dummy", dtype="bf16", device="cuda", settings=settings, kv_tokens=16_384)
        longest, limits = engine.worst_audio(), engine.audio_limits
        with torch.inference_mode():
            encode(engine.loaded.model, longest)  # what is loaded at a first call stays
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            kept = encode(engine.loaded.model, longest)
            encode(engine.loaded.model, longest)
            measured = torch.cuda.max_memory_allocated() - before
            del kept
        predicted = traced_audio(engine)
        for shape in engine.stress_shapes():
            engine.stress(shape)
        yield {
            "check": "towers",
            "case": f"{name}, {limits.seconds:g} s",
            "tokens": longest.tokens,
            "measured_bytes": measured,
            "predicted_bytes": predicted,
            "error": predicted / measured - 1,
            "ok": measured <= 1.03 * predicted,
        }
        engine.close()
        del engine
        gc.collect()
        torch.cuda.empty_cache()


CHECKS: dict[str, Callable[[], Iterator[dict[str, Any]]]] = {
    "tokens": check_tokens,
    "drafts": check_drafts,
    "trained": check_trained_drafts,
    "images": check_images,
    "audio": check_audio,
    "encoders": check_encoders,
    "towers": check_towers,
    "families": check_families,
    "memory": check_memory,
    "steps": check_steps,
}


def main() -> None:
    from benchmarks.stamp import stamp

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=tuple(CHECKS), action="append")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    options = parser.parse_args()

    rows = []
    for name in options.only or CHECKS:
        started = time.perf_counter()
        for row in CHECKS[name]():
            row["seconds"] = round(time.perf_counter() - started, 2)
            started = time.perf_counter()
            rows.append(row)
            print("ok   " if row["ok"] else "WRONG", json.dumps(row), flush=True)
            if options.out:  # what was seen stays, also where time runs out
                found = {**stamp(options.commit), "rows": rows}
                options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    wrong = [row for row in rows if not row["ok"]]
    print(f"{len(rows) - len(wrong)} of {len(rows)} right")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
