"""Encoders in processes of their own: the same text as inline, whatever happens to them, and nothing left behind."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.attention.paged import NAME, register  # noqa: E402
from brim.engine.encoders.pool import Encoders  # noqa: E402
from brim.engine.encoders.process import EncoderProcess  # noqa: E402
from brim.engine.encoders.records import EncoderSource  # noqa: E402
from brim.engine.encoders.start import EncoderPlace, start_encoders  # noqa: E402
from brim.engine.engine import Engine  # noqa: E402
from brim.engine.front.answers import Completion  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.requests.request import FinishReason  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.weights.load import LoadedModel, load  # noqa: E402
from brim.engine.weights.parts import ModelPart  # noqa: E402
from brim.errors import DoesNotFit, InvalidRequest, MediaUnavailable  # noqa: E402
from brim.records.health import Status  # noqa: E402
from brim.records.lease import LeaseState  # noqa: E402
from brim.reserve.hold import hold  # noqa: E402
from brim.reserve.ledger import Ledger  # noqa: E402
from brim.units import MIB  # noqa: E402
from tests.conftest import sampled  # noqa: E402
from tests.integration import test_engine_audio as audio  # noqa: E402

MODEL = "brim-tiny-vl"
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
SETTINGS: dict[str, Any] = {"max_length": 256, "max_batch_tokens": 96, "max_batch": 4, "host_memory": 0}
START, END, IMAGE, PATCH = 2048, 2049, 2050, 1536


def shown(seed: int, side: int = 8) -> tuple[list[int], dict[str, Any]]:
    """A prompt with an image of so many patches a side, as a processor would prepare it."""
    pixels = torch.randn(side * side, PATCH, generator=torch.Generator().manual_seed(seed))
    tokens = [10, START, *[IMAGE] * (side * side // 4), END, 11]
    return tokens, {"pixel_values": pixels, "image_grid_thw": torch.tensor([[1, side, side]])}


@cache
def decoder() -> LoadedModel:
    register()
    return load(MODEL, load_format="dummy", dtype="fp32", attention=NAME, part=ModelPart.DECODER)


class Stubbed:
    """An engine whose encoders are stubs, the folder that commands those, and a clock of its own."""

    def __init__(self, folder: Path, workers: int = 1, **settings: Any) -> None:
        self.folder = folder
        self.now = 0.0
        source = EncoderSource(str(folder), "dummy", "fp32", "cpu", 0, 256, 96, None, None, 1)
        self.encoders = Encoders(
            [source] * workers,
            make=partial(EncoderProcess, module="tests.integration.stub_encoder"),
            clock=lambda: self.now,
        )
        self.engine = Engine(
            decoder(),
            kv_tokens=1024,
            device="cpu",
            settings=EngineSettings(encoder="process", **SETTINGS, **settings),
            encoders=self.encoders,
        )
        self.done: dict[str, Completion] = {}

    def tell(self, what: str, wanted: bool = True) -> None:
        (self.folder / what).touch() if wanted else (self.folder / what).unlink()

    def until(self, reached: Callable[[], bool]) -> None:
        for _ in range(20_000):
            if reached():
                return
            self.now += 0.01
            for update in self.engine.step():
                if update.completion is not None:
                    self.done[update.request_id] = update.completion
            if self.engine.idle:
                self.engine.tend()
                self.encoders.wait(0.005)
        raise AssertionError("it did not happen")

    def answered(self, *names: str) -> bool:
        return all(name in self.done for name in names)

    def show(self, seed: int, name: str, **options: Any) -> str:
        tokens, images = shown(seed, options.pop("side", 8))
        return self.engine.submit(tokens, GREEDY, images=images, request_id=name, **options)


def open_files() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def stubbed(tmp_path: Path) -> Iterator[Callable[..., Stubbed]]:
    made: list[Stubbed] = []

    def make(**settings: Any) -> Stubbed:
        made.append(Stubbed(tmp_path, **settings))
        return made[-1]

    before = open_files()
    yield make
    for one in made:
        pids = one.encoders.pids
        one.engine.close()
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    made.clear()
    assert open_files() <= before  # memory areas are descriptors: none is left


@dataclass(frozen=True)
class Family:
    """A model, prompts that bring media, and what its encoder is called."""

    model: str
    prompts: tuple[audio.Prompt, ...]
    parts: int  # that are not equal
    role: str

    def answers(self, engine: Engine) -> list[tuple[int, ...]]:
        return audio.tokens_of(audio.run(engine, self.prompts))


def family_of(kind: str, folder: Path) -> Family:
    if kind == MODEL:
        seen = [shown(1), shown(2, 16), shown(1), shown(3, 4), ([5, 6, 7], {})]
        prompts = tuple(audio.Prompt(tuple(tokens), images) for tokens, images in seen)
        return Family(MODEL, prompts, 3, "vision encoder")
    audio.model_of(kind).save_pretrained(folder)
    sees = "" if kind == "qwen2_audio" else "vision and "
    prompts = audio.prompts_of(kind)
    parts = sum(len(one.audios.get("input_features", ())) + bool(one.images) for one in prompts)
    return Family(str(folder), (*prompts, prompts[0]), parts, f"{sees}audio encoder")


@pytest.mark.parametrize("kind", sampled((MODEL, *audio.KINDS), ("qwen3_omni_moe_thinker",)))
def test_the_text_is_that_of_inline_and_the_lease_says_what_is_held(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images, audio and text; Qwen3-Omni's images have more levels than its audio."""
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    family = family_of(kind, tmp_path / "model")
    sizes = {**SETTINGS, "max_audio_seconds": 2}
    with Engine(family.model, kv_tokens=1024, device="cpu", dtype="fp32", settings=EngineSettings(**sizes)) as engine:
        inline = family.answers(engine)
    settings = EngineSettings(encoder="process", **sizes)
    place = EncoderPlace("cpu", "cpu:test:64MiB", "of a test")
    encoders = start_encoders(family.model, settings, (place,), load_format="auto", dtype="fp32", seed=0)
    options: dict[str, Any] = {"device": "cpu", "dtype": "fp32", "settings": settings, "encoders": encoders}
    with Engine(family.model, kv_tokens=1024, **options) as engine:
        assert engine.encoders is not None
        parts = {name for name, _ in engine.loaded.model.base_model.named_children()}
        assert parts in ({"language_model"}, {"model", "lm_head"}), "the second of Omni models in transformers 5.17"
        assert family.answers(engine) == inline
        for shape in engine.stress_shapes():
            engine.stress(shape)
        assert family.answers(engine) == inline
        assert engine.encoders.figures.parts == family.parts  # one was shown twice, and a fit encodes nothing here
        facts = engine.encoders.facts
        with Ledger(tmp_path / "leases", "cpu:test").opened() as page:
            (lease,) = page.leases
        assert (lease.holder.pid, lease.role) == (engine.encoders.pids[0], f"{family.role} of a test")
        assert lease.state is LeaseState.HELD
        assert lease.held_bytes == facts.held_bytes >= facts.weight_bytes + facts.peak_bytes
        took = facts.weight_bytes + facts.peak_bytes
        assert facts.predicted_bytes is not None
        assert facts.predicted_bytes >= 0.96 * took
        assert facts.predicted_bytes <= 1.04 * took
    with Ledger(tmp_path / "leases", "cpu:test").opened() as page:
        assert not page.leases


def test_text_goes_on_while_an_image_is_encoded(stubbed: Callable[..., Stubbed]) -> None:
    one = stubbed()
    one.tell("hold")
    one.show(1, "image")
    one.engine.submit([5, 6, 7], GREEDY, request_id="text")
    one.until(lambda: one.answered("text"))
    assert "image" not in one.done
    one.tell("hold", False)
    one.until(lambda: one.answered("image"))
    assert one.done["image"].finish_reason is FinishReason.LENGTH


def test_an_encoder_that_is_killed_is_replaced_and_its_image_encoded_after_all(stubbed: Callable[..., Stubbed]) -> None:
    one = stubbed()
    one.tell("hold")
    one.show(1, "image")
    one.until(lambda: one.encoders.working and not one.encoders._waiting)
    (killed,) = one.encoders.pids
    os.kill(killed, signal.SIGKILL)
    one.tell("hold", False)
    one.until(lambda: one.engine.health.status is Status.DEGRADED)
    assert "its process has ended" in one.engine.health.reason
    one.engine.submit([5, 6, 7], GREEDY, request_id="text")
    one.until(lambda: one.answered("image", "text"))
    assert {done.finish_reason for done in one.done.values()} == {FinishReason.LENGTH}
    assert one.encoders.figures.restarts == 1
    assert one.encoders.pids != (killed,)
    assert one.engine.health.status is Status.READY


@pytest.mark.soak
def test_an_image_that_kills_its_encoder_twice_ends_with_an_error_and_takes_no_other_with_it(
    stubbed: Callable[..., Stubbed],
) -> None:
    one = stubbed()
    one.tell("die")
    one.show(1, "bad")
    one.engine.submit([5, 6, 7], GREEDY, request_id="text")
    one.until(lambda: one.answered("bad", "text"))
    assert one.done["bad"].finish_reason is FinishReason.ERROR
    assert "could not be encoded in 2 attempts" in (one.done["bad"].error or "")
    assert one.done["text"].finish_reason is FinishReason.LENGTH
    one.tell("die", False)
    one.show(1, "good")
    one.until(lambda: one.answered("good"))
    assert one.done["good"].finish_reason is FinishReason.LENGTH


def test_without_memory_for_an_encoder_images_are_refused_until_there_is_some(stubbed: Callable[..., Stubbed]) -> None:
    one = stubbed()
    one.tell("cannot")
    os.kill(one.encoders.pids[0], signal.SIGKILL)
    one.show(1, "image")
    one.until(lambda: bool(one.encoders.refusal))
    one.until(lambda: one.answered("image"))
    assert "1.0 GiB are left" in (one.done["image"].error or "")
    assert one.engine.health.status is Status.DEGRADED
    assert "1.0 GiB are left" in one.engine.health.reason
    with pytest.raises(
        MediaUnavailable, match=r"images are temporarily unavailable; text still works: .*1\.0 GiB are left"
    ):
        one.show(1, "another")
    one.engine.submit([5, 6, 7], GREEDY, request_id="text")
    one.until(lambda: one.answered("text"))
    one.tell("cannot", False)
    one.until(lambda: one.engine.health.status is Status.READY)
    one.show(1, "again")
    one.until(lambda: one.answered("again"))
    assert one.done["again"].finish_reason is FinishReason.LENGTH


def test_features_are_found_again_by_content_and_salt_within_their_budget(stubbed: Callable[..., Stubbed]) -> None:
    one = stubbed(feature_cache=80 * 384 * 4, reuse_prefixes=False)

    def encoded(seed: int, **options: Any) -> int:
        before = one.encoders.figures.parts
        name = one.show(seed, f"request {len(one.done)}", **options)
        one.until(lambda: one.answered(name))
        return one.encoders.figures.parts - before

    assert [encoded(1), encoded(1), encoded(2), encoded(1)] == [1, 0, 1, 0]
    assert [encoded(1, salt=b"tenant"), encoded(1, salt=b"tenant")] == [1, 0]
    assert [encoded(9, side=16), encoded(9, side=16)] == [1, 0]  # 64 of 80 rows: the oldest have gone
    assert encoded(2) == 1
    with pytest.raises(InvalidRequest, match="patches"):
        one.show(1, "too large", side=18)


@pytest.mark.soak
def test_small_images_are_encoded_together_up_to_the_budget_and_by_all_workers(stubbed: Callable[..., Stubbed]) -> None:
    one = stubbed(workers=2)
    one.tell("hold")
    names = [one.show(seed, f"image {seed}", side=8) for seed in range(12)]
    one.until(lambda: not one.encoders._waiting and not one.engine.model.features._queue)  # type: ignore[union-attr]
    one.tell("hold", False)
    one.until(lambda: one.answered(*names))
    assert one.encoders.figures.parts == 12
    assert one.encoders.figures.largest_batch == 4  # of 16 features each, where 64 were run


def test_cancelled_requests_leave_nothing_pinned(stubbed: Callable[..., Stubbed]) -> None:
    one = stubbed()
    one.tell("hold")
    for seed in range(3):
        one.show(seed, f"image {seed}")
    one.until(lambda: one.encoders.working)
    for seed in range(3):
        one.engine.cancel(f"image {seed}")
    one.tell("hold", False)
    one.until(lambda: not one.encoders.working)
    features = one.engine.model.features
    assert features is not None
    assert features._shelf.pinned_rows == 0
    assert not features._wanted


def test_random_towers_are_drawn_whatever_their_projectors_are_made_of() -> None:
    """Gemma 4's are made of two configs."""
    config = {"model_type": "gemma4", **audio.CONFIGS["gemma4"]}
    towers = load(config, load_format="dummy", dtype="fp32", attention=None, part=ModelPart.TOWERS).model
    drawn = dict(towers.named_parameters())
    assert {name.split(".")[1] for name in drawn} == {"vision_tower", "audio_tower", "embed_vision", "embed_audio"}
    for name in ("embed_vision", "embed_audio"):
        assert drawn[f"model.{name}.embedding_projection.weight"].std() == pytest.approx(0.02, rel=0.2)


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidRequest, match="encoder is 'thread'; it must be inline or process"):
        EngineSettings(encoder="thread")


class Leased:
    """An engine with a real encoder on a budget, and everything else there taken by a neighbour."""

    def __init__(self, folder: Path, total: str = "64MiB") -> None:
        settings = EngineSettings(encoder="process", **SETTINGS)
        place = EncoderPlace("cpu", f"cpu:test:{total}", "of a test")
        encoders = start_encoders(MODEL, settings, (place,), load_format="auto", dtype="fp32", seed=0)
        self.ledger = Ledger(folder, "cpu:test")
        self.engine = Engine(MODEL, kv_tokens=1024, device="cpu", dtype="fp32", settings=settings, encoders=encoders)
        assert encoders is not None
        self.encoders = encoders
        self.seen = 0

    def leases(self) -> list[tuple[int, int]]:
        with self.ledger.opened() as page:
            return [(lease.holder.pid, lease.claim_bytes) for lease in page.leases if lease.role != "llm"]

    def kill(self) -> int:
        (pid,) = self.encoders.pids
        os.kill(pid, signal.SIGKILL)
        return pid

    def show(self) -> Completion:
        self.seen += 1
        tokens, images = shown(self.seen)
        (answer,) = self.engine.generate([tokens], GREEDY, images=[images])
        return answer


@pytest.fixture
def leased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leased]:
    monkeypatch.setenv("BRIM_LEASES", str(tmp_path / "leases"))
    one = Leased(tmp_path / "leases")
    with one.engine:
        yield one


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.soak)])
def test_an_encoder_that_is_killed_again_and_again_comes_back_with_what_it_held(leased: Leased, kills: int) -> None:
    """It had promised more than it holds, and the language model has taken the difference."""
    facts = leased.encoders.facts
    assert facts.promised_bytes > facts.held_bytes
    rest = 64 * MIB - facts.held_bytes
    with hold(gpu="cpu:test:64MiB", bytes=rest, role="llm"):
        for _ in range(kills):
            killed, began = leased.kill(), time.monotonic()
            assert leased.leases() == [(killed, facts.held_bytes)]  # kept for the next one
            with pytest.raises(DoesNotFit), hold(gpu="cpu:test:64MiB", bytes=1):
                pass
            answer = leased.show()
            assert (answer.finish_reason, answer.error) == (FinishReason.LENGTH, None)
            assert leased.leases() == [(leased.encoders.pids[0], facts.held_bytes)]
            assert time.monotonic() - began < 15
            assert not leased.encoders.problem
    assert leased.encoders.figures.restarts == kills


def test_a_restart_runs_a_small_batch_only_and_allows_what_was_allowed(leased: Leased) -> None:
    before = leased.encoders.facts
    leased.kill()
    leased.show()
    (worker,) = leased.encoders._workers
    assert worker.child is not None
    assert worker.child.facts == before == worker.child.source.proven


def test_a_thief_of_the_memory_makes_images_wait_and_not_for_ever(
    leased: Leased, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files of the ledger are gone when the encoder is, and another process is promised everything."""
    killed = leased.kill()
    until(lambda: not Path(f"/proc/{killed}/fd").exists() or not list(Path(f"/proc/{killed}/fd").iterdir()))
    shutil.rmtree(leased.ledger.root)
    with hold(gpu="cpu:test:64MiB", bytes="64MiB", role="thief"):
        answer = leased.show()
        assert (answer.finish_reason, answer.passing) == (FinishReason.ERROR, True)
        assert "are left" in (answer.error or "")
        for _ in range(20):  # also while the next start is under way
            with pytest.raises(MediaUnavailable, match=r"temporarily unavailable; text still works: .* are left"):
                leased.show()
            leased.engine.tend()
            time.sleep(0.1)
        (text,) = leased.engine.generate([[5, 6, 7]], GREEDY)
        assert text.finish_reason is FinishReason.LENGTH
    ended = time.monotonic()
    until(lambda: (leased.engine.tend(), leased.engine.health.status is Status.READY)[1])
    assert leased.show().finish_reason is FinishReason.LENGTH
    assert time.monotonic() - ended < 60


def until(condition: Callable[[], bool]) -> None:
    for _ in range(1200):
        if condition():
            return
        time.sleep(0.05)
    raise AssertionError("nothing happened for a minute")
