"""What the two models are: Qwen3, small. The configs, the models, and their folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

from models.tiny.dialogue import END, PADDING
from models.tiny.tokenizer import CONTEXT, VOCABULARY, save_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MODEL_SIZES = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 7,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 32,
}
DRAFT_SIZES = {
    "hidden_size": 96,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}


def new_model(sizes: dict[str, int], tokenizer: Tokenizer, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        **sizes,
        vocab_size=VOCABULARY,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.token_to_id(PADDING),
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(END),
        attn_implementation="sdpa",
    )
    return Qwen3ForCausalLM(config)


def parameters(model: Qwen3ForCausalLM) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def save_model(model: Qwen3ForCausalLM, tokenizer: Tokenizer, folder: Path) -> None:
    """The model in bf16, and its tokenizer beside it. The model itself stays as it is."""
    stored = Qwen3ForCausalLM(model.config).to(torch.bfloat16)
    stored.load_state_dict(model.state_dict())
    stored.generation_config = GenerationConfig(
        do_sample=False, eos_token_id=model.config.eos_token_id, pad_token_id=model.config.pad_token_id
    )
    stored.save_pretrained(folder)
    save_tokenizer(tokenizer, folder)
