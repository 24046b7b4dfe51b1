"""One batch through a model: token ids in, a vector of each input out.

Inputs are padded on the right to the longest of them. A causal model needs no mask then: no token of an input sees what
is behind it, and nobody reads what padding becomes. Encoders are given a mask, unless all inputs are as long.
Sorting by length, and what a batch may hold, is `queue.py`'s business; memory is the engine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brim.engine.pooling.heads import Head
from brim.engine.pooling.requests import PoolingInput
from brim.model.tasks import ModelTask, PairFormat


@dataclass(frozen=True, slots=True, eq=False)
class PoolingModel:
    """A model that is loaded, and all that is known of how it is used."""

    task: ModelTask
    model: Any  # what is run: a decoder or encoder without a head, or an encoder's whole class
    head: Head | None  # None: the class has one, and its logits are the result
    causal: bool
    takes_segments: bool  # the texts of a pair are told apart
    pad_token: int
    vocab: int
    max_length: int  # tokens of an input
    width: int  # of a result
    normalise: bool  # embeddings have length 1
    matryoshka: bool  # embeddings may be cut
    prompts: dict[str, str]
    default_prompt: str
    lower_case: bool
    pairs: PairFormat  # how a pair is written as one input
    sigmoid: bool  # scores are made probabilities
    config: Any
    tokenizer: Any
    folder: Path | None
    weight_bytes: int
    device: torch.device
    warnings: tuple[str, ...] = ()

    def run(self, inputs: Sequence[PoolingInput]) -> np.ndarray:
        """[inputs, width]."""
        with torch.inference_mode():
            vectors = self._vectors(inputs)
            found: np.ndarray = vectors.float().cpu().numpy()
        return found

    def _vectors(self, inputs: Sequence[PoolingInput]) -> torch.Tensor:
        lengths = [one.length for one in inputs]
        longest = max(lengths)
        ids = np.full((len(inputs), longest), self.pad_token, np.int64)
        for row, one in zip(ids, inputs, strict=True):
            row[: one.length] = one.tokens
        given = {"input_ids": torch.from_numpy(ids).to(self.device)}
        counts = torch.tensor(lengths, device=self.device)
        if not self.causal and min(lengths) < longest:
            places = torch.arange(longest, device=self.device)
            given["attention_mask"] = (places[None] < counts[:, None]).long()
        if self.takes_segments and any(one.second is not None for one in inputs):
            given["token_type_ids"] = torch.from_numpy(_segments(inputs, ids.shape)).to(self.device)
        if self.head is None:
            logits: torch.Tensor = self.model(**given).logits
            return logits
        options = {"use_cache": False} if self.causal else {}
        return self.head(self.model(**given, **options).last_hidden_state, counts)


def _segments(inputs: Sequence[PoolingInput], shape: tuple[int, ...]) -> np.ndarray:
    found = np.zeros(shape, np.int64)
    for row, one in zip(found, inputs, strict=True):
        if one.second is not None:
            row[one.second : one.length] = 1
    return found
