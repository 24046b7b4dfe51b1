"""The largest image that a request may have is the one that the worst step encodes, and a fit has memory for it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InvalidRequest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.cli.engine_options import add_engine_options, engine_settings  # noqa: E402
from brim.engine.engine import Engine  # noqa: E402
from brim.engine.media import features as media  # noqa: E402
from brim.engine.media.limits import largest_grid, near_square  # noqa: E402
from brim.engine.media.parts import MediaPart  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.weights.load import LoadedModel  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.records.fit import AttemptOutcome  # noqa: E402
from brim.records.memory import StressKind, StressShape  # noqa: E402
from brim.serving import fit_engine  # noqa: E402
from brim.units import KIB, MIB  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.integration.test_engine_vision import (  # noqa: E402
    BLOCK,
    IMAGE,
    KINDS,
    Inputs,
    model_of,
    prompts_of,
)

PATCH_PIXELS, MERGE = 16, 4  # of all tiny towers
GREEDY = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
LIMIT_TOKENS = 48
PROCESSORS: dict[str, dict[str, Any]] = {
    "qwen": {"size": {"shortest_edge": 64, "longest_edge": LIMIT_TOKENS * MERGE * PATCH_PIXELS}},
    "internvl": {"size": {"height": 24, "width": 24}},
    "gemma3": {"size": {"height": 32, "width": 32}},
    "gemma4": {"max_soft_tokens": LIMIT_TOKENS},
}


def family(kind: str) -> str:
    return next(name for name in PROCESSORS if kind.startswith(name))


def processor_folder(kind: str, folder: Path) -> Path:
    (folder / "preprocessor_config.json").write_text(json.dumps(PROCESSORS[family(kind)]))
    return folder


def engine_of(kind: str, folder: Path | None, *, probe: Any = None, kv_tokens: int = 512, **more: Any) -> Engine:
    model = model_of(kind)
    text = model.config.get_text_config()
    weights = [*model.parameters(), *model.buffers()]
    if probe is not None:
        probe.hold(weights)
    size = sum(tensor.nbytes for tensor in weights)
    loaded = LoadedModel(model, text, model.config, text.vocab_size, 512, (), size, folder, 0.0)
    settings = EngineSettings(**{"max_batch": 4, "max_batch_tokens": 20, "block_size": BLOCK, "max_length": 96, **more})
    return Engine(loaded, kv_tokens=kv_tokens, settings=settings, device="cpu", probe=probe)


def image_of(kind: str, tokens: int, *, rows: int | None = None) -> Inputs:
    """An image of so many tokens, as the family's processor would make it, in the squarest grid."""
    noise = torch.Generator().manual_seed(tokens)
    across, down = largest_grid(tokens, tokens)
    match family(kind):
        case "qwen":
            pixels = torch.randn(tokens * MERGE, 96, generator=noise)
            return {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, across * 2, down * 2]])}
        case "internvl":
            return {"pixel_values": torch.randn(1, 3, across * 8, down * 8, generator=noise)}
        case "gemma3":
            return {"pixel_values": torch.randn(1, 3, across * 8, down * 8, generator=noise)}
    rows = rows or tokens * MERGE
    places = torch.full((1, rows, 2), -1)
    places[0, : tokens * MERGE] = torch.cartesian_prod(torch.arange(across * 2), torch.arange(down * 2))
    return {"pixel_values": torch.rand(1, rows, 48, generator=noise), "image_position_ids": places}


def submit(engine: Engine, tokens: int, image: Inputs) -> str:
    return engine.submit((5, *[IMAGE] * tokens, 6), GREEDY, images=image)


def finish(engine: Engine) -> int:
    """Run everything to its end; how many requests were answered."""
    done = 0
    while not engine.idle:
        done += sum(update.completion is not None for update in engine.step())
    return done


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Elements of the pixels of every call of a tower from now on."""
    sizes: list[int] = []
    run: Callable[..., Any] = media.encode

    def noted(model: Any, part: MediaPart) -> Any:
        sizes.append(part.inputs["pixel_values"].numel())
        return run(model, part)

    monkeypatch.setattr(media, "encode", noted)
    return sizes


def largest_accepted(kind: str, engine: Engine, tokens_up_to: int) -> tuple[int, Inputs]:
    """(tokens, image) of the largest image that is not refused, found by trying."""
    found: tuple[int, Inputs] | None = None
    for tokens in range(1, tokens_up_to):
        padded = {LIMIT_TOKENS * MERGE} if family(kind) == "gemma4" and tokens <= LIMIT_TOKENS else {None}
        for rows in padded:
            image = image_of(kind, tokens, rows=rows)
            try:
                request = submit(engine, tokens, image)
            except InvalidRequest:
                continue
            engine.cancel(request)
            if found is None or image["pixel_values"].numel() >= found[1]["pixel_values"].numel():
                found = tokens, image
    assert found is not None
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_call_of_the_tower_is_larger_than_the_worst(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever image is accepted: with the processor's limit, with the planner's, and with the user's."""
    sizes = calls_of(monkeypatch)
    cases: list[tuple[Path | None, int | None]] = [(processor_folder(kind, tmp_path), None), (None, None), (None, 1024)]
    for folder, pixels in cases:
        with engine_of(kind, folder, max_image_pixels=pixels, max_batch_tokens=40) as engine:
            worst = engine.worst_image()
            assert worst is not None
            tokens, image = largest_accepted(kind, engine, 96)
            sizes.clear()
            submit(engine, tokens, image)
            assert finish(engine) == 1
            assert sizes
            assert max(sizes) <= worst.inputs["pixel_values"].numel()
            patches = worst.inputs["pixel_values"].numel() // numbers_in_patch(kind)
            shape = StressShape(StressKind.IMAGE, worst.tokens, 1, f"largest image: {patches} patches")
            assert engine.stress_shapes()[-1] == shape
            if pixels is None:
                continue
            sizes.clear()
            engine.stress(shape)
            assert max(sizes) == worst.inputs["pixel_values"].numel()
            assert len(engine.model.runner.features) == 0
            assert engine.figures.blocks_held == 0


def numbers_in_patch(kind: str) -> int:
    """Qwen's have two frames."""
    return 96 if family(kind) == "qwen" else 48


@pytest.mark.parametrize(("kind", "chunk"), [*((kind, 20) for kind in KINDS), ("qwen3_vl", 40)])
def test_stress_covers_real_requests(kind: str, chunk: int, tmp_path: Path) -> None:
    probe = CpuProbe(1 << 32)
    with engine_of(
        kind, processor_folder(kind, tmp_path), probe=probe, max_batch_tokens=chunk, reuse_prefixes=False
    ) as engine:
        tokens, image = largest_accepted(kind, engine, LIMIT_TOKENS + 4)
        probe.reset_peak()
        for shape in engine.stress_shapes():
            engine.stress(shape)
        stressed = probe.reading()
        assert stressed.allocated_bytes < stressed.peak_allocated_bytes
        probe.reset_peak()
        for _ in range(2):
            submit(engine, tokens, image)
        engine.submit(prompts_of(kind)[1].tokens, SamplingParams(max_tokens=4, logprobs=20, temperature=0.5))
        assert finish(engine) == 3
        assert probe.reading().peak_allocated_bytes <= stressed.peak_allocated_bytes


@pytest.mark.parametrize("kind", sampled(KINDS, ("qwen2_5_vl", "gemma3", "internvl")))
def test_fit_has_room_for_the_largest_image(kind: str, tmp_path: Path) -> None:
    """No canary, and the budget is the limit: anything that the worst steps do not cover would not fit."""
    probe = CpuProbe(48 * MIB)
    sizes = {"kv_tokens": 0, "max_batch_tokens": 20, "max_length": 512}
    with engine_of(kind, processor_folder(kind, tmp_path), probe=probe, **sizes) as engine:
        most_tokens = engine.settings.max_batch * engine.max_length
        probe.budget_bytes = probe.reading().allocated_bytes + 700 * KIB + engine.kv_bytes(most_tokens) // 2
        report = fit_engine(engine, probe=probe, canary_bytes=0)
        assert report.attempts[-1].outcome is AttemptOutcome.PROVEN
        assert report.kv_tokens < most_tokens
        items = {item.name: item for item in report.items}
        assert items["encoder"].measured_bytes
        assert items["encoder"].predicted_bytes
        assert items["activation"].measured_bytes
        tokens, image = largest_accepted(kind, engine, LIMIT_TOKENS + 4)
        submit(engine, tokens, image)
        assert finish(engine) == 1


def test_text_engines_have_no_image_to_stress() -> None:
    with Engine("brim-random", kv_tokens=512, settings=EngineSettings(max_batch=4), device="cpu") as engine:
        assert engine.worst_image() is None
        assert StressKind.IMAGE not in [shape.name for shape in engine.stress_shapes()]


@pytest.mark.parametrize(
    ("kind", "tokens", "says"),
    [
        (
            "qwen2_vl",
            20,
            r"image 0 has 1280 pixels after processing \(80 patches of 16\), more than max_image_pixels 1024",
        ),
        ("internvl", 20, r"image 0 has 1280 pixels"),  # five tiles of 256
        ("gemma4", 20, r"image 0 has 1280 pixels"),
    ],
)
def test_the_user_limits_images(kind: str, tokens: int, says: str) -> None:
    image = image_of(kind, tokens)
    if kind == "internvl":
        image = {"pixel_values": torch.zeros(5, 3, 16, 16)}
    with engine_of(kind, None, max_image_pixels=1024) as engine:
        with pytest.raises(InvalidRequest, match=says):
            submit(engine, tokens, image)
        assert engine.idle
    with engine_of(kind, None, max_image_pixels=1280) as engine:
        submit(engine, tokens, image)
        assert finish(engine) == 1


def test_more_than_the_processor_lets_through_is_refused(tmp_path: Path) -> None:
    with engine_of("qwen3_vl", processor_folder("qwen3_vl", tmp_path)) as engine:
        with pytest.raises(
            InvalidRequest, match="196 patches of 16 pixels after processing, more than the 192 of prepro"
        ):
            submit(engine, 49, image_of("qwen3_vl", 49))
        submit(engine, 48, image_of("qwen3_vl", 48))
        assert finish(engine) == 1


def test_a_limit_below_any_image_leaves_text_only() -> None:
    with engine_of("gemma3", None, max_image_pixels=1000) as engine:
        assert engine.worst_image() is None
        assert [shape.name for shape in engine.stress_shapes()] == ["prefill", *["prompt-logprobs"] * 2, "decode"]
        with pytest.raises(InvalidRequest, match="has 1024 pixels"):
            submit(engine, 16, image_of("gemma3", 16))
    with pytest.raises(InvalidRequest, match="max_image_pixels is 0"):
        EngineSettings(max_image_pixels=0)


def test_the_limit_on_the_command_line() -> None:
    parser = ArgumentParser()
    add_engine_options(parser)
    asked = engine_settings(parser.parse_args(["--image-pixels", "1280x784"]))
    assert asked == EngineSettings(max_image_pixels=1280 * 784)
    assert engine_settings(parser.parse_args([])) == EngineSettings()


def test_generate_takes_images() -> None:
    texts, shown = prompts_of("qwen3_vl")[1], prompts_of("qwen3_vl")[0]
    with engine_of("qwen3_vl", None) as engine:
        both = engine.generate([texts.tokens, shown.tokens], GREEDY, images=[None, shown.inputs])
        alone = engine.generate([shown.tokens], GREEDY, images=[shown.inputs])
        with pytest.raises(InvalidRequest, match="1 entries for 2 prompts"):
            engine.generate([texts.tokens, shown.tokens], GREEDY, images=[None])
        assert both[1].tokens == alone[0].tokens
        assert engine.idle


def test_largest_grids() -> None:
    assert [largest_grid(cells, 100) for cells in (1, 6, 7, 16, 280)] == [(1, 1), (2, 3), (1, 7), (4, 4), (14, 20)]
    assert largest_grid(101, 100) == (10, 10)


def test_grids_that_are_no_strips() -> None:
    assert [near_square(cells) for cells in (1, 3, 8191, 16384)] == [(1, 1), (1, 3), (64, 128), (128, 128)]
    for cells in range(1, 2000):
        short, long = near_square(cells)
        assert cells <= short * long < cells + short
        assert long <= 4 * short
