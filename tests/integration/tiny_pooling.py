"""Tiny models that embed or score, with random weights, in folders as `sentence-transformers` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, processors

WORDS = ("the", "a", "cat", "dog", "sat", "on", "mat", "river", "bank", "deep", "quiet", "star", "yes", "no")
_SPECIAL = ("<pad>", "<cls>", "<sep>", "<unk>", "<eos>", "<|im_start|>", "<|im_end|>")
VOCAB = len(_SPECIAL) + len(WORDS) + 256
SMALL = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
    "pad_token_id": 0,
}
DECODER = {**SMALL, "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 96, "eos_token_id": 4}


def write_tokenizer(folder: Path, kind: str, max_length: int = 64, segments: bool = False) -> Any:
    """`kind`: encoder (two texts as <cls> a <sep> b <sep>), or decoder (<eos> behind the text)."""
    from transformers import PreTrainedTokenizerFast

    characters = [chr(code) for code in range(33, 33 + 256)]
    vocab = {word: place for place, word in enumerate(dict.fromkeys((*_SPECIAL, *WORDS, *characters)))}
    raw = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"\w+|[^\w\s]"), "removed", invert=True)
    if kind == "encoder":
        raw.post_processor = processors.TemplateProcessing(
            single="<cls> $A <sep>", pair="<cls> $A <sep> $B:1 <sep>:1", special_tokens=[("<cls>", 1), ("<sep>", 2)]
        )
        names: dict[str, Any] = {"cls_token": "<cls>", "sep_token": "<sep>"}
        if segments:
            names["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    else:
        raw.post_processor = processors.TemplateProcessing(
            single="$A <eos>", pair="$A $B:1 <eos>:1", special_tokens=[("<eos>", 4)]
        )
        names = {"eos_token": "<eos>"}
    found = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        unk_token="<unk>",
        model_max_length=max_length,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
        **names,
    )
    found.save_pretrained(folder)
    return found


def write_model(folder: Path, config: Any, cls: Any, seed: int = 0) -> Any:
    """Random weights, drawn wide enough that results differ."""
    torch.manual_seed(seed)
    model = cls(config).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim > 1:
                value.normal_(0, 0.2)
    model.save_pretrained(folder)
    return model


def write_sentence_files(
    folder: Path,
    pooling: dict[str, Any],
    *,
    normalise: bool = True,
    dense: tuple[int, int] | None = None,
    max_length: int | None = None,
    prompts: dict[str, str] | None = None,
    default_prompt: str | None = None,
) -> None:
    kinds = [("", "sentence_transformers.models.Transformer"), ("1_Pooling", "sentence_transformers.models.Pooling")]
    if dense is not None:
        kinds.append(("2_Dense", "sentence_transformers.models.Dense"))
    if normalise:
        kinds.append((f"{len(kinds)}_Normalize", "sentence_transformers.models.Normalize"))
    listed = [{"idx": place, "name": str(place), "path": path, "type": one} for place, (path, one) in enumerate(kinds)]
    _write(folder / "modules.json", listed)
    _write(folder / "1_Pooling/config.json", {"word_embedding_dimension": SMALL["hidden_size"]} | pooling)
    if dense is not None:
        from safetensors.torch import save_file

        given = {"in_features": dense[0], "out_features": dense[1], "bias": True}
        _write(folder / "2_Dense/config.json", given | {"activation_function": "torch.nn.modules.activation.Tanh"})
        torch.manual_seed(3)
        tensors = {"linear.weight": torch.randn(dense[1], dense[0]) / 4, "linear.bias": torch.randn(dense[1])}
        save_file(tensors, folder / "2_Dense/model.safetensors")
    if max_length is not None:
        _write(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    if prompts is not None:
        _write(
            folder / "config_sentence_transformers.json",
            {"prompts": prompts, "default_prompt_name": default_prompt, "similarity_fn_name": "cosine"},
        )


def _write(path: Path, found: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), encoding="utf-8")


def bert(folder: Path, **sentence: Any) -> Path:
    """An encoder with segments of pairs, whose embedding is its first token."""
    from transformers import BertConfig, BertModel

    write_model(folder, BertConfig(**SMALL, max_position_embeddings=64), BertModel)
    write_tokenizer(folder, "encoder", segments=True)
    write_sentence_files(folder, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, **sentence)
    return folder


def xlm_roberta(folder: Path, **sentence: Any) -> Path:
    """An encoder whose positions begin behind the padding's, with the mean over its tokens."""
    from transformers import XLMRobertaConfig, XLMRobertaModel

    config = XLMRobertaConfig(**{**SMALL, "pad_token_id": 0}, max_position_embeddings=65, type_vocab_size=1)
    write_model(folder, config, XLMRobertaModel, seed=1)
    write_tokenizer(folder, "encoder")
    write_sentence_files(folder, {"pooling_mode_mean_tokens": True}, **sentence)
    return folder


def modern_bert(folder: Path) -> Path:
    from transformers import ModernBertConfig, ModernBertModel

    config = ModernBertConfig(**SMALL, max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=2)
    write_model(folder, config, ModernBertModel, seed=2)
    write_tokenizer(folder, "encoder")
    write_sentence_files(folder, {"pooling_mode": "mean"})
    return folder


def qwen3_embedding(folder: Path, **sentence: Any) -> Path:
    """A decoder whose embedding is its last token."""
    from transformers import Qwen3Config, Qwen3Model

    write_model(folder, Qwen3Config(**DECODER), Qwen3Model, seed=3)
    write_tokenizer(folder, "decoder", 96)
    write_sentence_files(folder, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, **sentence)
    return folder


def mistral_embedding(folder: Path) -> Path:
    """A decoder with a sliding window, whose class is that of a language model without its head."""
    from transformers import MistralConfig, MistralModel

    write_model(folder, MistralConfig(**DECODER, sliding_window=16), MistralModel, seed=4)
    write_tokenizer(folder, "decoder", 96)
    write_sentence_files(folder, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False})
    return folder


def gemma_embedding(folder: Path) -> Path:
    """A decoder's class whose tokens see each other in both directions, as EmbeddingGemma's do."""
    from transformers import Gemma3TextConfig, Gemma3TextModel

    config = Gemma3TextConfig(
        **{**DECODER, "num_hidden_layers": 2}, use_bidirectional_attention=True, sliding_window=16
    )
    write_model(folder, config, Gemma3TextModel, seed=8)
    write_tokenizer(folder, "encoder", 96)
    write_sentence_files(folder, {"pooling_mode_mean_tokens": True})
    return folder


def bert_reranker(folder: Path) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    write_model(folder, BertConfig(**SMALL, max_position_embeddings=64, num_labels=1), BertForSequenceClassification)
    write_tokenizer(folder, "encoder", segments=True)
    return folder


def xlm_roberta_reranker(folder: Path) -> Path:
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    config = XLMRobertaConfig(**SMALL, max_position_embeddings=65, type_vocab_size=1, num_labels=1)
    write_model(folder, config, XLMRobertaForSequenceClassification, seed=5)
    write_tokenizer(folder, "encoder")
    return folder


def decoder_reranker(folder: Path) -> Path:
    """A decoder of the kind …ForSequenceClassification."""
    from transformers import Qwen3Config, Qwen3ForSequenceClassification

    write_model(folder, Qwen3Config(**DECODER, num_labels=1), Qwen3ForSequenceClassification, seed=6)
    write_tokenizer(folder, "decoder", 96)
    return folder


def qwen3_reranker(folder: Path) -> Path:
    """A language model that is asked yes or no; its folder's name says so."""
    from transformers import Qwen3Config, Qwen3ForCausalLM

    write_model(folder, Qwen3Config(**{**DECODER, "max_position_embeddings": 320}), Qwen3ForCausalLM, seed=7)
    write_tokenizer(folder, "decoder", 320)
    return folder
