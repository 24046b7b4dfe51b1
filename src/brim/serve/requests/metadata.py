"""`metadata`: a client's own notes on a request, which an answer of `/v1/responses` repeats. Bounded as OpenAI does."""

from __future__ import annotations

from brim.serve.problems import invalid
from brim.serve.requests.fields import RequestFields
from brim.surrogates import half_pair_at

MOST_PAIRS = 16
KEY_LENGTH = 64
VALUE_LENGTH = 512


def read_metadata(fields: RequestFields) -> dict[str, str]:
    notes = fields.inner("metadata")
    pairs: dict[str, object] = {} if notes is None else fields.raw("metadata")
    if len(pairs) > MOST_PAIRS:
        raise invalid("metadata", f"it has {len(pairs)} pairs; at most {MOST_PAIRS} may be given")
    return {
        _text(key, "key", KEY_LENGTH): _text(value, f"value of {key!r}", VALUE_LENGTH) for key, value in pairs.items()
    }


def _text(found: object, said: str, longest: int) -> str:
    if not isinstance(found, str):
        raise invalid("metadata", f"a {said} must be a string", "invalid_type")
    if len(found) > longest:
        raise invalid("metadata", f"a {said:.100} has {len(found)} characters; at most {longest} are kept")
    if half_pair_at(found) is not None:
        raise invalid("metadata", f"a {said:.100} has half of a surrogate pair; send text")
    return found
