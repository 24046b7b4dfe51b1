"""Traces beside what a GPU really takes, for models of many families cut to a few layers.

    PYTHONPATH=src python tests/gpu/check_trace.py [--out FILE]

Run it once as it is and once with PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True. Prints a line per call and, last,
one JSON line. A script and not a test: it needs a GPU, which machines that run tests do not have.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from brim.model.catalogue import entries
from brim.planning.devices import find_device
from brim.records.trace import Phase, Trace, TraceShape
from brim.trace.build import build_model
from brim.trace.tower_calls import audio_inputs, find_tower, vision_inputs
from brim.trace.tracer import trace_model

# Models and how many layers of them: enough for every kind of layer to occur twice where it does.
MODELS = {
    "qwen3-0.6b": 28,
    "gemma-3-1b": 26,
    "gemma-2-2b": 8,
    "phi-2": 8,
    "phi-3.5-mini": 8,
    "olmo-2-7b": 4,
    "olmo-3-32b": 8,
    "glm-4-9b": 6,
    "glm-4.5-air": 3,
    "starcoder2-15b": 4,
    "granite-3.3-8b": 6,
    "minicpm3-4b": 8,
    "deepseek-v2-lite": 4,
    "nemotron-3-nano-30b": 8,
    "qwen3-next-80b": 4,
    "minimax-m2.7": 2,
    "llama-4-scout": 4,
    "gemma-4-e2b": 35,
    "lfm2.5-vl-1.6b": 16,
}
SHAPES = {
    "prefill2048": TraceShape(tokens=2048),
    "prefill8192": TraceShape(tokens=8192),
    "prefill2048_alllogits": TraceShape(tokens=2048, logit_rows=0),
    "prefill2048_kv": TraceShape(tokens=2048, keeps_kv=True),
    "prefill_b4x1024": TraceShape(tokens=1024, batch=4),
}


# Towers: the phase and its size. Few layers of the language model behind them.
TOWER_LAYERS = 6
TOWERS = {
    "gemma-4-12b": TraceShape(Phase.VISION, tokens=2304),
    "lfm2.5-vl-1.6b": TraceShape(Phase.VISION, tokens=1024, batch=4),
    "llama-4-scout": TraceShape(Phase.VISION, tokens=1, batch=8),
    "qwen2-vl-7b": TraceShape(Phase.VISION, tokens=4096),
    "qwen3-vl-4b": TraceShape(Phase.VISION, tokens=4096),
    "gemma-3-4b": TraceShape(Phase.VISION, tokens=1, batch=2),
    "qwen2-audio-7b": TraceShape(Phase.AUDIO, tokens=3000, batch=2),
}


def cut(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """A config with its first layers only."""
    text = dict(config.get("text_config", config))
    whole = text.get("num_hidden_layers") or text.get("n_layer")
    for name, value in text.items():
        if isinstance(value, list) and len(value) == whole:
            text[name] = value[:layers]
    text["num_hidden_layers"] = min(layers, whole)
    if isinstance(text.get("hybrid_override_pattern"), str):
        text["hybrid_override_pattern"] = text["hybrid_override_pattern"][:layers]
    return {**config, "text_config": text} if "text_config" in config else text


def on_gpu(config: dict[str, Any], attention: str) -> Any:
    model, _ = build_model(config, attention=attention)
    model = model.to_empty(device="cuda")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
        for buffer in model.buffers():
            buffer.zero_()
    return model


def measured(model: Any, shape: TraceShape) -> tuple[int, int]:
    """What a step of a language model takes."""
    ids = torch.randint(10, 1000, (shape.batch, shape.tokens), device="cuda")
    options: dict[str, Any] = {"use_cache": shape.keeps_kv}
    if shape.logit_rows:
        options["logits_to_keep"] = shape.logit_rows
    return peaks(lambda: model(input_ids=ids, **options))


def peaks(call: Callable[[], Any]) -> tuple[int, int]:
    """(allocated, reserved) growth of the second of two equal calls."""
    with torch.no_grad():
        for _ in range(2):
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
            result = call()
            torch.cuda.synchronize()
            after = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
            del result
    return after[0] - before[0], after[1] - before[1]


def real(tensor: torch.Tensor) -> torch.Tensor:
    """An input of a traced call, with values, on the GPU."""
    return torch.randn(tensor.shape, dtype=tensor.dtype, device="cuda") if tensor.is_meta else tensor.cuda()


def check_tower(name: str, shape: TraceShape, rows: list[dict[str, Any]], expandable: bool) -> None:
    config = cut(entries()[name].config, TOWER_LAYERS)
    meta, attention = build_model(config)
    traced = trace_model(meta, shape, name=name, attention=attention)
    tower = find_tower(on_gpu(config, attention), shape.phase)
    made = vision_inputs(tower, shape) if shape.phase is Phase.VISION else audio_inputs(tower, shape)
    inputs = {key: real(value) for key, value in made.items()}
    report(rows, name, TOWER_LAYERS, attention, str(shape.phase), traced, peaks(lambda: tower(**inputs)), expandable)


def check(name: str, layers: int, rows: list[dict[str, Any]], expandable: bool) -> None:
    config = cut(entries()[name].config, layers)
    meta, attention = build_model(config)
    model = on_gpu(config, attention)
    for phase, shape in SHAPES.items():
        found = trace_model(meta, shape, name=name, attention=attention)
        report(rows, name, layers, attention, phase, found, measured(model, shape), expandable)


def report(
    rows: list[dict[str, Any]],
    name: str,
    layers: int,
    attention: str,
    phase: str,
    found: Trace,
    taken: tuple[int, int],
    expandable: bool,
) -> None:
    """Keep and print what was traced beside what was taken."""
    allocated, reserved = taken
    predicted = found.reserved_bytes if expandable else found.reserved_default_bytes
    rows.append(
        {
            "model": name,
            "layers": layers,
            "attention": attention,
            "phase": phase,
            "allocated_bytes": allocated,
            "traced_bytes": found.peak_bytes,
            "reserved_bytes": reserved,
            "traced_reserved_bytes": predicted,
        }
    )
    wrong = predicted / reserved - 1 if reserved else float("nan")
    size, error = f"{allocated / 2**20:10.1f} MiB", found.peak_bytes / allocated - 1
    print(f"{name:22} {phase:22} {attention:6} {size} {error:+9.4%} reserved {wrong:+7.2%}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    expandable = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    device = find_device("auto")
    print(f"{device.name}: {device.total_bytes >> 20} MiB, {device.neighbour_bytes >> 20} MiB in use", flush=True)
    warm = torch.ones((256, 256), device="cuda", dtype=torch.bfloat16)
    warm = warm @ warm  # the first product makes the matmul workspace, which stays: in front of the weights
    del warm
    rows: list[dict[str, Any]] = []
    failed = {}
    work: list[tuple[str, Callable[[], None]]] = [
        *((name, partial(check_tower, name, shape, rows, expandable)) for name, shape in TOWERS.items()),
        *((name, partial(check, name, layers, rows, expandable)) for name, layers in MODELS.items()),
    ]
    for name, one in work:
        try:
            one()
        except Exception as error:  # noqa: BLE001 - the others are still to be measured; failures are reported below
            failed[name] = f"{type(error).__name__}: {str(error)[:200]}"
            traceback.print_exc(limit=3)
        gc.collect()
        torch.cuda.empty_cache()
    errors = sorted(abs(row["traced_bytes"] / row["allocated_bytes"] - 1) for row in rows)
    print(f"{sum(error <= 0.001 for error in errors)} of {len(errors)} calls within 0.1 %, failed: {failed}")
    result = {
        "device": torch.cuda.get_device_name(),
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "python": platform.python_version(),
        },
        "commit": arguments.commit,
        "expandable_segments": expandable,
        "rows": rows,
        "failed": failed,
    }
    if arguments.out:
        arguments.out.write_text(json.dumps(result) + "\n")
    print(json.dumps({key: value for key, value in result.items() if key != "rows"}))


if __name__ == "__main__":
    main()
