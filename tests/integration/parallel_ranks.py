"""What the ranks of `test_engine_parallel` do in processes of their own: each reports what it found or was told."""

from __future__ import annotations

import gc
import os
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from tests.integration.tiny_models import tiny_config, tiny_model

PROMPTS = [[7 + step * place % 113 for step in range(length)] for place, length in enumerate((3, 17, 40), 1)]
TOKENS = 7


@dataclass(frozen=True, slots=True)
class Case:
    """A model, and how its requests are to be answered."""

    kind: str
    changes: tuple[tuple[str, Any], ...] = ()
    temperature: float = 0.0
    source: str = "memory"  # or a folder, or "config" for random weights
    speculate: str | None = None

    def __str__(self) -> str:
        return "-".join([self.kind, *(f"{name}={value}" for name, value in self.changes), f"t={self.temperature:g}"])


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an engine made of a case."""

    tokens: tuple[tuple[int, ...], ...]
    kv_bytes: int
    weight_bytes: int
    drafted: int = 0  # tokens
    scores: tuple[float, ...] = ()  # of prompts, and logits that were kept of the answers


def make_engine(case: Case, tensor_parallel: bool) -> Any:
    from brim.engine.engine import Engine
    from brim.engine.settings import EngineSettings

    model, options = _loaded(case), {}
    if case.source == "config":
        model, options = tiny_config(case.kind, **dict(case.changes)), {"load_format": "dummy"}
    elif case.source != "memory":
        model = case.source
    return Engine(
        model,
        kv_tokens=256,
        settings=EngineSettings(max_batch=4, max_batch_tokens=24, block_size=8, speculate=case.speculate),
        device="cpu",
        dtype="fp32",
        tensor_parallel=tensor_parallel,
        **options,
    )


def _loaded(case: Case) -> Any:
    from brim.engine.ranks.sharding import local_bytes
    from brim.engine.weights.load import LoadedModel

    model = tiny_model(case.kind, seed=1, **dict(case.changes))
    text = model.config.get_text_config()
    return LoadedModel(
        model=model,
        config=text,
        full_config=model.config,
        vocab=text.vocab_size,
        max_positions=512,
        eos_ids=(),
        weight_bytes=local_bytes(model),
        folder=None,
        seconds=0.0,
    )


def answer(case: Case, tensor_parallel: bool) -> Outcome:
    from brim.engine.requests.params import SamplingParams

    engine = make_engine(case, tensor_parallel)
    params = SamplingParams(
        max_tokens=TOKENS, temperature=case.temperature, ignore_eos=True, prompt_logprobs=2, top_k_logits=3
    )
    completions = engine.generate(PROMPTS, params)
    scores = tuple(score for one in completions for score in _scores(one))
    figures = engine.figures
    engine.teardown()
    drafted = 0 if figures.speculation is None else figures.speculation.proposed
    return Outcome(
        tuple(tuple(one.tokens) for one in completions), figures.kv_bytes, figures.weight_bytes, drafted, scores
    )


def _scores(one: Any) -> Iterator[float]:
    for each in one.prompt_logprobs:
        yield from (each.logprob, *(value for _, value in each.top))
    yield from one.top_logits.logits.flatten().tolist()
    yield from one.top_logits.log_normaliser.tolist()


def answer_all(rank: int, cases: list[Case]) -> dict[Case, Outcome | str]:
    from brim.errors import InputError

    found: dict[Case, Outcome | str] = {}
    for case in cases:
        try:
            found[case] = answer(case, tensor_parallel=True)
        except InputError as error:
            found[case] = str(error)
    return found


def with_deadline(rank: int) -> tuple[str, int]:
    """Clocks of ranks are never quite the same, and yet a deadline falls into the same step on all of them."""
    from brim.engine.requests.params import SamplingParams

    engine = make_engine(Case("llama"), tensor_parallel=True)
    engine.submit([5, 6, 7], SamplingParams(max_tokens=400, ignore_eos=True), deadline_seconds=0.2)
    said = []
    while not engine.idle:
        said += [update.completion for update in engine.step() if update.completion is not None]
    engine.teardown()
    return str(said[0].finish_reason), len(said[0].tokens)


def disagree(rank: int) -> str:
    """Rank 1 is given another prompt."""
    from brim.errors import InvalidRequest

    engine = make_engine(Case("llama"), tensor_parallel=True)
    engine.submit([5, 6, 7 + rank])
    try:
        engine.step()
    except InvalidRequest as error:
        return str(error)
    return "nothing was said"


def late(rank: int, meeting: str) -> str:
    """Rank 1 comes no further. The group is a new one that waits for three seconds."""
    import torch

    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2, timeout=timedelta(seconds=3)
    )
    return lost(rank, lambda: time.sleep(6))


def dead(rank: int, meeting: str) -> str:
    """Rank 1 dies, in a new group that would wait for long."""
    import torch

    torch.distributed.destroy_process_group()
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
    return lost(rank, lambda: os._exit(3))


def lost(rank: int, end: Callable[[], None]) -> str:
    """What rank 0 says when rank 1 ends between two steps."""
    from brim.errors import DeviceError

    engine = make_engine(Case("llama"), tensor_parallel=True)
    engine.submit([5, 6, 7])
    engine.step()
    if rank == 1:
        end()
        return "came too late"
    try:
        engine.step()
    except DeviceError as error:
        return str(error)
    return "nothing was said"


def run(rank: int, size: int, port: int, reports: Any, tasks: list[tuple[Any, ...]]) -> None:
    """A rank: do the tasks (a name and its arguments), and report of each."""
    import torch

    gc.freeze()  # all that was imported: collecting takes most of a small engine's time otherwise
    torch.set_num_threads(1)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(size),
        LOCAL_WORLD_SIZE=str(size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    for name, *arguments in tasks:
        try:
            reports.send((name, globals()[name](rank, *arguments)))
        except BaseException:
            reports.send((name, traceback.format_exc()))
            raise
