"""The longest audio that a request may have is the one that the worst step encodes, and a fit has memory for it."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.errors import InvalidRequest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.cli.engine_options import add_engine_options, engine_settings  # noqa: E402
from brim.engine.engine import Engine  # noqa: E402
from brim.engine.media import features as media  # noqa: E402
from brim.engine.media.parts import MediaKind, MediaPart  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.records.fit import AttemptOutcome  # noqa: E402
from brim.records.memory import StressKind  # noqa: E402
from brim.serving import fit_engine  # noqa: E402
from brim.units import KIB, MIB  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.integration.test_engine_audio import (  # noqa: E402
    AUDIO,
    IMAGE,
    KINDS,
    SEEN,
    SEES,
    audio_of,
    engine_of,
    image_of,
    prompts_of,
    tokens_in,
)

GREEDY = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
OMNI = "qwen2_5_omni_thinker"
TOWERS = {"gemma4": 8 * MIB}  # its images are padded to the processor's largest


@pytest.fixture(scope="module")
def thinker() -> Iterator[Engine]:
    with engine_of(OMNI) as engine:
        yield engine


def submit(engine: Engine, kind: str, frames: int) -> str:
    return engine.submit((5, *[AUDIO] * tokens_in(kind, frames), 6), GREEDY, audios=audio_of(kind, [frames], frames))


def finish(engine: Engine) -> int:
    """Run everything to its end; how many requests were answered."""
    done = 0
    while not engine.idle:
        done += sum(update.completion is not None for update in engine.step())
    return done


def longest_accepted(engine: Engine, kind: str, frames_up_to: int) -> int:
    """Mel frames of the longest audio that is not refused, found by trying."""
    for frames in range(frames_up_to, 4, -1):
        try:
            engine.cancel(submit(engine, kind, frames))
        except (InvalidRequest, RuntimeError):  # more frames than Qwen2-Audio's tower has room for
            continue
        return frames
    raise AssertionError("no audio is accepted")


def sizes_of(part: MediaPart) -> int:
    return part.inputs["input_features"].numel()


@pytest.mark.parametrize("kind", sampled(KINDS, ("qwen2_audio",)))
def test_no_call_of_the_tower_is_larger_than_the_worst(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[MediaPart] = []
    run = media.encode
    monkeypatch.setattr(media, "encode", lambda model, part: (called.append(part), run(model, part))[1])
    for seconds in (None, 1):
        with engine_of(kind, max_length=40, max_audio_seconds=seconds) as engine:
            worst = engine.worst_audio()
            assert worst is not None
            frames = longest_accepted(engine, kind, 330 if kind == "qwen3_omni_moe_thinker" else 170)
            assert tokens_in(kind, frames) == min(worst.tokens, 37)  # there is a token on each side
            called.clear()
            submit(engine, kind, frames)
            assert finish(engine) == 1
            assert [sizes_of(part) <= sizes_of(worst) for part in called] == [True]
            (shape,) = [shape for shape in engine.stress_shapes() if shape.name == StressKind.AUDIO]
            called.clear()
            engine.stress(shape)
            heard = [part for part in called if part.kind is MediaKind.AUDIO]
            assert {(sizes_of(part), part.tokens) for part in heard} == {(sizes_of(worst), shape.tokens)}
            assert len(heard) == len(called) or engine.worst_image() is not None
            assert len(engine.model.runner.features) == 0
            assert engine.figures.blocks_held == 0


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_stress_covers_real_requests(kind: str) -> None:
    """Also where an image is encoded while features of an audio are alive, and the other way round."""
    probe = CpuProbe(1 << 32)
    sizes = {"max_length": 96, "max_batch_tokens": 24, "max_audio_seconds": 1, "max_image_pixels": 512}
    with engine_of(kind, probe=probe, reuse_prefixes=False, **sizes) as engine:
        probe.reset_peak()
        for shape in engine.stress_shapes():
            engine.stress(shape)
        stressed = probe.reading().peak_allocated_bytes
        probe.reset_peak()
        for _ in range(2):
            submit(engine, kind, longest_accepted(engine, kind, 102))
            if engine.worst_image() is not None:
                count, image = image_of(kind, 1)
                engine.submit((5, SEES, *[IMAGE] * count, SEEN, 6), GREEDY, images=image)
        engine.submit(prompts_of(kind)[1].tokens, SamplingParams(max_tokens=4, logprobs=20, temperature=0.5))
        assert finish(engine) in (3, 5)
        assert probe.reading().peak_allocated_bytes <= stressed


@pytest.mark.parametrize("kind", sampled(KINDS, ("qwen2_audio",)))
def test_fit_has_room_for_the_longest_audio(kind: str) -> None:
    """No canary, and the budget is the limit: anything that the worst steps do not cover would not fit."""
    probe = CpuProbe(64 * MIB)
    with engine_of(kind, kv_tokens=0, probe=probe, max_length=256, max_audio_seconds=1) as engine:
        probe.hold([*engine.loaded.model.parameters(), *engine.loaded.model.buffers()])
        most_tokens = engine.settings.max_batch * engine.max_length
        room = TOWERS.get(kind, 1500 * KIB) + engine.kv_bytes(most_tokens) // 2
        probe.budget_bytes = probe.reading().allocated_bytes + room
        report = fit_engine(engine, probe=probe, canary_bytes=0)
        assert report.attempts[-1].outcome is AttemptOutcome.PROVEN
        items = {item.name: item for item in report.items}
        assert items["encoder"].measured_bytes
        assert items["encoder"].predicted_bytes
        for _ in range(2):
            submit(engine, kind, longest_accepted(engine, kind, 102))
        if engine.worst_image() is not None:
            shown = prompts_of(kind)[2]
            engine.submit(shown.tokens, GREEDY, images=shown.images, audios=shown.audios)
        assert finish(engine) in (2, 3)


def test_longer_audio_is_refused_with_the_numbers(tmp_path: Path) -> None:
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"chunk_length": 1, "sampling_rate": 16000}))
    with engine_of(OMNI, folder=tmp_path) as engine:
        with pytest.raises(InvalidRequest, match=r"has 104 mel frames \(1.04 seconds\), more than the 100 of pre"):
            submit(engine, OMNI, 104)
        submit(engine, OMNI, 100)
        assert finish(engine) == 1
    with (
        engine_of(OMNI, max_audio_seconds=1) as engine,
        pytest.raises(InvalidRequest, match="more than the 100 of max_audio_seconds"),
    ):
        submit(engine, OMNI, 104)
    with pytest.raises(InvalidRequest, match="max_audio_seconds is 0"):
        EngineSettings(max_audio_seconds=0)


def test_the_limit_on_the_command_line() -> None:
    parser = ArgumentParser()
    add_engine_options(parser)
    assert engine_settings(parser.parse_args(["--audio-seconds", "20"])) == EngineSettings(max_audio_seconds=20)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"input_features": None}, "has no input_features"),
        ({"input_features": torch.zeros(1, 9, 40)}, r"must be \(any, 8, any\)"),
        ({"feature_attention_mask": torch.ones(1, 39).long()}, r"must be \(1, 40\)"),
        ({"feature_attention_mask": torch.ones(1, 40)}, "must hold integers"),
        ({"feature_attention_mask": torch.tensor([[0] + [1] * 39])}, "ones for its frames, then zeros"),
        ({"feature_attention_mask": torch.tensor([[1] * 2 + [0] * 38])}, "2 mel frames, too few for a token"),
        ({"feature_attention_mask": torch.tensor([[1] * 36 + [0] * 4])}, "take 9 audio tokens where the prompt has 10"),
        ({"pixel_values": torch.zeros(4, 96)}, "has pixel_values too; give it as images as well"),
    ],
)
def test_bad_audio_is_refused(thinker: Engine, changes: dict[str, Any], says: str) -> None:
    good = {"input_features": torch.zeros(1, 8, 40), "feature_attention_mask": torch.ones(1, 40).long()}
    with pytest.raises(InvalidRequest, match=says):
        thinker.submit((5, *[AUDIO] * 10, 6), GREEDY, audios={**good, **changes})
    assert thinker.idle


def test_files_need_a_prompt_in_text(thinker: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"give the processor's output \(a mapping with input_features\)"):
        thinker.submit((5, *[AUDIO] * 10, 6), GREEDY, audios=["a.wav"])
