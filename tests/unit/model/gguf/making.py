"""GGUF files for tests, made with the `gguf` package: of zeros, in any type."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Q4_K = gguf.GGMLQuantizationType.Q4_K
Q6_K = gguf.GGMLQuantizationType.Q6_K
F32 = gguf.GGMLQuantizationType.F32
F16 = gguf.GGMLQuantizationType.F16
_PLAIN = {F32: np.float32, F16: np.float16}

Shape = tuple[int, ...]
Tensors = Mapping[str, tuple[Shape, gguf.GGMLQuantizationType]]

KEYS: dict[str, Any] = {
    "block_count": 2,
    "embedding_length": 256,
    "feed_forward_length": 512,
    "attention.head_count": 4,
    "attention.head_count_kv": 2,
    "context_length": 4096,
}
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "vocab_size": 1000,
    "torch_dtype": "float16",
}


def tensors(layers: int = 2, head: bool = True) -> dict[str, tuple[Shape, gguf.GGMLQuantizationType]]:
    """The tensors of a small Llama."""
    found: dict[str, tuple[Shape, gguf.GGMLQuantizationType]] = {"token_embd.weight": ((1000, 256), Q4_K)}
    found["output_norm.weight"] = ((256,), F32)
    if head:
        found["output.weight"] = ((1000, 256), Q6_K)
    matrices = {"attn_q": (256, 256), "attn_k": (128, 256), "attn_v": (128, 256), "attn_output": (256, 256)}
    matrices |= {"ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}
    for index in range(layers):
        found |= {f"blk.{index}.{name}.weight": (shape, Q4_K) for name, shape in matrices.items()}
        found |= {f"blk.{index}.{name}.weight": ((256,), F32) for name in ("attn_norm", "ffn_norm")}
    return found


def stored_bytes(stored: Tensors) -> int:
    sizes = gguf.GGML_QUANT_SIZES
    return sum(prod(shape) // sizes[kind][0] * sizes[kind][1] for shape, kind in stored.values())


def write(
    path: Path,
    *,
    architecture: str = "llama",
    keys: Mapping[str, Any] = KEYS,
    stored: Tensors | None = None,
    general: Mapping[str, Any] | None = None,
    split: int = 0,
) -> Path:
    """A file, or several with so many tensors each."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split)
    for key, value in {**{f"{architecture}.{key}": value for key, value in keys.items()}, **(general or {})}.items():
        _add(writer, key, value)
    writer.add_token_list([f"token {index}" for index in range(300)])
    writer.add_token_scores([0.5] * 300)
    for name, (shape, kind) in (tensors() if stored is None else stored).items():
        bytes_shape = shape if kind in _PLAIN else gguf.quant_shape_to_byte_shape(shape, kind)
        writer.add_tensor(name, np.zeros(bytes_shape, _PLAIN.get(kind, np.uint8)), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)
