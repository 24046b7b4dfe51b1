"""Images in prompts: what the engine says about them is what `generate` says, token for token."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InvalidRequest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brim.engine.engine import Engine  # noqa: E402
from brim.engine.front.answers import Completion  # noqa: E402
from brim.engine.media.prepare import GivenMedia  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.requests.request import MediaSpan  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.weights.load import LoadedModel  # noqa: E402
from tests.integration import tiny_media  # noqa: E402
from tests.integration.tiny_media import (  # noqa: E402
    BLOCK,
    DRAWN,
    IMAGE,
    MROPE,
    VOCAB,
    as_loaded,
    generated,
    spread,
    text_of,
    tokens_of,
)

VIDEO, WINDOW = 101, 12
TEXT: dict[str, Any] = {**tiny_media.TEXT, "num_hidden_layers": 4}
TOWER: dict[str, Any] = {"depth": 3, "num_heads": 2, "patch_size": 4, "initializer_range": 0.15}
QWEN3_TOWER = {
    **TOWER,
    "hidden_size": 32,
    "intermediate_size": 48,
    "out_hidden_size": 64,
    "num_position_embeddings": 64,
}
SQUARE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "patch_size": 4,
    "initializer_range": 0.15,
}
GEMMA4 = {
    "sliding_window": WINDOW,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "global_head_dim": 32,
    "vocab_size_per_layer_input": VOCAB,
}
GEMMA4_TOWER = {
    **SQUARE,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "qwen2_vl": {
        "text_config": {**TEXT, **MROPE},
        "vision_config": {**TOWER, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 2},
    },
    "qwen2_5_vl": {
        "text_config": {**TEXT, **MROPE},
        "vision_config": {
            **TOWER,
            "hidden_size": 32,
            "intermediate_size": 48,
            "out_hidden_size": 64,
            "window_size": 16,
            "fullatt_block_indexes": [1],
        },
    },
    "qwen3_vl": {
        "text_config": {**TEXT, **MROPE},
        "vision_config": {**QWEN3_TOWER, "deepstack_visual_indexes": [0, 1]},
    },
    "qwen3_5": {
        "text_config": {
            **TEXT,
            "layer_types": ["linear_attention", "full_attention"] * 2,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
            "rope_parameters": {**MROPE["rope_parameters"], "partial_rotary_factor": 1.0},
        },
        "vision_config": QWEN3_TOWER,
    },
    "internvl": {
        "text_config": {**TEXT, "model_type": "qwen2"},
        "vision_config": {**SQUARE, "image_size": [16, 16], "patch_size": [4, 4]},
        "image_seq_length": 4,
    },
    "gemma3": {
        "text_config": {**TEXT, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2},
        "vision_config": {**SQUARE, "image_size": 32},
        "mm_tokens_per_image": 16,
        "image_token_index": IMAGE,
    },
    "gemma4": {  # images see both ways, in the layers with a window
        "text_config": {**TEXT, **GEMMA4, "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision"},
        "vision_config": GEMMA4_TOWER,
        "audio_config": None,
    },
    "gemma4 per layer": {  # images are causal, and layers have inputs of their own
        "text_config": {**TEXT, **GEMMA4, "hidden_size_per_layer_input": 8, "num_kv_shared_layers": 1},
        "vision_config": GEMMA4_TOWER,
        "audio_config": None,
    },
}
KINDS = tuple(CONFIGS)
Inputs = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    """Token ids with image tokens in them, and the processor's output."""

    tokens: tuple[int, ...]
    inputs: Inputs


@cache
def model_of(kind: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES

    transformers.logging.set_verbosity_error()
    name = kind.split()[0]
    tokens = {"image_token_id": IMAGE, "video_token_id": VIDEO}
    config = CONFIG_MAPPING[name].from_dict({"model_type": name, **tokens, **CONFIGS[kind]})
    torch.manual_seed(3)
    return spread(getattr(transformers, NAMES[name])(config).float().eval(), never_drawn=[IMAGE, VIDEO])


def engine_of(
    kind: str,
    *,
    kv_tokens: int = 512,
    max_batch: int = 4,
    max_batch_tokens: int = 20,
    folder: Path | None = None,
    **more: Any,
) -> Engine:
    settings = EngineSettings(max_batch=max_batch, max_batch_tokens=max_batch_tokens, block_size=BLOCK, **more)
    return Engine(loaded_of(kind, folder), kv_tokens=kv_tokens, settings=settings, device="cpu")


def loaded_of(kind: str, folder: Path | None = None) -> LoadedModel:
    return as_loaded(model_of(kind), folder)


def grid_image(rng: random.Random, noise: Any) -> tuple[int, Inputs]:
    height, width = rng.choice([(4, 8), (6, 4), (8, 8)])
    pixels = torch.randn(height * width, 3 * 2 * 4 * 4, generator=noise)
    return height * width // 4, {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, height, width]])}


def tiled_image(rng: random.Random, noise: Any) -> tuple[int, Inputs]:
    tiles = rng.choice([1, 3])
    return 4 * tiles, {"pixel_values": torch.randn(tiles, 3, 16, 16, generator=noise)}


def square_image(rng: random.Random, noise: Any) -> tuple[int, Inputs]:
    return 16, {"pixel_values": torch.randn(1, 3, 32, 32, generator=noise)}


def patched_image(rng: random.Random, noise: Any) -> tuple[int, Inputs]:
    width, height = rng.choice([(8, 8), (6, 4), (4, 8)])
    grid = [[x, y] for y in range(height) for x in range(width)]
    places = torch.tensor(grid + [[-1, -1]] * (64 - len(grid)))[None]
    pixels = torch.rand(1, 64, 48, generator=noise)
    return len(grid) // 4, {"pixel_values": pixels, "image_position_ids": places}


def image_maker(kind: str) -> Callable[[random.Random, Any], tuple[int, Inputs]]:
    if kind.startswith("qwen"):
        return grid_image
    return {"internvl": tiled_image, "gemma3": square_image}.get(kind, patched_image)


def prompt_of(kind: str, images: int, seed: int) -> Prompt:
    """Text, and images with text between them."""
    rng, noise = random.Random(seed), torch.Generator().manual_seed(seed)
    tokens = text_of(rng, rng.randrange(2, 14))
    inputs: list[Inputs] = []
    for _ in range(images):
        count, one = image_maker(kind)(rng, noise)
        tokens += [IMAGE] * count + text_of(rng, rng.randrange(1, 6))
        inputs.append(one)
    joined = {name: torch.cat([one[name] for one in inputs]) for name in inputs[0]} if inputs else {}
    return Prompt(tuple(tokens + text_of(rng, 3)), joined)


@cache
def prompts_of(kind: str) -> tuple[Prompt, ...]:
    return tuple(prompt_of(kind, images, seed) for seed, images in enumerate((1, 0, 2, 1, 0, 1)))


@cache
def answers_of(kind: str) -> tuple[tuple[int, ...], ...]:
    return tuple(reference(kind, prompt) for prompt in prompts_of(kind))


def reference(kind: str, prompt: Prompt) -> tuple[int, ...]:
    """What `generate` makes of a prompt, with the attention the model was made with."""
    model = model_of(kind)
    model.base_model.set_attn_implementation("sdpa")
    ids = torch.tensor([prompt.tokens])
    types = {"gemma3": "token_type_ids", "internvl": ""}.get(kind, "mm_token_type_ids")
    more = {types: (ids == IMAGE).int()} if types and prompt.inputs else {}
    return generated(model, prompt.tokens, **prompt.inputs, **more)


def run(engine: Engine, prompts: tuple[Prompt, ...], **params: Any) -> list[Completion]:
    """All prompts at once; all answers of one beside each other."""
    greedy = SamplingParams(**{"max_tokens": DRAWN, "temperature": 0, "ignore_eos": True, **params})
    ids = [engine.submit(prompt.tokens, greedy, images=prompt.inputs) for prompt in prompts]
    done = {}
    while not engine.idle:
        for update in engine.step():
            if update.completion is not None:
                done[update.request_id, update.completion.index] = update.completion
    return [done[one, index] for one in ids for index in range(greedy.n)]


def blocks(tokens: int) -> int:
    return -(-tokens // BLOCK)


@pytest.mark.parametrize("kind", KINDS)
def test_same_tokens_as_generate_in_chunks_beside_others(kind: str) -> None:
    want = answers_of(kind)
    with engine_of(kind) as engine:
        assert tokens_of(run(engine, prompts_of(kind))) == list(want)
        assert len(engine.model.runner.features) == 0
    assert len(set(want)) == len(want)


@pytest.mark.parametrize("kind", KINDS)
def test_same_tokens_after_preemption(kind: str) -> None:
    """Two requests and one free block: one is preempted, and is recomputed with its images."""
    prompts = (prompts_of(kind)[2], prompts_of(kind)[0])
    room = sum(blocks(len(prompt.tokens) + 1) for prompt in prompts) + 1
    with engine_of(kind, kv_tokens=room * BLOCK, max_batch=2, reuse_prefixes=False, admission_prior=1) as engine:
        done = run(engine, prompts)
    assert tokens_of(done) == [answers_of(kind)[2], answers_of(kind)[0]]
    assert sum(one.preemptions for one in done) > 0


@pytest.mark.parametrize("kind", ["qwen3_vl", "internvl"])
def test_preemption_inside_an_image(kind: str) -> None:
    prompt = prompts_of(kind)[2]
    with engine_of(kind, max_batch_tokens=6) as engine:
        features = engine.model.runner.features
        engine.submit(prompt.tokens, SamplingParams(max_tokens=DRAWN, temperature=0), images=prompt.inputs)
        while not len(features):
            engine.step()
        scheduler = engine.loop.scheduler
        scheduler.batch.preempt(scheduler.running[-1])
        drawn = [update.token for _ in range(40) for update in engine.step() if update.token is not None]
        assert len(features) == 0
    assert tuple(drawn) == answers_of(kind)[2]


def test_features_of_a_cancelled_request_are_dropped() -> None:
    prompt = prompts_of("qwen3_vl")[2]
    with engine_of("qwen3_vl", max_batch_tokens=6) as engine:
        features = engine.model.runner.features
        request = engine.submit(prompt.tokens, images=prompt.inputs)
        while not len(features):
            engine.step()
        engine.cancel(request)
        run(engine, (prompts_of("qwen3_vl")[1],))
        assert len(features) == 0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "qwen3_5"])  # which keeps no prefixes
def test_prefixes_are_shared_by_the_same_image_only(kind: str) -> None:
    prompt = prompts_of(kind)[5]
    other = Prompt(prompt.tokens, {**prompt.inputs, "pixel_values": prompt.inputs["pixel_values"] * 0.5})
    want, wanted_of_other = answers_of(kind)[5], reference(kind, other)
    with engine_of(kind) as engine:
        first, again = run(engine, (prompt,)), run(engine, (prompt,))
        different = run(engine, (other,))
    assert tokens_of(first + again + different) == [want, want, wanted_of_other]
    assert first[0].reused_tokens == 0
    assert again[0].reused_tokens >= BLOCK
    assert different[0].reused_tokens <= prompt.tokens.index(IMAGE)  # what comes before an image does not depend on it


@pytest.mark.parametrize("kind", ["qwen2_5_vl", "gemma3"])
def test_another_image_behind_leaves_the_prefix_findable(kind: str) -> None:
    """As in a conversation whose next turn has an image of its own."""
    one, two = prompts_of(kind)[0], prompt_of(kind, 1, seed=77)
    both = Prompt(
        one.tokens + two.tokens, {name: torch.cat([one.inputs[name], two.inputs[name]]) for name in one.inputs}
    )
    with engine_of(kind) as engine:
        run(engine, (one,))
        (found,) = run(engine, (both,))
    assert found.tokens == reference(kind, both)
    assert found.reused_tokens >= (len(one.tokens) - 1) // BLOCK * BLOCK


@pytest.mark.parametrize("kind", ["qwen2_vl", "gemma3"])
def test_all_answers_of_a_request_see_the_images(kind: str) -> None:
    with engine_of(kind) as engine:
        assert tokens_of(run(engine, prompts_of(kind)[2:3], n=3)) == [answers_of(kind)[2]] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_towers_keep_their_own_attention(kind: str) -> None:
    model = model_of(kind)
    with engine_of(kind):
        config = model.config
        assert config.get_text_config()._attn_implementation == "brim"
        assert config.vision_config._attn_implementation == "sdpa"
        config.vision_config._attn_implementation_internal = "brim"  # as a model that was loaded with it
    with engine_of(kind):
        assert config.vision_config._attn_implementation == "sdpa"


def test_an_image_token_outside_the_vocabulary() -> None:
    """Some checkpoints of Gemma 3 have it there."""
    prompt = prompts_of("gemma3")[0]
    outside = tuple(VOCAB if token == IMAGE else token for token in prompt.tokens)
    wanted = answers_of("gemma3")[0]
    config = model_of("gemma3").config
    config.image_token_id = VOCAB
    try:
        with engine_of("gemma3") as engine:
            assert tokens_of(run(engine, (Prompt(outside, prompt.inputs),))) == [wanted]
    finally:
        config.image_token_id = IMAGE


def test_spans_and_positions() -> None:
    prompt = Prompt((5, *[IMAGE] * 8, 6, 7), grid_inputs((1, 4, 8)))
    with engine_of("qwen3_vl") as engine:
        assert engine.model.media is not None
        tokens, media, spans, marks = engine.model.media.prepare(prompt.tokens, GivenMedia(prompt.inputs))
        assert (tokens, spans, [place for place, _ in marks]) == (prompt.tokens, (MediaSpan(1, 9),), [1])
        assert media.places.tolist() == list(range(1, 9))
        assert media.positions is not None
        assert media.positions.tolist() == [
            [0, *[1] * 8, 5, 6],
            [0, *[1] * 4, *[2] * 4, 5, 6],
            [0, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6],
        ]
        assert media.rope_shift == -4
    with engine_of("gemma3") as engine:
        assert engine.model.media is not None
        shown = GivenMedia({"pixel_values": torch.zeros(1, 3, 32, 32)})
        prepared = engine.model.media.prepare((5, *[IMAGE] * 16, 6), shown)
        assert prepared[2] == (MediaSpan(1, 17, together=True),)


def grid_inputs(*grids: tuple[int, int, int]) -> Inputs:
    rows = sum(times * height * width for times, height, width in grids)
    return {"pixel_values": torch.zeros(rows, 96), "image_grid_thw": torch.tensor(grids)}


@pytest.mark.parametrize(
    ("tokens", "images", "says"),
    [
        ([5, IMAGE, IMAGE, 6], grid_inputs((1, 2, 2)), "take 1 image tokens where the prompt has 2"),
        ([5, 6], grid_inputs((1, 2, 2)), "take 1 image tokens where the prompt has 0"),
        ([5, IMAGE, IMAGE, 6], grid_inputs((1, 2, 2), (1, 2, 2)), "keep a text token between images"),
        ([5, IMAGE, 6], grid_inputs((1, 2, 3)), "not positive multiples of 2"),
        ([5, IMAGE, 6], {**grid_inputs((1, 2, 2)), "image_grid_thw": torch.tensor([[1, 4, 4]])}, "4 patches where"),
        ([5, IMAGE, 6], {"pixel_values": torch.zeros(4, 96)}, "has no image_grid_thw"),
        ([5, IMAGE, 6], {**grid_inputs((1, 2, 2)), "pixel_values": torch.zeros(4, 95)}, r"must be \(any, 96\)"),
        ([5, IMAGE, 6], {**grid_inputs((1, 2, 2)), "image_grid_thw": torch.ones(1, 3)}, "must hold integers"),
        ([5, IMAGE, 6], {"pixel_values_videos": torch.zeros(4, 96)}, "give it as videos as well"),
        ([5, IMAGE, 6], ["one.png"], "give the processor's output"),
        ([5, IMAGE, "6"], grid_inputs((1, 2, 2)), "integers of at least 0"),
        ("an image", grid_inputs((1, 2, 2)), "give its token ids as the prompt"),
    ],
)
def test_bad_images_are_refused(tokens: Any, images: Any, says: str) -> None:
    with engine_of("qwen2_vl") as engine:
        with pytest.raises(InvalidRequest, match=says):
            engine.submit(tokens, images=images)
        assert engine.idle


def test_patches_that_are_no_grid_are_refused() -> None:
    places = torch.tensor([[[0, 0], [1, 0], [0, 1], [9, 1]]])
    with engine_of("gemma4") as engine, pytest.raises(InvalidRequest, match="do not form a grid"):
        engine.submit([5, IMAGE, 6], images={"pixel_values": torch.rand(1, 4, 48), "image_position_ids": places})


def test_an_image_too_large_for_a_step_is_refused() -> None:
    with engine_of("gemma3", max_batch_tokens=15) as engine, pytest.raises(InvalidRequest, match="computed together"):
        engine.submit((5, *[IMAGE] * 16, 6), images={"pixel_values": torch.zeros(1, 3, 32, 32)})


def test_text_in_and_files_in(tmp_path: Path) -> None:
    """The model's own processor, from its folder."""
    image = pytest.importorskip("PIL.Image")
    folder = gemma3_folder(tmp_path)
    path = tmp_path / "picture.png"
    image.effect_noise((50, 40), 90).save(path)
    greedy = SamplingParams(max_tokens=DRAWN, temperature=0, ignore_eos=True)
    text = "<bos> w1 w2 <start_of_image> w3"
    with engine_of("gemma3", folder=folder) as engine:
        assert engine.model.media is not None
        output = engine.model.media.processor(
            text=[text], images=[[image.open(path).convert("RGB")]], return_tensors="pt", add_special_tokens=False
        )
        prompt = Prompt(tuple(output["input_ids"][0].tolist()), {"pixel_values": output["pixel_values"]})
        assert prompt.tokens.count(IMAGE) == 16
        for source in (path, str(path), path.read_bytes(), image.open(path)):
            engine.submit(text, greedy, images=[source])
        drawn: dict[str, list[int]] = {}
        while not engine.idle:
            for update in engine.step():
                if update.token is not None:
                    drawn.setdefault(update.request_id, []).append(update.token)
        with pytest.raises(InvalidRequest, match="2 given for 1 placeholders"):
            engine.submit(text, images=[path, path])
        with pytest.raises(InvalidRequest, match="image 0 cannot be read"):
            engine.submit(text, images=[tmp_path / "nothing.png"])
        with pytest.raises(InvalidRequest, match="image 0 cannot be read"):
            engine.submit(text, images=[path.read_bytes()[:300]])
        with pytest.raises(InvalidRequest, match="image 0 is a int"):
            engine.submit(text, images=[3])
    assert [tuple(tokens) for tokens in drawn.values()] == [reference("gemma3", prompt)] * 4


def gemma3_folder(folder: Path) -> Path:
    """A tokenizer of words and an image processor."""
    import json

    from tokenizers import Tokenizer, models, pre_tokenizers

    special = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    words = ["<pad>", "<bos>", "<eos>", *(f"w{number}" for number in range(IMAGE - 3)), *special.values()]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        extra_special_tokens=special,
    ).save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Gemma3ImageProcessor", "size": {"height": 32, "width": 32}})
    )
    (folder / "processor_config.json").write_text(
        json.dumps({"processor_class": "Gemma3Processor", "image_seq_length": 16})
    )
    return folder
