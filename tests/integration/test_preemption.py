"""Preempted requests with models: the same answers, token for token, whether their blocks are kept or not."""

from __future__ import annotations

import argparse
import random
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from brim.cli.engine_options import add_engine_options, engine_settings
from brim.engine.engine import Engine
from brim.engine.injection import failing_launches
from brim.engine.requests.params import SamplingParams
from brim.engine.run.host_memory import HostMemory
from brim.engine.schedule.audit import scheduler_problems
from brim.engine.schedule.host_copies import PreemptionFigures
from brim.engine.schedule.plan import StepPlan
from brim.engine.settings import EngineSettings
from brim.errors import DeviceError, InvalidRequest
from brim.guard.preemption import PreemptionRates
from brim.probes.cpu import CpuProbe
from tests.integration.test_engine import (
    EAGER,
    FAMILIES,
    drawn,
    family,
    greedy,
    nothing_is_held,
    prompts_of,
)

GIB = 2**30
CHEAP = PreemptionRates(out_bytes=10**12, back_bytes=10**12, prefill_tokens=1)  # whatever this machine measures
# Dense, windows, windows with lent layers, two kinds of hybrids, MLA latents.
NAMES = ("llama", "gemma3_text", "gemma4_text, shared KV", "qwen3_next", "nemotron_h", "deepseek_v3")


def kinds_of(numbers: random.Random, number: int) -> SamplingParams:
    """Everything that a request keeps between its steps: penalties, scores, several answers."""
    return numbers.choice(
        [
            greedy(numbers.randrange(8, 30)),
            drawn(numbers.randrange(8, 30), number, n=2),
            drawn(20, number, presence_penalty=1.0, repetition_penalty=1.2),
            greedy(12, prompt_logprobs=2, logprobs=2),
        ]
    )


def answers_of(engine: Engine, prompts: list[list[int]], params: list[SamplingParams]) -> list[Any]:
    found = engine.generate(prompts, params)
    assert nothing_is_held(engine)
    assert scheduler_problems(engine.loop.scheduler) == []
    return [(one.tokens, one.finish_reason, len(one.logprobs), len(one.prompt_logprobs)) for one in found]


def keeping(engine: Engine) -> Engine:
    engine.loop.scheduler.host_copies.rates = CHEAP
    return engine


def compare(name: str, seed: int, **settings: Any) -> PreemptionFigures:
    """A random load in a pool that holds all of it, and in one that does not."""
    numbers = random.Random(f"{name} {seed}")
    shared = prompts_of([16], seed=seed)[0]
    tails = prompts_of([numbers.randrange(1, 30) for _ in range(5)], seed=seed + 1)
    prompts = [[*shared, *tail] if numbers.random() < 0.3 else tail for tail in tails]
    params = [kinds_of(numbers, number) for number in range(len(prompts))]
    chosen = {"max_batch": 6, "max_batch_tokens": numbers.choice([16, 33]), **EAGER, **settings}
    with family(name).engine(1024, host_memory=0, **chosen) as engine:
        wanted = answers_of(engine, prompts, params)
        assert engine.figures.preemptions == 0
    room = numbers.choice([None, 2**14, 2**22])
    with family(name).engine(96, host_memory=room, overlap=numbers.random() < 0.7, **chosen) as engine:
        assert answers_of(keeping(engine), prompts, params) == wanted
        return engine.figures.preemption


@pytest.mark.parametrize(("name", "kv_dtype"), [*((name, "auto") for name in NAMES), ("gemma3_text", "fp8")])
def test_answers_are_those_of_an_unpreempted_run(name: str, kv_dtype: str) -> None:
    figures = compare(name, seed=1, kv_dtype=kv_dtype)
    assert figures.copied_back > 0
    assert figures.held_bytes == 0


@pytest.mark.soak
@pytest.mark.parametrize("name", FAMILIES)
def test_the_same_of_every_family(name: str) -> None:
    figures = [compare(name, seed, kv_dtype=("auto", "fp8")[seed % 2]) for seed in range(10, 30)]
    assert sum(one.copied_back for one in figures) > 5
    assert sum(one.back_bytes for one in figures) > 0


def preempted_engine(**settings: Any) -> tuple[Engine, str]:
    """An engine in which one request runs and another one waits, with its blocks in host memory."""
    engine = keeping(family("llama").engine(56, max_batch=2, **EAGER, **settings))
    names = [engine.submit(prompt, greedy(30)) for prompt in prompts_of([9, 8], seed=3)]
    while not engine.figures.preemption.held_bytes:
        engine.step()
    return engine, names[1]


def test_cancelling_frees_what_is_kept_at_once() -> None:
    engine, waiting = preempted_engine()
    with engine:
        engine.cancel(waiting)
        figures = engine.figures.preemption
        assert (figures.kept, figures.dropped, figures.held_bytes) == (1, 1, 0)


def test_host_memory_is_not_memory_of_the_device() -> None:
    """On a budget of the CPU the arena is what it is beside a GPU: something else."""
    budget = CpuProbe(GIB)
    with family("llama").engine(56, probe=budget, host_memory=2 * GIB) as engine:
        with_it = budget.reading().allocated_bytes
        assert engine.figures.preemption.host_bytes == 2 * GIB
    with family("llama").engine(56, probe=budget, host_memory=0):
        assert budget.reading().allocated_bytes == with_it


def test_a_torn_down_engine_has_given_it_back() -> None:
    engine, _ = preempted_engine()
    memory = engine.model.runner.host_memory
    assert memory is not None
    engine.teardown()
    assert engine.model.runner.host_memory is None
    assert memory._arena.numel() == 0
    engine.build(56)
    assert engine.figures.preemption == replace(
        PreemptionFigures(), host_bytes=engine.figures.preemption.host_bytes, rates=engine.figures.preemption.rates
    )
    engine.close()


def test_rates_are_measured_once() -> None:
    with family("llama").engine(56) as engine:
        first = engine.figures.preemption.rates
        assert first is not None
        engine.teardown()
        engine.build(256)
        assert engine.figures.preemption.rates == first


@pytest.mark.parametrize("error", [DeviceError("pinning failed"), torch.OutOfMemoryError("the step was refused")])
def test_host_memory_that_cannot_be_had_costs_nothing_but_time(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise error

    monkeypatch.setattr(HostMemory, "rates", refuse)
    with family("llama").engine(96, max_batch=6, **EAGER) as engine:
        prompts = prompts_of([20, 21, 22], seed=1)
        got = [list(one.tokens) for one in engine.generate(prompts, greedy(20))]
        assert got == [family("llama").greedy(prompt, 20) for prompt in prompts]
        assert engine.figures.preemption.recomputed > 0
        (warning,) = engine.warnings
        assert warning.startswith("preempted requests are recomputed: no ")
        assert str(error) in warning


def test_nothing_is_set_aside_where_nobody_is_preempted() -> None:
    with family("llama").engine(96, admission="worst") as engine:
        assert engine.figures.preemption == PreemptionFigures()


def test_a_step_that_runs_out_of_memory_loses_no_copy() -> None:
    """While one request waits in host memory, a step fails and is rescued; an audit finds all in its place."""
    engine, _ = preempted_engine()
    with engine:
        failed: list[bool] = []

        def fails_once(plan: StepPlan) -> None:
            if not failed:
                failed.append(True)
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB: injected")

        with failing_launches(engine, fails_once):
            done = {}
            while not engine.idle:
                done |= {one.request_id: one.completion for one in engine.step() if one.completion is not None}
        wanted = [family("llama").greedy(prompt, 30) for prompt in prompts_of([9, 8], seed=3)]
        assert [list(done[name].tokens) for name in sorted(done)] == wanted
        assert (engine.health.rescues, engine.health.rebuilds) == (1, 0)
        assert engine.figures.preemption.copied_back >= 1


def test_a_wrong_size_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="host_memory is -1; it must be an integer from 0 to"):
        EngineSettings(host_memory=-1)


def test_the_option_is_a_size() -> None:
    parser = argparse.ArgumentParser()
    add_engine_options(parser)
    asked = {text: engine_settings(parser.parse_args(text.split())).host_memory for text in ("", "--host-memory 0")}
    assert asked == {"": None, "--host-memory 0": 0}
    assert engine_settings(parser.parse_args(["--host-memory", "2GiB"])).host_memory == 2 * GIB
    with pytest.raises(InvalidRequest, match="host-memory 'much' is not a size"):
        engine_settings(parser.parse_args(["--host-memory", "much"]))
