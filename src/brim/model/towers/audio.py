"""Audio towers: their tensors, and the longest input their processor allows."""

from __future__ import annotations

from brim.model.blocks import linear, norms, vector
from brim.model.fields import ConfigFields
from brim.model.towers.vit import COLUMNS, PUBLISHED, repeated
from brim.records.model import MediaLimits, MediaType, Tensor, TowerSpec

_MEL_FRAMES_PER_SECOND = 100


def _whisper_block(hidden: int, intermediate: int, *, key_bias: bool) -> list[Tensor]:
    return [
        *linear("self_attn.q_proj", hidden, hidden, bias=True),
        *linear("self_attn.k_proj", hidden, hidden, bias=key_bias),
        *linear("self_attn.v_proj", hidden, hidden, bias=True),
        *linear("self_attn.out_proj", hidden, hidden, bias=True),
        *linear("fc1", intermediate, hidden, bias=True),
        *linear("fc2", hidden, intermediate, bias=True),
        *norms(hidden, "self_attn_layer_norm", "final_layer_norm", bias=True),
    ]


def _seconds(processor: ConfigFields, default: int) -> MediaLimits:
    own = processor.optional_integer("chunk_length")
    if own:
        return MediaLimits("preprocessor_config.json", max_seconds=own)
    return MediaLimits(PUBLISHED, max_seconds=default)


def qwen2_audio(fields: ConfigFields, text_hidden: int, processor: ConfigFields) -> TowerSpec:
    """Whisper's encoder, half a minute at a time."""
    return _whisper(fields, text_hidden, _seconds(processor, 30), learned_positions=True)


def qwen2_5_omni(fields: ConfigFields, text_hidden: int, processor: ConfigFields) -> TowerSpec:
    return _whisper(fields, text_hidden, _seconds(processor, 300), learned_positions=False)


def _whisper(fields: ConfigFields, text_hidden: int, limits: MediaLimits, *, learned_positions: bool) -> TowerSpec:
    hidden = fields.integer("d_model", default=1280)
    intermediate = fields.integer("encoder_ffn_dim", default=5120)
    depth = fields.layer_count("encoder_layers", default=32)
    mels = fields.integer("num_mel_bins", default=128)
    output = text_hidden if learned_positions else fields.integer("output_dim", default=text_hidden)
    tensors = [
        Tensor("audio_tower.conv1", (hidden, mels, 3)),
        *vector("audio_tower.conv1.bias", hidden),
        Tensor("audio_tower.conv2", (hidden, hidden, 3)),
        *vector("audio_tower.conv2.bias", hidden),
        *repeated(_whisper_block(hidden, intermediate, key_bias=False), depth, "audio_tower.layers"),
        *vector("audio_tower.ln_post", hidden, bias=True),
        *linear("audio_tower.proj", output, hidden, bias=True),
    ]
    if learned_positions:
        tensors.append(
            Tensor("audio_tower.embed_positions", (fields.integer("max_source_positions", default=1500), hidden))
        )
    else:
        tensors.append(Tensor("audio_tower.audio_bos_eos_token", (2, output)))
    return TowerSpec(
        media=MediaType.AUDIO,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("encoder_attention_heads", of=hidden, what=COLUMNS, default=20),
        tensors=tuple(tensors),
        limits=limits,
        merge=2,
        frames_per_second=_MEL_FRAMES_PER_SECOND // 2,
        output=output,
    )


def qwen3_audio(fields: ConfigFields, text_hidden: int, *, projector: str) -> TowerSpec:
    """Qwen3-Omni's and Qwen3-ASR's encoder: three strided convolutions, then a Whisper-like stack."""
    hidden = fields.integer("d_model", "hidden_size", default=1280)
    intermediate = fields.integer("encoder_ffn_dim", default=5120)
    depth = fields.layer_count("encoder_layers", "num_hidden_layers", default=32)
    mels = fields.integer("num_mel_bins", default=128)
    channels = fields.integer("downsample_hidden_size", default=480)
    output = fields.integer("output_dim", default=text_hidden)
    height = ((((mels + 1) // 2) + 1) // 2 + 1) // 2
    tensors = [
        Tensor("audio_tower.conv2d1", (channels, 1, 3, 3)),
        Tensor("audio_tower.conv2d2", (channels, channels, 3, 3)),
        Tensor("audio_tower.conv2d3", (channels, channels, 3, 3)),
        *norms(channels, "audio_tower.conv2d1.bias", "audio_tower.conv2d2.bias", "audio_tower.conv2d3.bias"),
        *linear("audio_tower.conv_out", hidden, channels * height),
        *repeated(_whisper_block(hidden, intermediate, key_bias=True), depth, "audio_tower.layers"),
        *vector("audio_tower.ln_post", hidden, bias=True),
        *linear(f"{projector}1", hidden, hidden, bias=True),
        *linear(f"{projector}2", output, hidden, bias=True),
    ]
    return TowerSpec(
        media=MediaType.AUDIO,
        hidden=hidden,
        intermediate=intermediate,
        layers=depth,
        heads=fields.divisor("encoder_attention_heads", of=hidden, what=COLUMNS, default=20),
        tensors=tuple(tensors),
        limits=MediaLimits(PUBLISHED, max_seconds=300),
        merge=1,
        frames_per_second=13,
        output=output,
    )


def gemma4_audio(fields: ConfigFields, text_hidden: int) -> TowerSpec:
    """Gemma 4's conformer: two half feed-forwards around attention and a short convolution; 40 ms a token."""
    hidden = fields.integer("hidden_size", default=1024)
    depth = fields.layer_count("num_hidden_layers", default=12)
    heads = fields.divisor("num_attention_heads", of=hidden, what=COLUMNS, default=8)
    kernel = fields.integer("conv_kernel_size", default=5)
    channels = fields.pair("subsampling_conv_channels", (128, 32))
    output = fields.integer("output_proj_dims", default=1536)
    half = [
        *linear("ffw_layer_1", 4 * hidden, hidden),
        *linear("ffw_layer_2", hidden, 4 * hidden),
        *norms(hidden, "pre_layer_norm", "post_layer_norm"),
    ]
    block = [
        *half,
        *half,
        *vector("self_attn.per_dim_scale", hidden // heads),
        *linear("self_attn.q_proj", hidden, hidden),
        *linear("self_attn.k_proj", hidden, hidden),
        *linear("self_attn.v_proj", hidden, hidden),
        *linear("self_attn.post", hidden, hidden),
        *linear("self_attn.relative_k_proj", hidden, hidden),
        *linear("lconv1d.linear_start", 2 * hidden, hidden),
        *linear("lconv1d.linear_end", hidden, hidden),
        Tensor("lconv1d.depthwise_conv1d", (hidden, 1, kernel)),
        *norms(hidden, "lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"),
    ]
    tensors = [
        Tensor("audio_tower.conv0", (channels[0], 1, 3, 3)),
        *vector("audio_tower.norm0", channels[0]),
        Tensor("audio_tower.conv1", (channels[1], channels[0], 3, 3)),
        *vector("audio_tower.norm1", channels[1]),
        *linear("audio_tower.input_proj_linear", hidden, channels[1] * 32),
        *repeated(block, depth, "audio_tower.layers"),
        *linear("audio_tower.output_proj", output, hidden, bias=True),
        *linear("embed_audio.embedding_projection", text_hidden, output),
    ]
    return TowerSpec(
        media=MediaType.AUDIO,
        hidden=hidden,
        intermediate=4 * hidden,
        layers=depth,
        heads=heads,
        tensors=tuple(tensors),
        limits=MediaLimits(PUBLISHED, max_seconds=30),
        merge=1,
        frames_per_second=25,
        output=text_hidden,
    )
