"""`brim-tiny-vl`: a vision-language model without weights, for demos and tests of image paths.

    python -m models.tiny.vision --tokenizer src/brim/models/brim-tiny --out src/brim/models/brim-tiny-vl

A folder as Qwen3-VL has it: a config, a processor's settings, a tokenizer. The engine draws random weights for it, so
its words mean nothing; the number of tokens of an image, the memory and the code are those of the family.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from models.tiny.dialogue import END, PADDING, ROLES, opening
from models.tiny.tokenizer import CONTEXT

IMAGE_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_PATCH, _MERGE = 16, 2
_MOST_IMAGE_TOKENS = 256

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|' + message.role + '|>' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|end|>' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|assistant|>' -}}{%- endif -%}"
)


def with_image_tokens(tokenizer: Tokenizer) -> Tokenizer:
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in IMAGE_TOKENS])
    return tokenizer


def config(tokenizer: Tokenizer) -> dict[str, Any]:
    start, end, image, video = (tokenizer.token_to_id(token) for token in IMAGE_TOKENS)
    special = {"pad_token_id": tokenizer.token_to_id(PADDING), "eos_token_id": tokenizer.token_to_id(END)}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "dtype": "bfloat16",
        "image_token_id": image,
        "video_token_id": video,
        "vision_start_token_id": start,
        "vision_end_token_id": end,
        "tie_word_embeddings": True,
        **special,
        "text_config": {
            "model_type": "qwen3_vl_text",
            "dtype": "bfloat16",
            "vocab_size": tokenizer.get_vocab_size(),
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "max_position_embeddings": CONTEXT,
            "initializer_range": 0.15,  # wide enough that it does not repeat itself
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5]},
            "tie_word_embeddings": True,
            **special,
        },
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": 3,
            "hidden_size": 64,
            "intermediate_size": 128,
            "out_hidden_size": 128,
            "num_heads": 2,
            "in_channels": 3,
            "patch_size": _PATCH,
            "temporal_patch_size": 2,
            "spatial_merge_size": _MERGE,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [0, 1],
            "initializer_range": 0.15,
        },
    }


def processor() -> dict[str, Any]:
    token_pixels = (_PATCH * _MERGE) ** 2
    return {
        "processor_class": "Qwen3VLProcessor",
        "image_processor_type": "Qwen2VLImageProcessorFast",
        "patch_size": _PATCH,
        "temporal_patch_size": 2,
        "merge_size": _MERGE,
        "size": {"shortest_edge": 4 * token_pixels, "longest_edge": _MOST_IMAGE_TOKENS * token_pixels},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", type=Path, required=True, help="the folder of a model, for its tokenizer")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    tokenizer = with_image_tokens(Tokenizer.from_file(str(options.tokenizer / "tokenizer.json")))
    options.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(options.out / "tokenizer.json"), pretty=False)
    files = {
        "config.json": config(tokenizer),
        "preprocessor_config.json": processor(),
        "video_preprocessor_config.json": {**processor(), "video_processor_type": "Qwen3VLVideoProcessor"},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "eos_token": END,
            "pad_token": PADDING,
            "additional_special_tokens": [*(opening(role) for role in ROLES), *IMAGE_TOKENS],
            "chat_template": CHAT_TEMPLATE,
        },
    }
    for name, content in files.items():
        (options.out / name).write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
