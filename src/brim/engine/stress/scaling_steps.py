"""The few steps from which memory scaling is learned, for an engine of these settings.

The decoder is measured with a small and a full step that draw one token; the sampler with batches of decodes, and of
prompts of one token, up to the largest batch; and one step has many tokens and rows, to see what of its tokens is alive
while it draws. A decode step may replay a graph, whose logits are held already; one with prompts never does. Recurrent
layers need the most for chunks of equal length that have a past: many, each with a state; two long ones; or such that
are one token longer than what a scan computes at once, and padded to twice that. Their steps are measured in all three
forms. Where tokens are drafted, the largest step with drafts has more rows than any other, and is measured too. A step
between the others is held back to check what was learned.

On the CPU attention copies a request's keys and values: there, prefill steps run at the longest context.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from brim.engine.recurrent.mixers import CHUNK_ROWS
from brim.engine.recurrent.scans.delta_rule import CHUNK_TOKENS as DELTA_TOKENS
from brim.engine.recurrent.scans.mamba2 import CHUNK_TOKENS as MAMBA_TOKENS
from brim.engine.recurrent.states import recurrent_mixers
from brim.engine.run.sampling.sampler import ROWS_AT_ONCE
from brim.engine.settings import EngineSettings
from brim.engine.stress.text import ALIKE, DECODE, PREFILL
from brim.engine.stress.verifying import VERIFY, most_rows
from brim.records.memory import StressShape
from brim.records.scaling import ScalingStep, ScalingSteps, StepPhase, StepShape

_SMALL_SHARE = 4  # the small step is a quarter of a full one


def scaling_steps(
    settings: EngineSettings, max_length: int, alike: int | None = None, scan_tokens: int | None = None
) -> ScalingSteps:
    """`alike` is as in `brim.engine.stress.text.text_shapes`; `scan_tokens` is what a scan computes at once."""
    full = min(settings.max_batch_tokens, settings.max_batch * (max_length - 1))
    rows = min(settings.max_batch, full)
    slice_tokens = None if alike is None else min(full, alike * min(settings.max_batch, CHUNK_ROWS))
    small = max(full // _SMALL_SHARE, min(2 * rows, full))
    if slice_tokens is not None and slice_tokens < full:
        small = slice_tokens
    steps = []
    for tokens in sorted({small, full}):
        if alike is None:
            steps.append(_step(StepPhase.PREFILL, PREFILL, tokens, 1, settings))
        else:
            forms = equal_chunks(tokens, settings, max_length, alike, scan_tokens)
            steps += [_step(StepPhase.PREFILL, ALIKE, form.tokens, form.sequences, settings) for form in forms]
    for count in _batches(rows):
        steps += [_step(StepPhase.NEXT_TOKEN, name, count, count, settings) for name in (PREFILL, DECODE)]
    drafted = most_rows(settings, max_length)
    if drafted > rows:
        step = _step(StepPhase.NEXT_TOKEN, VERIFY, drafted, settings.max_drafted, settings)
        steps.append(replace(step, shape=replace(step.shape, batch=drafted)))
    if small > rows:
        steps.append(_step(StepPhase.NEXT_TOKEN, PREFILL, small, rows, settings))
    between = _step(StepPhase.PREFILL, PREFILL, (small + full) // 2, max(1, rows // 2), settings)
    return ScalingSteps((*steps, replace(between, held_back=True)), slice_tokens, ROWS_AT_ONCE)


def most_scan_tokens(backbone: Any) -> int | None:
    """The most tokens that a scan of this model computes at once; None without recurrent layers."""
    sizes = [min(getattr(module, "chunk_size", DELTA_TOKENS), MAMBA_TOKENS) for module in recurrent_mixers(backbone)]
    return max(sizes, default=None)


def equal_chunks(
    tokens: int, settings: EngineSettings, max_length: int, alike: int, scan_tokens: int | None
) -> list[StressShape]:
    """The forms of a step of so many tokens for which recurrent layers need the most."""
    longest = (max_length - 1) // 2  # as much has been computed before
    wanted = {alike, tokens // 2, (scan_tokens or alike) + 1}
    shapes = []
    for length in sorted({max(1, min(length, longest, tokens)) for length in wanted}):
        count = max(1, min(settings.max_batch, tokens // length))
        shapes.append(StressShape(ALIKE, count * length, count, "chunks of equal length"))
    return shapes


def _batches(rows: int) -> list[int]:
    """A few, the sampler's slice, and all."""
    sliced = min(rows, ROWS_AT_ONCE)
    return sorted({max(1, sliced // _SMALL_SHARE), sliced, rows})


def _step(phase: StepPhase, name: str, tokens: int, sequences: int, settings: EngineSettings) -> ScalingStep:
    """A step of prompts that all draw a token, or of decodes."""
    return ScalingStep(
        StressShape(name, tokens, sequences, "scaling"),
        StepShape(phase, sequences, tokens),
        pool_tokens=tokens + sequences * settings.block_size,
    )
