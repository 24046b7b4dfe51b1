"""The start of an encoder: what it promises, what it holds, and what it does with less than it wants."""

from __future__ import annotations

import socket
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.encoders.areas import Area  # noqa: E402
from brim.engine.encoders.records import EncoderSource, TowerFacts  # noqa: E402
from brim.engine.encoders.wire import Message, Wire  # noqa: E402
from brim.engine.encoders.work import EncoderWork, _numbered  # noqa: E402
from brim.errors import DoesNotFit  # noqa: E402
from brim.units import MIB  # noqa: E402
from tests.integration.test_engine_audio import CONFIGS  # noqa: E402

OMNI = "qwen2_5_omni_thinker"


class Told:
    """A reservation that remembers, on a device of so many bytes."""

    def __init__(self, room: int = 1 << 40) -> None:
        self.room = room
        self.promised: list[int] = []
        self.held = 0

    def promise(self, promised_bytes: int) -> None:
        if promised_bytes > self.room:
            raise DoesNotFit(f"tower wants {promised_bytes} bytes, and {self.room} are left")
        self.promised.append(promised_bytes)

    def hold(self, held_bytes: int) -> None:
        self.held = held_bytes


def source(**changed: Any) -> EncoderSource:
    values: dict[str, Any] = {
        "model": "brim-tiny-vl",
        "load_format": "dummy",
        "dtype": "fp32",
        "device": "cpu",
        "seed": 0,
        "max_length": 128,
        "max_batch_tokens": 64,
        "max_image_pixels": None,
        "max_audio_seconds": None,
        "batch": 1,
        "lease": "cpu:test:1GiB",
    }
    return EncoderSource(**{**values, **changed})


def started(told: Told, predicted: int | None = 8 * MIB, **changed: Any) -> Message:
    """What an encoder says first."""
    ours, theirs = socket.socketpair()
    areas = Area.make(), Area.make()
    ours.shutdown(socket.SHUT_WR)  # so that it ends after its start
    code = EncoderWork(source(**changed), Wire(theirs), areas, told, lambda *_: predicted).run()
    wire = Wire(ours)
    message = wire.receive()
    assert code == (0 if message["op"] == "ready" else 1)
    wire.close()
    theirs.close()
    for area in areas:
        area.close()
    return message


def ready(told: Told, **changed: Any) -> TowerFacts:
    message = started(told, **changed)
    assert message["op"] == "ready", message
    return TowerFacts.from_json(message["facts"])


def test_what_was_promised_is_held_and_a_batch_of_two_is_run_as_two() -> None:
    told, two = Told(), Told()
    facts, doubled = ready(told), ready(two, batch=2)
    assert told.held == facts.held_bytes <= told.promised[-1]
    assert doubled.budgets == {kind: 2 * budget for kind, budget in facts.budgets.items()}
    assert doubled.rows == 2 * facts.rows
    assert doubled.peak_bytes > 1.7 * facts.peak_bytes


def test_a_promise_that_was_too_small_is_made_again_before_more_is_taken() -> None:
    told = Told()
    facts = ready(told, predicted=3 * MIB)
    assert len(told.promised) > 1
    assert told.promised == sorted(told.promised)
    assert facts.held_bytes <= told.promised[-1] == facts.promised_bytes
    message = started(Told(room=4 * MIB), predicted=3 * MIB)
    assert (message["op"], message["memory"]) == ("cannot", True)
    assert "are left" in message["why"]


@pytest.mark.parametrize("room", [1 << 40, 0])
def test_an_engine_that_has_gone_is_told_nothing_and_that_is_no_error(room: int) -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    areas = Area.make(), Area.make()
    with theirs:
        assert EncoderWork(source(), Wire(theirs), areas, Told(room), lambda *_: 8 * MIB).run() == 0
    for area in areas:
        area.close()


@pytest.mark.soak
def test_a_smaller_reserve_lowers_the_limit_of_images_until_the_worst_fits() -> None:
    whole = ready(Told())
    reserve = whole.weight_bytes + whole.peak_bytes // 2
    told = Told()
    facts = ready(told, reserve_bytes=reserve)
    assert told.promised == [reserve]
    assert facts.held_bytes <= reserve
    assert 0 < facts.call_patches < whole.call_patches
    assert facts.rows < whole.rows
    assert "encoder-reserve" in facts.warnings[0]
    assert str(f"{facts.call_patches * 256:,} pixels") in facts.warnings[0]


def test_a_smaller_reserve_lowers_the_limit_of_audio_and_leaves_images_alone() -> None:
    omni: dict[str, Any] = {"model": {"model_type": OMNI, **CONFIGS[OMNI]}, "max_audio_seconds": 30, "max_length": 512}
    whole = ready(Told(), max_image_pixels=1024, **omni)
    assert len(whole.budgets) == 2
    facts = ready(Told(), reserve_bytes=whole.weight_bytes + whole.peak_bytes // 2, max_image_pixels=1024, **omni)
    assert facts.call_patches == whole.call_patches
    assert facts.audio_frames is not None
    assert whole.audio_frames is not None
    assert facts.audio_frames < whole.audio_frames == 3000
    assert facts.part_rows < whole.part_rows
    assert f"audio of at most {facts.audio_frames / 100:.2f} seconds" in facts.warnings[0]


def test_a_reserve_below_the_weights_is_refused() -> None:
    message = started(Told(), reserve_bytes=MIB)
    assert (message["op"], message["memory"]) == ("cannot", True)


def test_a_tower_that_cannot_be_traced_needs_a_reserve_and_is_named() -> None:
    message = started(Told(), predicted=None)
    assert "'qwen3_vl' cannot be traced" in message["why"]
    assert "--encoder-reserve" in message["why"]
    facts = ready(Told(), predicted=None, reserve_bytes=64 * MIB)
    assert "'qwen3_vl' cannot be traced" in facts.warnings[0]


@pytest.mark.parametrize(("written", "meant"), [("cuda", "cuda:0"), ("cuda:1", "cuda:1"), ("cpu", "cpu")])
def test_a_gpu_without_a_number_is_the_first(written: str, meant: str) -> None:
    """torch limits the memory of numbered devices only."""
    assert _numbered(torch.device(written)) == torch.device(meant)
