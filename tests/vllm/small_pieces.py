"""Brim's worker, with prompts scored two tokens at a time."""

from __future__ import annotations

from typing import Any

import brim.vllm.worker
from brim.vllm.runner.pieces import score_in_pieces


def _two_at_a_time(runner: Any, vocabulary: int) -> None:
    score_in_pieces(runner, vocabulary, piece_bytes=2 * 4 * vocabulary)


brim.vllm.worker.score_in_pieces = _two_at_a_time
Worker = brim.vllm.worker.worker_class()
