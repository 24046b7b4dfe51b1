"""A tiny model that hears, as a folder: Qwen2-Audio's classes, whose processor needs no package for images or sound."""

from __future__ import annotations

from pathlib import Path

from tests.vllm.starts import MODEL

AUDIO = "<|AUDIO|>"
SAMPLES_A_SECOND = 16_000
_MELS = 16


def write_model(folder: Path) -> str:
    """Its prompts hold audio where they say `AUDIO`; the longest that it hears are 30 seconds, 750 tokens."""
    from transformers import (
        AutoTokenizer,
        Qwen2AudioConfig,
        Qwen2AudioEncoderConfig,
        Qwen2AudioProcessor,
        Qwen2Config,
        WhisperFeatureExtractor,
    )

    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    tokenizer.add_special_tokens({"additional_special_tokens": [AUDIO, "<|audio_bos|>", "<|audio_eos|>"]})
    text = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
    )
    tower = Qwen2AudioEncoderConfig(
        num_mel_bins=_MELS, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=128, d_model=64
    )
    config = Qwen2AudioConfig(
        audio_config=tower.to_dict(),
        text_config=text.to_dict(),
        audio_token_index=tokenizer.convert_tokens_to_ids(AUDIO),
    )
    config.architectures = ["Qwen2AudioForConditionalGeneration"]
    config.save_pretrained(folder)
    features = WhisperFeatureExtractor(feature_size=_MELS, sampling_rate=SAMPLES_A_SECOND)
    Qwen2AudioProcessor(features, tokenizer).save_pretrained(folder)
    return str(folder)
