"""Models that Brim's engine refuses when it loads them: quantised checkpoints, and drafts that cannot draft for one.

The engine imports its words from here, so that a plan refuses with the same ones. A plan knows no tokenizers: padding
makes the vocabularies of one tokenizer differ, so that a draft of another size is a note and no refusal.
"""

from __future__ import annotations

from brim.errors import InvalidRequest
from brim.planning.engines.record import EngineRules
from brim.records.model import ModelSpec

DRAFT_HAS_STATES = (
    "draft: it has recurrent layers, whose states cannot go back behind a rejected token; choose a draft with "
    "attention only"
)


def is_quantised(model: str, method: str) -> str:
    return f"{model}: its weights are in a quantised format ({method[:40]}), which Brim's engine does not run yet"


def other_vocabulary(draft: int, model: int) -> str:
    return f"draft: its vocabulary has {draft} tokens and the model's {model}"


def too_few_positions(draft: int, max_len: int, option: str) -> str:
    return (
        f"draft: it was made for {draft} positions and requests may have {max_len}; choose one with a longer context, "
        f"or lower {option} to {draft}"
    )


def check_models(
    engine: EngineRules, spec: ModelSpec, draft: ModelSpec | None, *, as_stored: bool, max_len: int | None
) -> None:
    """Refuse models that the engine would not load. `as_stored`: the weights are planned as the checkpoint has them."""
    if engine.plain_only:
        for one in (spec, draft):
            if one is not None and one.quantisation is not None and (as_stored or one is draft):
                remedy = (
                    "leave out engine or name another, or plan with weights bf16" if one is spec else "choose another"
                )
                raise InvalidRequest(f"{is_quantised(one.name, one.quantisation.method)}; {remedy}")
    if draft is None or not engine.strict_drafts:
        return
    if max_len is not None and max_len > draft.max_positions:
        raise InvalidRequest(too_few_positions(draft.max_positions, max_len, "max-len"))
    if any(layer.state for layer, _ in draft.layer_groups):
        raise InvalidRequest(DRAFT_HAS_STATES)


def draft_notes(engine: EngineRules, spec: ModelSpec, draft: ModelSpec | None) -> list[str]:
    """What a plan cannot tell of a draft."""
    if draft is None or not engine.strict_drafts or draft.vocab == spec.vocab:
        return []
    return [f"{other_vocabulary(draft.vocab, spec.vocab)}: {engine.name} refuses it if their tokenizers differ"]
