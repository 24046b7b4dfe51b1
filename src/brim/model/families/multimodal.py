"""Models with towers: which text family is inside, which tower in front, and where the config keeps each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from brim.errors import InvalidConfig, UnsupportedModel
from brim.model.blocks import HeadNorm, attention, layer, mlp, norms, vector
from brim.model.families import convolution, delta, dense, experts, gemma, latent, legacy, mixed, speech
from brim.model.families.common import TextModelSpec, outer_tensors, read_dimensions
from brim.model.families.dense import PRE_NORMS, by_kind
from brim.model.fields import ConfigFields
from brim.model.towers import audio, clip, native, qwen, siglip, tiled
from brim.records.model import KvCache, LayerSpec, Tensor, TowerSpec

TextReader = Callable[[ConfigFields], TextModelSpec]


@dataclass(frozen=True, slots=True)
class Multimodal:
    """A language model with its towers."""

    text: TextModelSpec
    towers: tuple[TowerSpec, ...]
    warnings: tuple[str, ...] = ()


def _text_fields(top: ConfigFields, *, tied: bool, names: tuple[str, ...] = ("text_config",)) -> ConfigFields:
    """The language model's fields: nested, or (in older configs) at the top. Tying is decided at the top."""
    nested = top.child(*names) if top.first(names) in top else top
    own_default = nested.boolean("tie_word_embeddings", tied) if nested is top else tied
    return nested.merged(tie_word_embeddings=top.boolean("tie_word_embeddings", own_default))


def qwen2_vl(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = dense.qwen2(_text_fields(top, tied=False))
    return Multimodal(text, (qwen.qwen2_vl(top.child("vision_config"), processor),))


def qwen2_5_vl(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = dense.qwen2(_text_fields(top, tied=False))
    return Multimodal(text, (qwen.qwen2_5_vl(top.child("vision_config"), processor),))


def qwen3_vl(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    return _qwen3_tower(top, processor, dense.qwen3, deepstack=3)


def qwen3_vl_moe(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    return _qwen3_tower(top, processor, experts.qwen3_vl_moe, deepstack=3)


def qwen3_5(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    return _qwen3_tower(top, processor, delta.qwen3_5, deepstack=0)


def qwen3_5_moe(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    return _qwen3_tower(top, processor, delta.qwen3_5_moe, deepstack=0)


def _qwen3_tower(top: ConfigFields, processor: ConfigFields, read: TextReader, *, deepstack: int) -> Multimodal:
    text = read(_text_fields(top, tied=False))
    return Multimodal(text, (qwen.qwen3_vl(top.child("vision_config"), processor, deepstack=deepstack),))


def glm4v(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = dense.glm4(_text_fields(top, tied=False))
    return Multimodal(text, (qwen.glm4v(top.child("vision_config"), processor),))


def glm4v_moe(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = experts.glm4v_moe_text(_text_fields(top, tied=False))
    return Multimodal(text, (qwen.glm4v(top.child("vision_config"), processor),))


INTERNVL_TEXT: dict[str, TextReader] = {
    "llama": dense.llama,
    "qwen2": dense.qwen2,
    "qwen3": dense.qwen3,
    "qwen3_moe": experts.qwen3_moe,
    "gpt_oss": mixed.gpt_oss,
    "phi3": dense.phi3,
    "internlm2": dense.llama,
}
KIMI_TEXT: dict[str, TextReader] = {"deepseek_v3": latent.deepseek_v3, "kimi_k2": latent.deepseek_v3}
MISTRAL_TEXT: dict[str, TextReader] = {
    "mistral": dense.mistral,
    "ministral": dense.mistral,
    "ministral3": dense.mistral,
}


def _chosen_text(top: ConfigFields, readers: Mapping[str, TextReader], *, tied: bool = True) -> TextModelSpec:
    """A language model whose family the config chooses, by the `model_type` inside."""
    _require(top, "text_config")
    fields = _text_fields(top, tied=tied)
    return readers[_inner_type(fields, tuple(readers))](fields)


def _require(top: ConfigFields, name: str) -> None:
    if name not in top:
        raise InvalidConfig(top.where(name), "missing", "add it, or point to the model's own config.json")


def _part(top: ConfigFields, name: str, *kinds: str) -> ConfigFields:
    """A part of the config that is of one of these types, or says nothing of its type."""
    fields = top.child(name)
    if "model_type" in fields:
        _inner_type(fields, kinds)
    return fields


def _inner_type(fields: ConfigFields, kinds: tuple[str, ...]) -> str:
    kind, where = fields.text("model_type"), fields.where("model_type")
    if not kind:
        raise InvalidConfig(where, "missing", f"it says which of {', '.join(kinds)} is inside")
    if kind not in kinds:
        raise UnsupportedModel(f"config field '{where}': {kind[:60]!r} is not one of {', '.join(kinds)} of this family")
    return kind


def internvl(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    """The native format of `transformers`; it ties the head unless the top of the config says otherwise."""
    text = _chosen_text(top, INTERNVL_TEXT)
    tower = tiled.internvl(top.child("vision_config"), top, text.hidden, processor, native=True)
    return Multimodal(text, (tower,))


def internvl_chat(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    """The format of InternVL's own repositories; the language model's config decides on tying."""
    fields = top.child("llm_config")
    text = INTERNVL_TEXT[_inner_type(fields, tuple(INTERNVL_TEXT))](fields)
    tower = tiled.internvl(top.child("vision_config"), top, text.hidden, processor, native=False)
    return Multimodal(text, (tower,))


def gemma3(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = gemma.gemma3(_text_fields(top, tied=True))
    vision = _part(top, "vision_config", "siglip_vision_model")
    tower = siglip.gemma3(vision, text.hidden, top.integer("mm_tokens_per_image", default=256))
    return Multimodal(text, (tower,))


def gemma4(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = gemma.gemma4(_text_fields(top, tied=True))
    towers = []
    if "vision_config" in top:
        towers.append(native.gemma4(top.child("vision_config"), text.hidden))
    if "audio_config" in top:
        towers.append(audio.gemma4_audio(top.child("audio_config"), text.hidden))
    return Multimodal(text, tuple(towers))


_DEFAULT_TOWER = "the config has no vision_config: the vision tower is counted with its class's default dimensions"


def llama4(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = mixed.llama4(_text_fields(top, tied=False))
    notes = () if "vision_config" in top else (_DEFAULT_TOWER,)
    return Multimodal(text, (tiled.llama4(top.child("vision_config"), text.hidden, processor),), notes)


def kimi_k25(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = _chosen_text(top, KIMI_TEXT)
    return Multimodal(text, (native.moonvit(top.child("vision_config"), text.hidden, processor, patches=16384),))


def kimi_vl(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = latent.deepseek_v3(_text_fields(top, tied=False))
    return Multimodal(text, (native.moonvit(top.child("vision_config"), text.hidden, processor, patches=4096),))


def kimi_k3(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = delta.kimi_linear(_text_fields(top, tied=False))
    tower = native.moonvit(top.child("vision_config"), text.hidden, processor, patches=16384)
    return Multimodal(text, (tower,), ("Kimi K3's code is not public in transformers: sizes are from its config only",))


def lfm2_vl(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = _chosen_text(top, {"lfm2": convolution.lfm2})
    vision = _part(top, "vision_config", "siglip2_vision_model")
    return Multimodal(text, (siglip.lfm2_vl(vision, top, text.hidden, processor),))


def minimax_m3_vl(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = mixed.minimax_m3(_text_fields(top, tied=False))
    return Multimodal(text, (native.minimax_m3(top.child("vision_config"), top, text.hidden, processor),))


def minicpmv(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    """MiniCPM-V before 4.6: the version decides which language model the flat fields describe."""
    readers: dict[str, TextReader] = {
        "2.5": dense.llama,
        "2.6": dense.qwen2,
        "4": dense.llama,
        "4.0": dense.llama,
        "4.5": dense.qwen3,
    }
    version = str(top.raw("version"))
    if version not in readers:
        raise UnsupportedModel(f"config field 'version': MiniCPM-V {version[:20]} is not one of {', '.join(readers)}")
    text = readers[version](top)
    return Multimodal(text, (siglip.minicpmv(top.child("vision_config"), top, text.hidden),))


def minicpmv4_6(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = _chosen_text(top, {"qwen3_5_text": delta.qwen3_5}, tied=False)
    return Multimodal(text, (siglip.minicpmv4_6(top.child("vision_config"), top, text.hidden),))


def mistral3(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = _chosen_text(top, MISTRAL_TEXT)
    vision = _part(top, "vision_config", "pixtral")
    return Multimodal(text, (native.pixtral(vision, top, text.hidden),))


def molmo(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = legacy.molmo_text(top)
    return Multimodal(text, (tiled.molmo(text.hidden, top.integer("intermediate_size") // 2),))


def vila(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = dense.llama(top.child("llm_cfg"))
    return Multimodal(text, (siglip.vila(top.child("vision_tower_cfg"), text.hidden),))


def step3p7(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = mixed.step3p7(_text_fields(top, tied=False), flat="text_config" not in top)
    notes = () if "vision_config" in top else (_DEFAULT_TOWER,)
    return Multimodal(text, (tiled.step3p7(top.child("vision_config"), text.hidden),), notes)


# Language models that published models of the LLaVA line are on.
LLAVA_TEXT: dict[str, TextReader] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "qwen2": dense.qwen2,
    "gemma": gemma.gemma,
    "phi3": dense.phi3,
}


def llava(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    """LLaVA 1.5, on a CLIP tower; Pixtral in the format of `transformers` is a LLaVA on its own tower."""
    text = _llava_text(top)
    vision = top.child("vision_config")
    if vision.text("model_type") == "pixtral":
        return Multimodal(text, (native.pixtral(vision, top, text.hidden, merges=False),))
    return Multimodal(text, (clip.llava(_part(top, "vision_config", "clip_vision_model"), top, text.hidden),))


def llava_next(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = _llava_text(top)
    vision = _part(top, "vision_config", "clip_vision_model")
    return Multimodal(text, (clip.llava(vision, top, text.hidden, tiles=5, newline=True),))


def _llava_text(top: ConfigFields) -> TextModelSpec:
    """Configs of the line leave out what equals the class's defaults, the family of the language model too."""
    fields = _text_fields(top, tied=False)
    return LLAVA_TEXT[_inner_type(fields, tuple(LLAVA_TEXT))](fields)


def phi3_v(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    text = dense.phi3(top)
    return Multimodal(text, (clip.phi3_v(text.hidden, processor.integer("num_crops", default=16)),))


def deepseek_vl2(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    """DeepSeek-VL2: the small ones' language model is a DeepSeek V2 without latents."""
    fields = top.child("language_config")
    text = experts.deepseek_moe(fields) if fields.raw("use_mla") is False else latent.deepseek_v2(fields)
    tower = siglip.deepseek_vl2(top.child("vision_config"), top.child("projector_config"), text.hidden)
    return Multimodal(text, (tower,))


_CROSSING = (3, 8, 13, 18, 23, 28, 33, 38)  # where the config does not say


def mllama(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    """Llama 3.2 Vision: some layers attend to the image instead of the text."""
    fields = _text_fields(top, tied=False)
    size = read_dimensions(fields, {"num_key_value_heads": 8})
    crossing = set(fields.integers("cross_attention_layers") if "cross_attention_layers" in fields else _CROSSING)
    tower = tiled.mllama(top.child("vision_config"), size.hidden)
    image_tokens = tower.limits.max_tiles * (tower.limits.tile_pixels // tower.pixels_per_patch + 1)

    def make(kind: str) -> LayerSpec:
        crosses = kind == "cross"
        mixer = attention(
            size.hidden,
            size.heads,
            size.kv_heads,
            size.head_dim,
            prefix="cross_attn" if crosses else "self_attn",
            head_norm=HeadNorm.PER_HEAD if crosses else HeadNorm.NONE,
        )
        ff = mlp(size.hidden, fields.integer("intermediate_size"))
        gates = vector("gates", 2) if crosses else []
        if crosses:
            kept = KvCache("image", mixer.kv[0].heads, mixer.kv[0].elements_per_head, window=image_tokens)
            mixer = replace(mixer, kv=(kept,))
        return layer(mixer, ff, norms=[*norms(size.hidden, *PRE_NORMS), *gates])

    layers = by_kind(tuple("cross" if i in crossing else "self" for i in range(size.layers)), make)
    head = Tensor("lm_head", (size.vocab, size.hidden), 0, linear=True)
    outer = [*outer_tensors(size.hidden, size.vocab + 8, tied=True), head]  # eight image tokens on top
    text = TextModelSpec(size.hidden, size.vocab, size.max_positions, layers, tuple(outer))
    return Multimodal(text, (tower,))


def qwen2_audio(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    fields = top.child("text_config")
    text = dense.qwen2(fields.merged(tie_word_embeddings=fields.boolean("tie_word_embeddings", False)))
    return Multimodal(text, (audio.qwen2_audio(top.child("audio_config"), text.hidden, processor),))


_TALKER = "planned as the thinker: the parts that speak (talker, code2wav) are not counted"
_SPEAKS = "the parts that speak (talker, token2wav) are counted; an engine that loads the thinker alone needs less"


def qwen2_5_omni(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    thinker = top.child("thinker_config") if "thinker_config" in top else top
    text = dense.qwen2(_text_fields(thinker, tied=False))
    towers = (
        qwen.qwen2_5_vl(thinker.child("vision_config"), processor),
        audio.qwen2_5_omni(thinker.child("audio_config"), text.hidden, processor),
    )
    if thinker is top:
        return Multimodal(text, towers)
    if "talker_config" not in top or not top.boolean("enable_audio_output", True):
        return Multimodal(text, towers, (_TALKER,))
    voice = (*speech.talker(top.child("talker_config")), *speech.token2wav(top.child("token2wav_config")))
    return Multimodal(replace(text, tensors=text.tensors + voice), towers, (_SPEAKS,))


def qwen3_omni_moe(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    thinker = top.child("thinker_config") if "thinker_config" in top else top
    text = experts.qwen3_moe(_text_fields(thinker, tied=False))
    for part in ("vision_config", "audio_config"):
        _require(thinker, part)
    towers = (
        qwen.qwen3_vl(thinker.child("vision_config"), processor, deepstack=3),
        audio.qwen3_audio(thinker.child("audio_config"), text.hidden, projector="audio_tower.proj"),
    )
    return Multimodal(text, towers, (_TALKER,) if thinker is not top else ())


def qwen3_asr(top: ConfigFields, processor: ConfigFields) -> Multimodal:
    """Published under a thinker, whose language model decides on tying; saved by `transformers` without one."""
    if "thinker_config" in top:
        thinker = top.child("thinker_config")
        text = dense.qwen3(thinker.child("text_config").behind(tie_word_embeddings=True))
    else:
        thinker = top
        text = _chosen_text(top, {"qwen3": dense.qwen3})
    _require(thinker, "audio_config")
    tower = audio.qwen3_audio(thinker.child("audio_config"), text.hidden, projector="multi_modal_projector.linear_")
    return Multimodal(text, (tower,))
