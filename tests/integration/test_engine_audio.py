"""Audio in prompts, alone and beside images: what the engine says about it is what `generate` says, token for token."""

from __future__ import annotations

import json
import random
import wave
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brim.errors import InvalidRequest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brim.cli.main import run as run_command  # noqa: E402
from brim.engine.engine import Engine  # noqa: E402
from brim.engine.front.answers import Completion  # noqa: E402
from brim.engine.media.parts import MediaKind  # noqa: E402
from brim.engine.media.prepare import GivenMedia  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.requests.request import MediaSpan  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.weights.load import LoadedModel, load  # noqa: E402
from brim.model.transformers_classes import find_class  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.integration.tiny_media import (  # noqa: E402
    BLOCK,
    DRAWN,
    IMAGE,
    MROPE,
    TEXT,
    VOCAB,
    as_loaded,
    generated,
    spread,
    text_of,
    tokens_of,
)

AUDIO, VIDEO = 101, 102
SEES, SEEN, HEARS, HEARD = 103, 104, 105, 106  # the tokens before and behind an image or an audio
BINS = 8
FRAMES = 100  # that the tower of Qwen2-Audio takes
WHISPER: dict[str, Any] = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 48,
    "num_mel_bins": BINS,
    "max_source_positions": FRAMES // 2,
    "initializer_range": 0.15,
}
VISION: dict[str, Any] = {
    "depth": 2,
    "num_heads": 2,
    "patch_size": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "initializer_range": 0.15,
}
AROUND = {"vision_start_token_id": SEES, "audio_start_token_id": HEARS, "audio_end_token_id": HEARD}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_audio": {
        "text_config": {**TEXT, "model_type": "qwen2"},
        "audio_config": {**WHISPER, "model_type": "qwen2_audio_encoder"},
        "audio_token_index": AUDIO,
    },
    "qwen2_5_omni_thinker": {
        "text_config": {**TEXT, **MROPE},
        "audio_config": {**WHISPER, "output_dim": 64, "n_window": 10},
        "vision_config": {**VISION, "window_size": 16, "fullatt_block_indexes": [1]},
        "audio_token_index": AUDIO,
        "image_token_index": IMAGE,
        "video_token_index": VIDEO,
        **AROUND,
    },
    "qwen3_omni_moe_thinker": {
        "text_config": {**TEXT, **MROPE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
        "audio_config": {**WHISPER, "output_dim": 64, "downsample_hidden_size": 8, "n_window_infer": 100},
        "vision_config": {**VISION, "num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]},
        "audio_token_id": AUDIO,
        "image_token_id": IMAGE,
        "video_token_id": VIDEO,
        **AROUND,
    },
    "gemma4": {
        "text_config": {
            **TEXT,
            "sliding_window": 12,
            "layer_types": ["sliding_attention", "full_attention"],
            "global_head_dim": 32,
            "vocab_size_per_layer_input": VOCAB,
            "hidden_size_per_layer_input": 8,
            "num_kv_shared_layers": 0,
            "use_bidirectional_attention": "vision",
        },
        "vision_config": {
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 4,
            "pooling_kernel_size": 2,
            "position_embedding_size": 64,
            "initializer_range": 0.15,
        },
        "audio_config": {
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "subsampling_conv_channels": [BINS, 4],
            "attention_chunk_size": 4,
            "attention_context_left": 5,
            "output_proj_dims": 24,
            "initializer_range": 0.15,
        },
        "audio_token_id": AUDIO,
        "image_token_id": IMAGE,
    },
}
KINDS = tuple(CONFIGS)
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """Token ids with media tokens in them, and the processor's output."""

    tokens: tuple[int, ...]
    images: Inputs = field(default_factory=dict)
    audios: Inputs = field(default_factory=dict)


@cache
def model_of(kind: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    transformers.logging.set_verbosity_error()
    config = CONFIG_MAPPING[kind].from_dict({"model_type": kind, **CONFIGS[kind]})
    torch.manual_seed(3)
    return spread(find_class(kind, CONFIGS[kind])(config).float().eval(), never_drawn=slice(IMAGE, None))


def loaded_of(kind: str, folder: Path | None = None) -> LoadedModel:
    return as_loaded(model_of(kind), folder)


def engine_of(kind: str, *, kv_tokens: int = 512, folder: Path | None = None, probe: Any = None, **more: Any) -> Engine:
    settings = EngineSettings(**{"max_batch": 4, "max_batch_tokens": 20, "block_size": BLOCK, **more})
    return Engine(loaded_of(kind, folder), kv_tokens=kv_tokens, settings=settings, device="cpu", probe=probe)


def tokens_in(kind: str, frames: int) -> int:
    """Tokens of an audio, as each family's processor writes them."""
    halved = (frames - 1) // 2 + 1
    match kind:
        case "gemma4":
            return (halved - 1) // 2 + 1
        case "qwen3_omni_moe_thinker":
            rest = frames % 100
            return (((rest - 1) // 2 + 1 - 1) // 2 + 1 - 1) // 2 + 1 + frames // 100 * 13
    return (halved - 2) // 2 + 1


def audio_of(kind: str, lengths: list[int], seed: int) -> Inputs:
    """Mel frames of several audios, padded, and the mask over them."""
    noise = torch.Generator().manual_seed(seed)
    most = FRAMES if kind == "qwen2_audio" else max(lengths) + 3
    mask = (torch.arange(most) < torch.tensor(lengths)[:, None]).long()
    features = torch.randn(len(lengths), most, BINS, generator=noise) * mask[..., None]
    if kind == "gemma4":
        return {"input_features": features, "input_features_mask": mask.bool()}
    return {"input_features": features.transpose(1, 2).contiguous(), "feature_attention_mask": mask}


def image_of(kind: str, seed: int) -> tuple[int, Inputs]:
    noise = torch.Generator().manual_seed(seed)
    if kind == "gemma4":
        places = torch.cartesian_prod(torch.arange(4), torch.arange(4))[None]
        return 4, {"pixel_values": torch.rand(1, 16, 48, generator=noise), "image_position_ids": places}
    return 8, {"pixel_values": torch.randn(32, 96, generator=noise), "image_grid_thw": torch.tensor([[1, 4, 8]])}


def prompt_of(kind: str, audios: int, seed: int, *, with_image: bool = False) -> Prompt:
    """Text, and audio with text between, and an image after the first where that is wanted."""
    rng = random.Random(seed)
    tokens = text_of(rng, rng.randrange(2, 9))
    longest = FRAMES if kind == "qwen2_audio" else 130
    lengths = [rng.randrange(20, longest) for _ in range(audios)]
    images: Inputs = {}
    for frames in lengths:
        tokens += [HEARS, *[AUDIO] * tokens_in(kind, frames), HEARD, *text_of(rng, rng.randrange(1, 5))]
        if with_image and not images:
            count, images = image_of(kind, seed)
            tokens += [SEES, *[IMAGE] * count, SEEN]
    return Prompt(tuple(tokens + text_of(rng, 3)), images, audio_of(kind, lengths, seed) if audios else {})


@cache
def prompts_of(kind: str) -> tuple[Prompt, ...]:
    both = kind != "qwen2_audio"
    return tuple(
        prompt_of(kind, audios, seed, with_image=both and seed in (2, 3)) for seed, audios in enumerate((1, 0, 2, 1))
    )


@cache
def answers_of(kind: str) -> tuple[tuple[int, ...], ...]:
    return tuple(reference(kind, prompt) for prompt in prompts_of(kind))


def reference(kind: str, prompt: Prompt) -> tuple[int, ...]:
    """What `generate` makes of a prompt, with the attention the model was made with."""
    model = model_of(kind)
    model.config.get_text_config()._attn_implementation_internal = "sdpa"
    ids = torch.tensor([prompt.tokens])
    more = {"mm_token_type_ids": (ids == IMAGE).int() + 3 * (ids == AUDIO).int()} if kind == "gemma4" else {}
    return generated(model, prompt.tokens, **prompt.images, **prompt.audios, **more)


def run(engine: Engine, prompts: tuple[Prompt, ...]) -> list[Completion]:
    greedy = SamplingParams(max_tokens=DRAWN, temperature=0, ignore_eos=True)
    return engine.generate(
        [prompt.tokens for prompt in prompts],
        greedy,
        images=[prompt.images for prompt in prompts],
        audios=[prompt.audios for prompt in prompts],
    )


@pytest.mark.parametrize("kind", sampled(KINDS, ("qwen2_audio", "qwen3_omni_moe_thinker", "gemma4")))
def test_same_tokens_as_generate_in_chunks_beside_others(kind: str) -> None:
    want = answers_of(kind)
    with engine_of(kind) as engine:
        assert tokens_of(run(engine, prompts_of(kind))) == list(want)
        assert len(engine.model.runner.features) == 0
    assert len(set(want)) == len(want)


def test_prompts_are_scored_by_a_class_that_makes_logits_of_all_rows() -> None:
    kind = "qwen2_audio"
    prompt, scored = prompts_of(kind)[0], SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0)
    with engine_of(kind) as engine:
        (found,) = engine.generate([prompt.tokens], scored, audios=[prompt.audios])
    model, ids = model_of(kind), torch.tensor([prompt.tokens])
    model.config.get_text_config()._attn_implementation_internal = "sdpa"
    with torch.no_grad():
        rows = model(input_ids=ids, attention_mask=torch.ones_like(ids), **prompt.audios).logits[0].log_softmax(-1)
    want = rows[:-1].gather(1, ids[0, 1:, None])[:, 0].tolist()
    assert [one.logprob for one in found.prompt_logprobs] == pytest.approx(want, abs=1e-4)


@pytest.mark.parametrize("kind", sampled(KINDS, ("qwen3_omni_moe_thinker",)))
def test_same_tokens_after_preemption(kind: str) -> None:
    """Two requests and one free block: one is preempted, and is recomputed with its audio."""
    prompts = (prompts_of(kind)[2], prompts_of(kind)[0])
    room = sum(-(-(len(prompt.tokens) + 1) // BLOCK) for prompt in prompts) + 1
    with engine_of(kind, kv_tokens=room * BLOCK, max_batch=2, reuse_prefixes=False, admission_prior=1) as engine:
        done = run(engine, prompts)
    assert tokens_of(done) == [answers_of(kind)[2], answers_of(kind)[0]]
    assert sum(one.preemptions for one in done) > 0


@pytest.mark.parametrize("kind", sampled(KINDS, ("gemma4",)))
def test_prefixes_are_shared_by_the_same_audio_only(kind: str) -> None:
    prompt = prompts_of(kind)[0]
    louder = {**prompt.audios, "input_features": prompt.audios["input_features"] * 2}
    other = Prompt(prompt.tokens, audios=louder)
    with engine_of(kind) as engine:
        first, again, different = (run(engine, (one,))[0] for one in (prompt, prompt, other))
    assert tokens_of([first, again, different]) == [answers_of(kind)[0]] * 2 + [reference(kind, other)]
    assert (first.reused_tokens, again.reused_tokens >= BLOCK) == (0, True)
    assert different.reused_tokens <= prompt.tokens.index(AUDIO)


def test_spans_and_marks() -> None:
    kind = "qwen3_omni_moe_thinker"
    prompt = prompts_of(kind)[3]
    with engine_of(kind) as engine:
        assert engine.model.media is not None
        tokens, media, spans, marks = engine.model.media.prepare(
            prompt.tokens, GivenMedia(prompt.images, prompt.audios)
        )
    first, image = tokens.index(AUDIO), tokens.index(IMAGE)
    sounds, seen = tokens.count(AUDIO), tokens.count(IMAGE)
    assert spans == (MediaSpan(first, first + sounds), MediaSpan(image, image + seen))
    assert [place for place, _ in marks] == [first, image]
    assert [(part.kind, part.tokens) for part in media.parts] == [(MediaKind.AUDIO, sounds), (MediaKind.IMAGE, seen)]
    assert media.places.tolist() == [*range(first, first + sounds), *range(image, image + seen)]


def test_media_inside_each_other_are_refused() -> None:
    count, images = image_of("gemma4", 0)
    tokens = (5, IMAGE, *[AUDIO] * tokens_in("gemma4", 20), *[IMAGE] * (count - 1), 6)
    with engine_of("gemma4") as engine, pytest.raises(InvalidRequest, match="stand between each other"):
        engine.submit(tokens, images=images, audios=audio_of("gemma4", [20], 0))


def test_tokens_that_the_class_does_not_expect_are_refused() -> None:
    count, images = image_of("qwen2_5_omni_thinker", 0)
    tokens = (5, *[IMAGE] * count, SEES)  # a start of an image with nothing behind it
    with engine_of("qwen2_5_omni_thinker") as engine, pytest.raises(InvalidRequest, match="tokens around them"):
        engine.submit(tokens, images=images)


def test_models_that_take_no_such_media() -> None:
    with engine_of("qwen2_audio") as engine:
        with pytest.raises(InvalidRequest, match="images: this model takes no images"):
            engine.submit((5, IMAGE, 6), images={"pixel_values": torch.zeros(4, 96)})
        with pytest.raises(InvalidRequest, match="images: this model takes no images"):
            engine.image_tokens("one.png")
        assert engine.image_limits is None
    with Engine("brim-random", kv_tokens=512, settings=EngineSettings(max_batch=4), device="cpu") as engine:
        with pytest.raises(InvalidRequest, match="audios: this model takes text only"):
            engine.submit("hello", audios=["one.wav"])
        assert engine.worst_audio() is None


def test_text_in_and_files_in(tmp_path: Path) -> None:
    """The model's own processor, from its folder; another sampling rate is resampled."""
    folder, kind = qwen2_audio_folder(tmp_path), "qwen2_audio"
    sound = (np.sin(np.arange(12_000) / 7) * 12_000).astype(np.int16)
    path = written(sound, tmp_path / "sound.wav")
    text = "w3 w4 <|audio_bos|> <|AUDIO|> <|audio_eos|> w5"
    greedy = SamplingParams(max_tokens=DRAWN, temperature=0, ignore_eos=True)
    with engine_of(kind, folder=folder) as engine:
        assert engine.model.media is not None
        output = engine.model.media.processor(
            text=[text], audio=[sound / np.float32(32768)], sampling_rate=16_000, return_tensors="pt"
        )
        prompt = Prompt(
            tuple(output["input_ids"][0].tolist()),
            audios={name: output[name] for name in ("input_features", "feature_attention_mask")},
        )
        assert prompt.tokens.count(AUDIO) == tokens_in(kind, 75)
        sources = (str(path), path, path.read_bytes(), (sound, 16_000))
        done = engine.generate([text] * 4, greedy, audios=[[source] for source in sources])
        (again,) = engine.generate([text], greedy, audios=[[(np.repeat(sound, 3), 48_000)]])
        assert len(again.tokens) == DRAWN
        with pytest.raises(InvalidRequest, match=r"2 given for 1 placeholders in the prompt; write <\|AUDIO"):
            engine.submit(text, audios=[path, path])
        with pytest.raises(InvalidRequest, match=r"audio 0 lasts 1.50 seconds, more than the 1 of the model's tower"):
            engine.submit(text, audios=[(np.repeat(sound, 2), 16_000)])
        with pytest.raises(InvalidRequest, match="audio 0 cannot be read"):
            engine.submit(text, audios=[tmp_path / "nothing.wav"])
    assert tokens_of(done) == [reference(kind, prompt)] * 4


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("qwen2_5_omni", "Qwen2_5OmniForConditionalGeneration"),
        pytest.param("qwen3_omni_moe", "Qwen3OmniMoeForConditionalGeneration", marks=pytest.mark.soak),
    ],
)
def test_a_model_that_speaks_is_loaded_as_its_thinker(kind: str, name: str, tmp_path: Path) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    thinker = {"model_type": f"{kind}_thinker", **CONFIGS[f"{kind}_thinker"]}
    config = CONFIG_MAPPING[kind].from_dict({"thinker_config": thinker, "enable_audio_output": False})
    whole = getattr(transformers, name)(config).float()
    whole.save_pretrained(tmp_path)
    loaded = load(tmp_path, dtype="fp32")
    assert type(loaded.model) is find_class(f"{kind}_thinker", {})
    want = dict(whole.thinker.named_parameters())
    assert all(torch.equal(want[key], value) for key, value in loaded.model.named_parameters())


def written(sound: Any, path: Path) -> Path:
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(sound.tobytes())
    return path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = qwen2_audio_folder(tmp_path)
    model_of("qwen2_audio").save_pretrained(folder)
    path = written((np.sin(np.arange(9_000) / 5) * 9_000).astype(np.int16), tmp_path / "sound.wav")
    text = "w3 w4 <|audio_bos|> <|AUDIO|> <|audio_eos|> w5"
    with engine_of("qwen2_audio", folder=folder) as engine:
        (want,) = engine.generate([text], SamplingParams(max_tokens=4, temperature=0), audios=[[path]])
    options = ["--device", "cpu", "--dtype", "fp32", "--max-tokens", "4", "--kv-tokens", "512", "--quiet", "--json"]
    assert run_command(["generate", str(folder), "--raw", "--prompt", text, "--audio", str(path), *options]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    assert tuple(answer["tokens"]) == want.tokens


def words_tokenizer(special: dict[str, str], first: int) -> Any:
    """A tokenizer of words; those that stand for media begin at `first`."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = ["<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(3, first)), *special.values()]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w3"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens=special,
    )


def qwen2_audio_folder(folder: Path) -> Path:
    """A tokenizer of words and a feature extractor."""
    special = {"audio_token": "<|AUDIO|>", "audio_bos_token": "<|audio_bos|>", "audio_eos_token": "<|audio_eos|>"}
    fast = words_tokenizer(special, AUDIO)
    extractor = transformers.WhisperFeatureExtractor(feature_size=BINS, chunk_length=1)
    model_of("qwen2_audio").config.save_pretrained(folder)
    transformers.Qwen2AudioProcessor(extractor, fast).save_pretrained(folder)
    return folder
