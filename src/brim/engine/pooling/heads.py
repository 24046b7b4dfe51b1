"""What is made of the hidden states of a batch: one vector for each input.

In: hidden states [inputs, tokens, width], and how many tokens of each are its own. Out: vectors of 32-bit floats, not
normalised: what a request wants of them (fewer dimensions, length 1, a probability) is done to them on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from brim.errors import InvalidRequest, UnsupportedModel, first_line
from brim.model.sentence_files import DenseFile, PoolingKind

Head = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # hidden states and lengths to vectors
_ACTIVATIONS: Mapping[str, type[nn.Module]] = {
    one.__name__: one for one in (nn.Identity, nn.Tanh, nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid)
}


def last_of(hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """The hidden state of each input's last token."""
    return hidden[torch.arange(len(hidden), device=hidden.device), lengths - 1]


def pooled(kind: PoolingKind, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """One vector for each input, padding left out."""
    if kind is PoolingKind.CLS:
        return hidden[:, 0]
    if kind is PoolingKind.LAST:
        return last_of(hidden, lengths)
    places = torch.arange(hidden.shape[1], device=hidden.device)
    own = places[None] < lengths[:, None]
    if kind is PoolingKind.MAX:
        return hidden.masked_fill(~own[..., None], float("-inf")).amax(1)
    weights = own * (places + 1) if kind is PoolingKind.WEIGHTED_MEAN else own
    total = (hidden * weights[..., None].to(hidden.dtype)).sum(1, dtype=torch.float32)
    divisor = weights.sum(1, dtype=torch.float32)
    return total / (divisor.sqrt() if kind is PoolingKind.MEAN_SQRT_LEN else divisor)[:, None]


@dataclass(frozen=True, slots=True)
class EmbeddingHead:
    """Pooling of one kind, or several side by side, and dense layers behind it."""

    kinds: tuple[PoolingKind, ...]
    dense: Sequence[nn.Module] = ()

    def __call__(self, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        found = torch.cat([pooled(kind, hidden, lengths).to(hidden.dtype) for kind in self.kinds], dim=-1)
        for layer in self.dense:
            found = layer(found)
        return found.float()


@dataclass(frozen=True, slots=True)
class ClassifierHead:
    """The score of a decoder's class: a linear layer over the last token."""

    score: nn.Module

    def __call__(self, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.score(last_of(hidden, lengths))
        return found.float()


@dataclass(frozen=True, slots=True)
class WordsHead:
    """Log-odds of two words as the next token (or the logit of one): two rows of the language head, no vocabulary."""

    rows: torch.Tensor  # [width], a difference of rows where there are two
    bias: float = 0.0

    def __call__(self, hidden: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return (last_of(hidden, lengths).float() @ self.rows)[:, None] + self.bias


def held_by(head: Head | None) -> list[torch.Tensor]:
    """The weights that a head has beside the model's own."""
    match head:
        case EmbeddingHead(dense=layers):
            return [one for layer in layers for one in layer.parameters()]
        case ClassifierHead(score=layer):
            return list(layer.parameters())
        case WordsHead(rows=rows):
            return [rows]
        case _:
            return []


def words_head(language_head: Any, true: int, false: int | None) -> WordsHead:
    """From the rows of a model's own head."""
    weight, bias = language_head.weight, getattr(language_head, "bias", None)
    if not all(0 <= token < len(weight) for token in (true, false) if token is not None):
        raise InvalidRequest(f"tokens {true} and {false} of the score are not all in the vocabulary of {len(weight)}")

    def of(values: torch.Tensor) -> torch.Tensor:
        found = values[true].float()
        return found if false is None else found - values[false].float()

    return WordsHead(of(weight), 0.0 if bias is None else float(of(bias)))


def load_dense(file: DenseFile, device: torch.device, dtype: torch.dtype) -> nn.Module:
    """A dense layer of a sentence-transformers folder."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    activation = _ACTIVATIONS.get(file.activation)
    if activation is None:
        raise UnsupportedModel(f"{file.folder}: the activation {file.activation[:40]} is not one of {[*_ACTIVATIONS]}")
    linear = nn.Linear(file.in_features, file.out_features, file.bias, device=device, dtype=dtype)
    path = file.folder / "model.safetensors"
    try:
        stored = load_file(str(path))
        linear.load_state_dict({name.removeprefix("linear."): value for name, value in stored.items()})
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InvalidRequest(f"{path}: cannot be loaded ({first_line(error)}); download the model again") from None
    return nn.Sequential(linear, activation()).eval().requires_grad_(False)
