"""Answers of `/v1/embeddings`, `/v1/score` and `/v1/rerank`, in pieces: two thousand embeddings are some 40 MB of JSON.

In: vectors as the engine made them, and what a request wants of them. Out: the bytes of a body, piece by piece, so that
whoever writes them lets others run in between.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from brim.serve.problems import SERVER, Problem

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
Vectors = Sequence[np.ndarray]


def usage(tokens: int) -> dict[str, Any]:
    return {"prompt_tokens": tokens, "total_tokens": tokens, "completion_tokens": 0, "prompt_tokens_details": None}


def normalised(vector: np.ndarray) -> np.ndarray:
    """With a length of 1."""
    return vector / max(float(np.linalg.norm(vector)), 1e-12)


def finished(vector: np.ndarray, dimensions: int | None, normalise: bool) -> np.ndarray:
    """An embedding as it was asked for: cut, and of length 1."""
    cut = vector[:dimensions]
    return (normalised(cut) if normalise else cut).astype(np.float32)


def cosine(first: np.ndarray, second: np.ndarray) -> float:
    return float(normalised(first) @ normalised(second))


def probability(logit: float) -> float:
    """A sigmoid that does not overflow."""
    return float(0.5 * (1 + np.tanh(0.5 * np.float64(logit))))


@dataclass(frozen=True, slots=True)
class VectorCoding:
    """How an embedding is written: as numbers, or in base64 of floats of a type and an order of bytes."""

    base64: bool = False
    dtype: str = "float32"
    endianness: str = "native"

    def written(self, vector: np.ndarray) -> Any:
        return base64.b64encode(self._bytes(vector)).decode() if self.base64 else vector.tolist()

    def _bytes(self, vector: np.ndarray) -> bytes:
        order = {"native": "=", "little": "<", "big": ">"}[self.endianness]
        if self.dtype == "bfloat16":  # the upper half of a float, rounded to the nearest even one
            bits = vector.astype(np.float32).view(np.uint32).astype(np.uint64)
            halves = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
            return halves.astype(f"{order}u2").tobytes()
        return vector.astype(f"{order}f{2 if self.dtype == 'float16' else 4}").tobytes()


def embeddings_pieces(model: str, vectors: Vectors, tokens: int, coding: VectorCoding) -> Iterator[bytes]:
    head = {"id": f"embd-{secrets.token_hex(12)}", "object": "list", "created": int(time.time()), "model": model}
    yield _dumped(head)[:-1] + b',"data":['
    for index, vector in enumerate(vectors):
        found = {"object": "embedding", "index": index, "embedding": coding.written(vector)}
        yield (b"," if index else b"") + _dumped(found)
    yield b'],"usage":' + _dumped(usage(tokens)) + b"}"


def score_answer(model: str, scores: Sequence[float], tokens: int) -> dict[str, Any]:
    return {
        "id": f"score-{secrets.token_hex(12)}",
        "object": "list",
        "created": int(time.time()),
        "model": model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": usage(tokens),
    }


def rerank_answer(
    model: str, scores: Sequence[float], tokens: int, documents: Sequence[str] | None, top: int | None
) -> dict[str, Any]:
    """The best first; `documents` are repeated where there are any."""
    order = sorted(range(len(scores)), key=lambda index: -scores[index])[: top or None]
    return {
        "id": f"rerank-{secrets.token_hex(12)}",
        "model": model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": [
            {
                "index": index,
                **({} if documents is None else {"document": {"text": documents[index]}}),
                "relevance_score": scores[index],
            }
            for index in order
        ],
    }


def check_finite(vectors: Vectors) -> None:
    """JSON has no word for what is no number."""
    if not all(bool(np.isfinite(one).all()) for one in vectors):
        raise Problem(500, "the model's result is not finite; its weights or their type are wrong", kind=SERVER)


def _dumped(found: Any) -> bytes:
    return _ENCODER.encode(found).encode()
