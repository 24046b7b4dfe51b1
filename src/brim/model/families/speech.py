"""The parts of Qwen2.5-Omni that speak: a talker, which is a Qwen2 over codes of sound, and what turns codes to sound.

Out: their tensors, which every rank holds whole. Their activations and the talker's cache are not planned. The encoder
of speakers in front of the diffusion model (two million parameters) is not counted.
"""

from __future__ import annotations

from brim.errors import InvalidConfig
from brim.model.blocks import linear, mlp, norms, vector
from brim.model.families.common import read_dimensions
from brim.model.families.dense import PRE_NORMS, plain_attention
from brim.model.fields import ConfigFields
from brim.model.towers.vit import repeated
from brim.records.model import Tensor

_MOST_KERNELS, _LARGEST_KERNEL = 32, 1024
_TALKER = {"num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 32768}


def talker(fields: ConfigFields) -> list[Tensor]:
    size = read_dimensions(fields, _TALKER)
    width = fields.integer("embedding_size", default=3584)  # of the thinker's hidden states
    one = [
        *plain_attention(size, qkv_bias=True).tensors,
        *mlp(size.hidden, fields.integer("intermediate_size")).tensors,
        *norms(size.hidden, *PRE_NORMS),
    ]
    tensors = [
        Tensor("talker.model.embed_tokens", (size.vocab, width)),
        *linear("talker.thinker_to_talker_proj", size.hidden, width, bias=True),
        *linear("talker.codec_head", size.vocab, size.hidden),
        *vector("talker.model.norm", size.hidden),
        *repeated(one, size.layers, "talker.model.layers"),
    ]
    return [_whole(tensor) for tensor in tensors]


def token2wav(fields: ConfigFields) -> list[Tensor]:
    """A diffusion transformer over mel frames, and a vocoder."""
    return _diffusion(fields.child("dit_config")) + _vocoder(fields.child("bigvgan_config"))


def _diffusion(fields: ConfigFields) -> list[Tensor]:
    hidden = fields.integer("hidden_size", default=1024)
    width = fields.integer("num_attention_heads", default=16) * fields.integer("head_dim", default=64)
    inner, mel = hidden * fields.integer("ff_mult", default=2), fields.integer("mel_dim", default=80)
    code, speaker = fields.integer("emb_dim", default=512), fields.integer("enc_emb_dim", default=192)
    block = [
        *linear("attn_norm.linear", 6 * hidden, hidden, bias=True),
        *linear("attn.to_qkv", 3 * width, hidden, bias=True),
        *linear("attn.to_out", hidden, width, bias=True),
        *linear("ff.0", inner, hidden, bias=True),
        *linear("ff.3", hidden, inner, bias=True),
    ]
    heard = fields.integer("enc_dim", default=128)
    name = "token2wav.dit"
    tensors = [
        *linear(f"{name}.time_embed.0", hidden, 256, bias=True),
        *linear(f"{name}.time_embed.2", hidden, hidden, bias=True),
        Tensor(f"{name}.codec_embed", (fields.integer("num_embeds", default=8193) + 1, code)),
        *linear(f"{name}.input_embed.proj", hidden, mel + heard + speaker + code, bias=True),
        *repeated(block, fields.layer_count("num_hidden_layers", default=22), f"{name}.transformer_blocks"),
        *linear(f"{name}.norm_out", 2 * hidden, hidden, bias=True),
        *linear(f"{name}.proj_out", mel, hidden, bias=True),
    ]
    return [_whole(tensor) for tensor in tensors]


def _vocoder(fields: ConfigFields) -> list[Tensor]:
    """BigVGAN: every stage halves the channels, with three residual blocks for each kernel."""
    channels = fields.integer("upsample_initial_channel", default=1536)
    kernels = _kernels(fields, "upsample_kernel_sizes", (11, 7, 4, 4, 4, 4))
    inner = _kernels(fields, "resblock_kernel_sizes", (3, 7, 11))
    name = "token2wav.bigvgan"
    tensors = [*linear(f"{name}.conv_pre", channels, 7 * fields.integer("mel_dim", default=80), bias=True)]
    for stage, kernel in enumerate(kernels):
        narrower = max(1, channels // 2)
        tensors += linear(f"{name}.ups.{stage}", channels, narrower * kernel)
        tensors += vector(f"{name}.ups.{stage}.bias", narrower)
        for width in inner:
            convolution = linear(f"resblocks.{stage}.{width}", narrower, narrower * width, bias=True)
            tensors += repeated(convolution, 6, name)
        tensors += repeated(vector(f"activations.{stage}", narrower), 12 * len(inner), name)
        channels = narrower
    tensors += [*vector(f"{name}.activation_post", 2 * channels), *vector(f"{name}.conv_post", 7 * channels)]
    return [_whole(tensor) for tensor in tensors]


def _kernels(fields: ConfigFields, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    found = fields.integers(name) or default
    if len(found) > _MOST_KERNELS or not all(0 < size <= _LARGEST_KERNEL for size in found):
        raise InvalidConfig(fields.where(name), f"must be at most {_MOST_KERNELS} sizes from 1 to {_LARGEST_KERNEL}")
    return found


def _whole(tensor: Tensor) -> Tensor:
    return Tensor(tensor.name, tensor.shape, 1, tensor.linear, tensor.count, tensor.dtype)
