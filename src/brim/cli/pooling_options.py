"""What a model is served for, and the engine of one that embeds or scores: for `brim serve` and `brim fit`."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from brim.errors import InvalidRequest
from brim.model.tasks import ModelTask
from brim.units import parse_count

if TYPE_CHECKING:
    from brim.cli.engine_options import EnginePlace
    from brim.engine.pooling.engine import PoolingEngine
    from brim.records.fit import FitReport
    from brim.records.progress import Progress, Told

BATCH_TOKENS, CPU_BATCH_TOKENS = "16384", "2048"  # where nothing was said
_AUTO = "auto"
_WISHES = ("memory_fraction", "canary_bytes", "keep_free_bytes", "store")
_NO_PLACE = ("draft", "speculate", "encoder_gpus")  # what generates, or shows images, and is asked for by name


def add_task_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--task",
        default=_AUTO,
        choices=(_AUTO, *ModelTask),
        help="what the model is served for: answers, embeddings, or scores of pairs (auto: what its files say)",
    )
    parser.add_argument(
        "--matryoshka",
        action="store_true",
        help="embeddings may be cut to the `dimensions` of a request, though the model's files do not say so",
    )


def find_pooling_task(options: argparse.Namespace, told: Told) -> ModelTask | None:
    """What the model is for, where that is not to generate; one of the hub is downloaded for it."""
    if options.task != _AUTO:
        return None if options.task == ModelTask.GENERATE else ModelTask(options.task)
    from brim.engine.pooling.loading import task_of
    from brim.engine.weights.builtin import BUILTIN_NAME

    if options.model == BUILTIN_NAME:
        return None
    found = task_of(options.model, options.load_format, told)
    return None if found is ModelTask.GENERATE else found


def make_pooling_engine(
    options: argparse.Namespace, task: ModelTask, place: EnginePlace, probe: Any, progress: Progress
) -> PoolingEngine:
    """The engine that the options describe, loaded and not built."""
    from brim.engine.pooling.engine import PoolingEngine, PoolingSettings
    from brim.engine.pooling.loading import PoolingSource

    _check(options, task)
    tokens = options.batch_tokens or (BATCH_TOKENS if place.budget_bytes is None else CPU_BATCH_TOKENS)
    source = PoolingSource(
        options.model,
        task,
        options.load_format,
        options.dtype,
        place.device or "cuda:0",
        parse_count(options.max_len, "max-len") if options.max_len else None,
        options.matryoshka,
    )
    settings = PoolingSettings(options.max_seqs, parse_count(tokens, "batch-tokens"))
    return PoolingEngine(source, settings=settings, probe=probe, progress=progress)


def unused_options(options: argparse.Namespace) -> tuple[str, ...]:
    """Sizes of a KV cache, which such a model has not: a plan's command may have them."""
    return tuple(
        f"--{name.replace('_', '-')} has no effect: a model that embeds or scores has no KV cache"
        for name, default in (("kv_tokens", None), ("kv_dtype", "auto"))
        if getattr(options, name) != default
    )


def fit_pooling(
    engine: PoolingEngine, probe: Any, wishes: dict[str, Any], neighbours: Any, progress: Progress
) -> FitReport:
    from brim.batch_fit import fit_batches

    given = {name: wishes[name] for name in _WISHES}
    return fit_batches(engine, probe=probe, neighbours=neighbours, progress=progress, **given)


def _check(options: argparse.Namespace, task: ModelTask) -> None:
    if options.tp > 1:
        raise InvalidRequest(f"tp is {options.tp}; a model that is served to {task} runs on one GPU")
    for name in _NO_PLACE:
        if getattr(options, name, None):
            option = name.replace("_", "-")
            raise InvalidRequest(f"{option}: the model is served to {task}, which needs none; leave it out")
