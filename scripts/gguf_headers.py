"""Writes the headers that llama.cpp's converter makes of small random models, for the tests of `brim.model.gguf`.

    python scripts/gguf_headers.py LLAMA_CPP_FOLDER

Each family is built by `transformers` from a tiny config and converted; of the GGUF file, the keys of its architecture
and the shapes of its tensors are kept, with the config.json beside it. Needs what the engine needs, and what the
converter imports. Families that the converter does not take as `transformers` saves them are reported and left out.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

OUT = Path(__file__).resolve().parent.parent / "tests/unit/model/gguf/converted.json"
_LAYERS = 4
_SIZE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": _LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 128,
    "max_position_embeddings": 4096,
    "pad_token_id": 0,
}
_HEADS = {**_SIZE, "head_dim": 32}
_WINDOW = {**_HEADS, "sliding_window": 128}
_LOCAL = {**_HEADS, "num_local_experts": 4, "num_experts_per_tok": 2}
_EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
_MIXTURE = {**_HEADS, **_EXPERTS, "num_experts": 4}
_ROUTED = {**_HEADS, **_EXPERTS, "n_routed_experts": 4, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1}
_LATENT = {
    **_ROUTED,
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 24,
    "head_dim": None,
}
_DELTA = {
    **_HEADS,
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 24,
    "shared_expert_intermediate_size": 32,
}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_state": 16, "mamba_n_groups": 1}

CASES: dict[str, dict[str, Any]] = {
    "afmoe": {**_MIXTURE, "num_shared_experts": 1, "num_dense_layers": 1, "sliding_window": 128},
    "bloom": {"hidden_size": 64, "n_layer": _LAYERS, "n_head": 4, "vocab_size": 128, "seq_length": 2048},
    "cohere": _SIZE,
    "cohere2": {**_WINDOW, "rotary_pct": 1.0},
    "deepseek_v2": {**_LATENT, "n_shared_experts": 2, "q_lora_rank": None},
    "deepseek_v3": {**_LATENT, "n_shared_experts": 1, "q_lora_rank": 48},
    "dots1": {**_ROUTED, "n_shared_experts": 2},
    "ernie4_5": _HEADS,
    "ernie4_5_moe": {
        **_SIZE,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 32,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
    },
    "exaone4": {**_WINDOW, "sliding_window_pattern": 4},
    "falcon": {
        "new_decoder_architecture": True,
        "num_kv_heads": 2,
        "hidden_size": 64,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": 4,
        "vocab_size": 128,
    },
    "falcon_h1": {**_HEADS, **_MAMBA, "mamba_d_ssm": 128, "mamba_d_head": 16},
    "gemma": _HEADS,
    "gemma2": _WINDOW,
    "gemma3_text": {**_WINDOW, "num_hidden_layers": 7},
    "gemma4_text": {
        **_WINDOW,
        "num_hidden_layers": 7,
        "global_head_dim": 64,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": 128,
        "use_double_wide_mlp": True,
    },
    "gemma4_text keys alone": {
        **_WINDOW,
        "num_hidden_layers": 7,
        "global_head_dim": 64,
        "num_global_key_value_heads": 1,
        "attention_k_eq_v": True,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
    },
    "glm4": _HEADS,
    "glm4_moe": {**_ROUTED, "n_shared_experts": 1},
    "gpt2": {"n_embd": 64, "n_layer": _LAYERS, "n_head": 4, "vocab_size": 128, "n_positions": 1024, "n_ctx": 1024},
    "gpt_bigcode": {"n_embd": 64, "n_layer": _LAYERS, "n_head": 4, "vocab_size": 128, "n_positions": 1024},
    "gpt_oss": {**_LOCAL, "sliding_window": 128},
    "granite": _SIZE,
    "granitemoe": {**_LOCAL, "head_dim": 16},
    "granitemoehybrid": {
        **_LOCAL,
        **_MAMBA,
        "head_dim": 16,
        "mamba_d_head": 16,
        "shared_intermediate_size": 48,
        "layer_types": ["mamba", "mamba", "attention", "mamba"],
    },
    "hunyuan_v1_dense": _HEADS,
    "lfm2": {**_SIZE, "full_attn_idxs": [2], "block_auto_adjust_ff_dim": False, "conv_L_cache": 3},
    "llama": _SIZE,
    "llama4_text": {
        **_LOCAL,
        "num_experts_per_tok": 1,
        "intermediate_size_mlp": 160,
        "interleave_moe_layer_step": 2,
        "attention_chunk_size": 8192,
    },
    "minimax_m2": {**_LOCAL, "rotary_dim": 16},
    "ministral3": _HEADS,
    "mistral": {**_SIZE, "sliding_window": None},
    "mixtral": {**_LOCAL, "head_dim": 16},
    "nemotron": _SIZE,
    "nemotron_h": {
        **_HEADS,
        "layers_block_type": ["mamba", "moe", "attention", "mamba"],
        "n_routed_experts": 4,
        "moe_intermediate_size": 32,
        "moe_shared_expert_intermediate_size": 48,
        "mamba_num_heads": 8,
        "mamba_head_dim": 16,
        "ssm_state_size": 16,
        "n_groups": 1,
    },
    "olmo": _SIZE,
    "olmo2": _SIZE,
    "olmo3": {**_SIZE, "sliding_window": 128},
    "olmoe": {**_SIZE, "num_experts": 4, "num_experts_per_tok": 2},
    "phi3": _SIZE,
    "qwen2": _SIZE,
    "qwen2_moe": {**_MIXTURE, "head_dim": 16, "shared_expert_intermediate_size": 48},
    "qwen3": _HEADS,
    "qwen3_5_moe_text": {**_DELTA, **_EXPERTS, "num_experts": 4},
    "qwen3_5_text": _DELTA,
    "qwen3_moe": _MIXTURE,
    "qwen3_next": {**_DELTA, **_EXPERTS, "num_experts": 4},
    "seed_oss": _HEADS,
    "smollm3": _SIZE,
    "stablelm": _SIZE,
    "starcoder2": _SIZE,
}
_KEPT = ("layer_types", "layers_block_type", "n_ctx", "rotary_pct")  # that the converter reads as published


def convert(name: str, size: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Config and header of one family."""
    gguf, conversion = import_module("gguf"), import_module("conversion")
    transformers = import_module("transformers")
    config = transformers.AutoConfig.for_model(name.split()[0], **size)
    transformers.AutoModelForCausalLM.from_config(config).float().save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text()) | {key: size[key] for key in _KEPT if key in size}
    (folder / "config.json").write_text(json.dumps(saved))
    vocabulary = {str(index): index for index in range(128)}
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": vocabulary}, "added_tokens": []}))
    published = {key: size[key] for key in _KEPT if key in size}
    hparams = conversion.ModelBase.load_hparams(folder, False) | published
    of_family = conversion.get_model_class(
        conversion.get_model_architecture(hparams, conversion.ModelType.TEXT), mmproj=False
    )
    of_family.set_vocab = lambda self: None  # the models have no tokenizer
    of_family.no_mtp = True
    of_family(folder, gguf.LlamaFileType.ALL_F32, folder / "model.gguf", eager=True, hparams=hparams).write()
    return {"config": _relevant(saved), **_header(gguf.GGUFReader(folder / "model.gguf"))}


def _relevant(config: dict[str, Any]) -> dict[str, Any]:
    """Without what says nothing of dimensions."""
    left_out = ("rope_", "token", "init", "eps", "dropout", "_id", "router", "time_step", "multiplier", "cache", "task")
    kept = {key: value for key, value in config.items() if not any(part in key for part in left_out)}
    return kept | {
        key: config[key] for key in ("num_experts_per_tok", "conv_L_cache", "qk_rope_head_dim") if key in config
    }


def _header(reader: Any) -> dict[str, Any]:
    architecture = reader.get_field("general.architecture").contents()
    prefix = f"{architecture}."
    keys = {
        key.removeprefix(prefix): field.contents() for key, field in reader.fields.items() if key.startswith(prefix)
    }
    shapes = {tensor.name: [int(size) for size in reversed(tensor.shape)] for tensor in reader.tensors}
    outside = {name: shape for name, shape in shapes.items() if not name.startswith("blk.")}
    layers: list[dict[str, Any]] = []
    for index in range(keys["block_count"]):
        own = {name.split(".", 2)[2]: shape for name, shape in shapes.items() if name.startswith(f"blk.{index}.")}
        alike = next((one for one in layers if one["tensors"] == own), None)
        if alike is None:
            layers.append({"of": [index], "tensors": own})
        else:
            alike["of"].append(index)
    return {"architecture": architecture, "keys": keys, "tensors": outside, "layers": layers}


def main() -> None:
    source = Path(sys.argv[1])
    sys.path[:0] = [str(source), str(source / "gguf-py")]
    found = {}
    for name, size in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                found[name] = convert(name, size, Path(folder))
            except (KeyError, TypeError, ValueError, AssertionError, NotImplementedError, RuntimeError) as error:
                print(f"{name}: {type(error).__name__}: {error}")
    lines = [f"{json.dumps(name)}: {json.dumps(one, separators=(',', ':'))}" for name, one in found.items()]
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{OUT}: {len(found)} families")


if __name__ == "__main__":
    main()
