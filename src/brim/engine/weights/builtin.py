"""A model that needs no files: `brim-random`, random weights and a tokenizer of bytes.

Its text is meaningless. It runs anywhere in a second, through the same code as any other model: for tests, and wherever
the words do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brim.model.packaged import packaged_folder

BUILTIN_NAME = "brim-random"
_SPECIAL = 3  # padding, beginning, end
_EOS = 2

BUILTIN_CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256 + _SPECIAL,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,  # wide enough that it does not repeat itself
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": _EOS,
    "torch_dtype": "float32",
}


def lacks_weights(model: object) -> bool:
    """Whether this is a model of Brim's own that comes without weights: they are drawn at random."""
    folder = packaged_folder(model) if isinstance(model, str) else None
    return folder is not None and not (folder / "model.safetensors").exists()


class ByteTokenizer:
    """Every byte of UTF-8 is a token."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [1, *(byte + _SPECIAL for byte in text.encode())]}

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token - _SPECIAL for token in tokens if token >= _SPECIAL).decode(errors="replace")
