"""Videos in prompts, as frames: what the engine says about them is what `generate` says, token for token."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any

import pytest

from brim.errors import InvalidRequest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.engine import Engine  # noqa: E402
from brim.engine.front.answers import Completion  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.integration.test_engine_vision import (  # noqa: E402
    BLOCK,
    DRAWN,
    IMAGE,
    VIDEO,
    engine_of,
    grid_inputs,
    model_of,
    text_of,
)

KINDS = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
GRID = (3, 4, 8)  # frames (of two each), rows and columns of patches
FRAME = GRID[1] * GRID[2] // 4
GREEDY = SamplingParams(max_tokens=DRAWN, temperature=0, ignore_eos=True)


def video(kind: str, *, seconds: float = 1.0) -> dict[str, Any]:
    """A processor's output."""
    pixels = torch.randn(GRID[0] * GRID[1] * GRID[2], 96, generator=torch.Generator().manual_seed(5))
    timed = {"second_per_grid_ts": torch.tensor([seconds])} if kind == "qwen2_5_vl" else {}
    return {"pixel_values_videos": pixels, "video_grid_thw": torch.tensor([GRID]), **timed}


@cache
def tokens_of(kind: str) -> tuple[int, ...]:
    """A prompt with an image and a video; the newer families write the time before each frame."""
    rng = random.Random(7)
    apart = kind.startswith("qwen3")
    frames = [[*(text_of(rng, 2) if apart else ()), *[VIDEO] * FRAME] for _ in range(GRID[0])]
    shown = [token for frame in frames for token in frame]
    return (*text_of(rng, 5), IMAGE, IMAGE, *text_of(rng, 3), *shown, *text_of(rng, 4))


def image() -> dict[str, Any]:
    return {**grid_inputs((1, 2, 4)), "pixel_values": torch.randn(8, 96, generator=torch.Generator().manual_seed(1))}


def reference(kind: str, given: dict[str, Any]) -> tuple[int, ...]:
    model = model_of(kind)
    model.base_model.set_attn_implementation("sdpa")
    ids = torch.tensor([tokens_of(kind)])
    types = (ids == IMAGE).int() + 2 * (ids == VIDEO).int()
    fixed = {"max_new_tokens": DRAWN, "min_new_tokens": DRAWN, "do_sample": False, "eos_token_id": None}
    output = model.generate(
        ids, attention_mask=torch.ones_like(ids), mm_token_type_ids=types, pad_token_id=0, **fixed, **image(), **given
    )
    return tuple(output[0, ids.shape[1] :].tolist())


def run(engine: Engine, kind: str, given: dict[str, Any]) -> Completion:
    engine.submit(tokens_of(kind), GREEDY, images=image(), videos=given)
    while not engine.idle:
        for update in engine.step():
            if update.completion is not None:
                return update.completion
    raise AssertionError("no answer")


@pytest.fixture(scope="module")
def engines() -> Iterator[Callable[[str], Engine]]:
    """An engine of each kind, made when it is first asked for."""
    with ExitStack() as opened:
        yield cache(lambda kind: opened.enter_context(engine_of(kind)))


@pytest.mark.parametrize("kind", sampled(KINDS, ("qwen3_vl",)))
def test_same_tokens_as_generate_in_chunks(kind: str) -> None:
    with engine_of(kind) as engine:
        found = run(engine, kind, video(kind))
        assert len(engine.model.runner.features) == 0
    assert found.tokens == reference(kind, video(kind))


def test_a_prefix_is_shared_only_by_frames_of_the_same_times() -> None:
    kind = "qwen2_5_vl"
    slower = video(kind, seconds=9.0)
    with engine_of(kind) as engine:
        first, again, other = (run(engine, kind, one) for one in (video(kind), video(kind), slower))
    assert again.tokens == first.tokens
    assert again.reused_tokens > tokens_of(kind).index(VIDEO) + FRAME
    assert other.tokens == reference(kind, slower)
    assert other.reused_tokens <= tokens_of(kind).index(VIDEO) + FRAME + BLOCK  # the first frame is at the same time


@pytest.mark.parametrize(
    ("kind", "tokens", "changes", "says"),
    [
        ("qwen3_vl", [5, *[VIDEO] * 24, 6], {}, "in runs of 24 where the videos take 8, 8, 8"),
        ("qwen2_vl", [5, *[VIDEO] * 23, 6], {}, "take 24 video tokens where the prompt has 23"),
        ("qwen2_vl", [5, *[VIDEO] * 24, 6], {"video_grid_thw": torch.tensor([[2, 4, 8]])}, "96 patches where"),
        ("qwen2_vl", "a video", {}, "token ids as the prompt"),
        ("gemma3", [5, 6], {}, "this model takes no videos"),
    ],
)
def test_bad_videos_are_refused(
    engines: Callable[[str], Engine], kind: str, tokens: Any, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidRequest, match=says):
        engines(kind).submit(tokens, videos={**video(kind), **changes})
    assert engines(kind).idle


def test_frames_are_limited_like_images() -> None:
    with (
        engine_of("qwen2_vl", max_image_pixels=256) as engine,
        pytest.raises(InvalidRequest, match="videos: frame 0 has 512 pixels after processing"),
    ):
        engine.submit([5, *[VIDEO] * 24, 6], videos=video("qwen2_vl"))
