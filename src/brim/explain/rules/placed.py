"""What a server was doing when an allocation was refused: frames of a traceback, and the last phase before it."""

from __future__ import annotations

from collections.abc import Iterator

from brim.explain.causes import MemoryCause, Suspicion
from brim.explain.facts import PHASES, Incident, RefusedAllocation, Seen, Sign
from brim.explain.rules import PLACED, SAID, USUAL, WEAK

_NEAR_LINES = 80  # between a refusal and a frame of its traceback

_AT_WORK = {
    Sign.SCORING: (MemoryCause.SCORED_PROMPTS, SAID, "it was computing log-probabilities of a prompt"),
    Sign.SAMPLING: (MemoryCause.SAMPLING, PLACED, "it was sampling"),
    Sign.MEDIA: (MemoryCause.MEDIA, PLACED, "it was encoding an image or audio"),
    Sign.DRAFTS: (MemoryCause.DRAFTS, PLACED, "it was drafting"),
    Sign.STEP: (MemoryCause.LARGE_STEP, PLACED, "the buffers of a step were refused"),
    Sign.WEIGHTS: (MemoryCause.WEIGHTS, SAID, "the buffer of the weights was refused"),
    Sign.CAPTURING: (MemoryCause.GRAPHS, PLACED, "graphs were being captured, after the pool was sized"),
    Sign.LOADING: (MemoryCause.WEIGHTS, PLACED, "weights were being loaded"),
    Sign.POOL_ALLOCATION: (MemoryCause.FRACTION, PLACED, "the KV pool was being allocated"),
    Sign.WARM_UP: (MemoryCause.LARGE_STEP, USUAL, "it was warming up with its largest step"),
}
_WITHOUT_REFUSAL = {Sign.STEP, Sign.SAMPLING, Sign.WEIGHTS}  # they are said only when something failed


def from_places(incident: Incident) -> Iterator[Suspicion]:
    """By what was at work around the first refusal."""
    for seen in incident.seen:
        if seen.sign not in _AT_WORK:
            continue
        refusal = _near(seen, incident)
        if refusal is None and seen.sign not in _WITHOUT_REFUSAL:
            continue
        cause, confidence, why = _AT_WORK[seen.sign]
        if seen.sign in PHASES and refusal is not None and _phase_after(seen, refusal, incident):
            continue  # a later phase was under way
        evidence = (seen.evidence,) if refusal is None else (seen.evidence, refusal.evidence)
        yield Suspicion(cause, confidence - (0.2 if refusal is None else 0.0), evidence, why)


def _near(seen: Seen, incident: Incident) -> RefusedAllocation | None:
    """The first refusal after it; one before it where it is a frame below the message or a late progress bar."""
    own = [one for one in incident.refusals if one.evidence.source == seen.evidence.source]
    line = seen.evidence.line
    after = next((one for one in own if one.evidence.line >= line), None)
    if after is not None and (seen.sign in PHASES or after.evidence.line - line <= _NEAR_LINES):
        return after
    return next((one for one in own if 0 <= line - one.evidence.line <= _NEAR_LINES), None)


def _phase_after(seen: Seen, refusal: RefusedAllocation, incident: Incident) -> bool:
    between = range(seen.evidence.line + 1, refusal.evidence.line)
    return any(
        other.sign in PHASES and other.sign is not seen.sign and other.evidence.line in between
        for other in incident.seen
        if other.evidence.source == seen.evidence.source
    )


def from_flags(incident: Incident) -> Iterator[Suspicion]:
    """What was switched on and is not counted by the engine's own sizing: the usual reason, where nothing is nearer."""
    if not incident.refusals:
        return
    first = incident.refusals[0]
    for names, cause, why in (
        (
            ("speculative_config", "speculative_model", "speculative_algorithm", "num_speculative_tokens"),
            MemoryCause.DRAFTS,
            "it speculates, and its sizing counts the target model's step",
        ),
        (
            ("limit_mm_per_prompt", "mm_processor_kwargs"),
            MemoryCause.MEDIA,
            "several images or videos of a prompt are encoded together",
        ),
        (("prompt_logprobs",), MemoryCause.SCORED_PROMPTS, "log-probabilities of prompts were asked for"),
    ):
        flag = incident.flag(*names)
        if flag is not None:
            yield Suspicion(cause, USUAL + 0.05, (flag.evidence, first.evidence), why)


def from_serving(incident: Incident) -> Iterator[Suspicion]:
    """A refusal while requests were served, and nothing that says more: its size decides."""
    serving = incident.first_seen(Sign.SERVING)
    for refusal in incident.refusals[:1]:
        tried, total = refusal.tried_bytes, refusal.total_bytes
        if serving is None or tried is None or serving.evidence.line > refusal.evidence.line:
            continue
        if total and tried < total // 500:
            why = "a small allocation was refused while serving: the device was full before the step"
            yield Suspicion(MemoryCause.FRACTION, USUAL, (refusal.evidence,), why)
        else:
            yield Suspicion(
                MemoryCause.LARGE_STEP, USUAL - 0.05, (refusal.evidence,), "a step was refused while serving"
            )


def from_fraction(incident: Incident) -> Iterator[Suspicion]:
    """A fraction at which hardly anything is left for what is not counted."""
    fraction = incident.last("fraction")
    if fraction is not None and fraction.value >= 0.95 and incident.refusals:
        why = f"{fraction.value:g} of the device was given away, and graphs, kernels and library workspaces come on top"
        yield Suspicion(MemoryCause.FRACTION, WEAK + 0.1, (fraction.evidence, incident.refusals[0].evidence), why)
