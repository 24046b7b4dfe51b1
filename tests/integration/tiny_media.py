"""What tests of models with images and audio share: a small decoder, weights that show what it sees, and `generate`."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from brim.engine.front.answers import Completion
from brim.engine.weights.load import LoadedModel

VOCAB, IMAGE, BLOCK, DRAWN = 128, 100, 8, 10  # tokens from IMAGE on are no text
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 512,
    "initializer_range": 0.15,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}


@torch.no_grad()
def spread(model: Any, never_drawn: slice | list[int]) -> Any:
    """The model with a head of its own: a tied one repeats the last token. `generate` treats some tokens specially."""
    head = torch.nn.Parameter(torch.randn(VOCAB, TEXT["hidden_size"]))
    head[never_drawn] = 0
    for parameter in model.parameters():
        if parameter.min() == parameter.max():  # an empty projection of images among them
            parameter += 0.2 * torch.randn_like(parameter)
    model.get_output_embeddings().weight = head
    return model


def as_loaded(model: Any, folder: Path | None = None) -> LoadedModel:
    """A model that was made here, as an engine takes it."""
    text = model.config.get_text_config()
    return LoadedModel(
        model=model,
        config=text,
        full_config=model.config,
        vocab=text.vocab_size,
        max_positions=TEXT["max_position_embeddings"],
        eos_ids=(),
        weight_bytes=sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        folder=folder,
        seconds=0.0,
    )


def generated(model: Any, tokens: Sequence[int], **inputs: Any) -> tuple[int, ...]:
    """What `generate` goes on with."""
    ids = torch.tensor([tokens])
    output = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=DRAWN,
        min_new_tokens=DRAWN,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
        **inputs,
    )
    return tuple(output[0, ids.shape[1] :].tolist())


def text_of(rng: random.Random, length: int) -> list[int]:
    return [rng.randrange(3, IMAGE) for _ in range(length)]


def tokens_of(completions: list[Completion]) -> list[tuple[int, ...]]:
    return [tuple(one.tokens) for one in completions]
