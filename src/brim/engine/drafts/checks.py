"""Whether a model can draft for another: refused with the reason where it cannot."""

from __future__ import annotations

from typing import Any

from brim.engine.weights.load import LoadedModel
from brim.errors import InvalidRequest
from brim.planning.engines.models import DRAFT_HAS_STATES, other_vocabulary, too_few_positions


def check_draft(
    draft: LoadedModel, model: LoadedModel, max_length: int, has_states: bool, tokenizers: tuple[Any, Any]
) -> None:
    """Refuse a draft of another vocabulary, of a shorter context, or with states that cannot go back.

    `tokenizers` are the draft's and the model's, None where there is none.
    """
    theirs, ours = (None if tokenizer is None else _words(tokenizer) for tokenizer in tokenizers)
    if theirs is not None and ours is not None and theirs != ours:
        raise InvalidRequest(
            f"draft: its tokenizer is another one ({_difference(theirs, ours)}); choose a draft that was trained with "
            "the model's tokenizer"
        )
    padded = theirs is not None and theirs == ours  # rows behind the last word, which no text has
    if draft.vocab != model.vocab and not padded:
        raise InvalidRequest(f"{other_vocabulary(draft.vocab, model.vocab)}; choose a draft of the same vocabulary")
    if draft.max_positions < max_length:
        raise InvalidRequest(too_few_positions(draft.max_positions, max_length, "max_length"))
    if has_states:
        raise InvalidRequest(DRAFT_HAS_STATES)


def _words(tokenizer: Any) -> dict[str, int] | None:
    """The words of a tokenizer with their ids, where it can tell."""
    get_vocab = getattr(tokenizer, "get_vocab", None)
    return None if get_vocab is None else get_vocab()


def _difference(theirs: dict[str, int], ours: dict[str, int]) -> str:
    if len(theirs) != len(ours):
        return f"{len(theirs)} words, and the model's has {len(ours)}"
    word = next(word for word in ours if theirs.get(word) != ours[word])
    return f"the word {word!r} is {theirs.get(word, 'not in it')}, and {ours[word]} in the model's"
