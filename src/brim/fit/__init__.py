"""Sizes the KV cache by measurement, and proves the size before the first request.

For authors of engines: a `FitSession` sizes whatever is a `brim.ports.SizableEngine` (docs/authors.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.exports import lazily

if TYPE_CHECKING:
    from brim.fit.keep_free import KeepFree
    from brim.fit.ranks import ONE_RANK, FitRanks, gathered
    from brim.fit.session import FitAdapter, FitPredictions, FitSession, RequestAdapter, SessionOptions
    from brim.fit.target import KvPrice
    from brim.records.fit import (
        CANARY_BYTES,
        CUDA_ROUNDING_BYTES,
        CUDA_SEGMENT_BYTES,
        CUDA_WORKSPACE_BYTES,
        OWN_GROWTH_BYTES,
        Attempt,
        AttemptOutcome,
        FitItem,
        FitReport,
        FitRequest,
        FitSeconds,
    )
    from brim.records.memory import DeviceFacts

__all__ = [
    "CANARY_BYTES",
    "CUDA_ROUNDING_BYTES",
    "CUDA_SEGMENT_BYTES",
    "CUDA_WORKSPACE_BYTES",
    "ONE_RANK",
    "OWN_GROWTH_BYTES",
    "Attempt",
    "AttemptOutcome",
    "DeviceFacts",
    "FitAdapter",
    "FitItem",
    "FitPredictions",
    "FitRanks",
    "FitReport",
    "FitRequest",
    "FitSeconds",
    "FitSession",
    "KeepFree",
    "KvPrice",
    "RequestAdapter",
    "SessionOptions",
    "gathered",
]

__getattr__ = lazily(
    __name__,
    {
        "Attempt": "brim.records.fit",
        "AttemptOutcome": "brim.records.fit",
        "CANARY_BYTES": "brim.records.fit",
        "CUDA_ROUNDING_BYTES": "brim.records.fit",
        "CUDA_SEGMENT_BYTES": "brim.records.fit",
        "CUDA_WORKSPACE_BYTES": "brim.records.fit",
        "DeviceFacts": "brim.records.memory",
        "FitAdapter": "brim.fit.session",
        "FitItem": "brim.records.fit",
        "FitPredictions": "brim.fit.session",
        "FitRanks": "brim.fit.ranks",
        "FitReport": "brim.records.fit",
        "FitRequest": "brim.records.fit",
        "FitSeconds": "brim.records.fit",
        "FitSession": "brim.fit.session",
        "KeepFree": "brim.fit.keep_free",
        "KvPrice": "brim.fit.target",
        "ONE_RANK": "brim.fit.ranks",
        "OWN_GROWTH_BYTES": "brim.records.fit",
        "RequestAdapter": "brim.fit.session",
        "SessionOptions": "brim.fit.session",
        "gathered": "brim.fit.ranks",
    },
)
