"""Batches of conversations as tokens: a number in, the same batch out, on any machine.

A row is one conversation, long enough to fill it. Worker processes make the batches ahead of the training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.utils.data import DataLoader, Dataset

from models.tiny.conversation import conversation
from models.tiny.dialogue import PADDING, ROLES, opening, rendered

CHARACTERS_PER_TOKEN = 3.7  # what the tokenizer reaches on these conversations, a little rounded up

Batch = tuple[torch.Tensor, torch.Tensor]  # tokens, and which of them the assistant says: both [rows, length + 1]


class Conversations(Dataset[Batch]):
    """Batch `n` of a seed. `length_at(n)` says how long its rows are; a batch has `tokens` tokens in all."""

    def __init__(
        self, tokenizer: Tokenizer, seed: str, tokens: int, length_at: Callable[[int], int], size: int
    ) -> None:
        self._tokenizer = tokenizer.to_str()
        self._seed, self._tokens, self._length_at, self._size = seed, tokens, length_at, size
        self._ready: Tokenizer | None = None  # made in each worker

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> Batch:
        if self._ready is None:
            self._ready = Tokenizer.from_str(self._tokenizer)
        length = self._length_at(index)
        rows = max(1, self._tokens // length)
        tokens = np.full((rows, length + 1), self._ready.token_to_id(PADDING), dtype=np.int16)
        for row in range(rows):
            turns = conversation(Random(f"{self._seed} {index} {row}"), int(length * CHARACTERS_PER_TOKEN))
            ids = self._ready.encode(rendered(turns)).ids[: length + 1]
            tokens[row, : len(ids)] = ids
        return torch.from_numpy(tokens), torch.from_numpy(said_by_assistant(tokens, self._ready))


def said_by_assistant(tokens: np.ndarray, tokenizer: Tokenizer) -> np.ndarray:
    """Which tokens are the assistant's: those between its opening and the next one, the end of the turn included."""
    openings = [tokenizer.token_to_id(opening(role)) for role in ROLES]
    opens = np.isin(tokens, openings)
    positions = np.where(opens, np.arange(tokens.shape[1]), 0)
    speaker = np.take_along_axis(tokens, np.maximum.accumulate(positions, axis=1), axis=1)
    assistant = speaker == tokenizer.token_to_id(opening("assistant"))
    return assistant & ~opens & (tokens != tokenizer.token_to_id(PADDING))


def batches(source: Conversations, device: torch.device, workers: int) -> Iterator[Batch]:
    """All batches in order, on the device."""
    loader = DataLoader(
        source,
        batch_size=None,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        prefetch_factor=4 if workers else None,
    )
    for tokens, said in loader:
        yield tokens.to(device, non_blocking=True).long(), said.to(device, non_blocking=True)
