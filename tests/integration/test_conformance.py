"""Brim's own engine does what Brim expects of any: it passes the kit of `brim.testing`, on real tensors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.engine import Engine  # noqa: E402
from brim.engine.ranks.agreement import WholeEngine  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.rescue import RescuedLoop  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.ports import RequestKey  # noqa: E402
from brim.testing import CpuProbe, check_rescuable, check_sizable  # noqa: E402
from brim.units import GIB  # noqa: E402
from tests.integration.tiny_models import tiny_config  # noqa: E402

SETTINGS = EngineSettings(max_batch=2, max_batch_tokens=16, max_length=32, block_size=8)
KINDS = {
    "llama": {"num_hidden_layers": 1},
    "granitemoehybrid": {"num_hidden_layers": 2, "layer_types": ["mamba", "attention"]},
}


@pytest.fixture(params=KINDS)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    torch.set_num_threads(1)
    kind = request.param
    made = Engine(
        tiny_config(kind, **KINDS[kind]),
        load_format="dummy",
        kv_tokens=0,
        settings=SETTINGS,
        device="cpu",
        dtype="fp32",
        probe=CpuProbe(GIB),
    )
    yield made
    made.teardown()


def test_it_can_be_sized(engine: Engine) -> None:
    probe = engine_probe(engine)
    check_sizable(engine, probe, price=engine.kv_bytes, small_tokens=64, large_tokens=256, refusals=12)


class EngineLoad:
    """Two requests, served through the adapter of the rescue driver."""

    requests: tuple[RequestKey, ...] = (("0", 0), ("1", 0))

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.engine = RescuedLoop(engine.loop, engine.model.runner, self._no_rebuild, WholeEngine())

    def begin(self) -> None:
        for name, _ in self.requests:
            self._engine.cancel(name)
        while not self._engine.idle:
            self._engine.step()
        params = SamplingParams(max_tokens=3, temperature=0, ignore_eos=True)
        for name, _ in self.requests:
            self._engine.submit(list(range(5, 17)), params, request_id=name)

    def answers(self) -> dict[RequestKey, object]:
        found: dict[RequestKey, list[int | None]] = {}
        for event in self._engine.loop.events:
            found.setdefault(event.sequence.request.key, []).append(event.token)
        return {key: tuple(tokens) for key, tokens in found.items()}

    def _no_rebuild(self) -> None:
        raise AssertionError("nothing is in doubt")


def test_it_can_be_rescued(engine: Engine) -> None:
    probe = engine_probe(engine)
    engine.build(128)
    with probe:
        load = EngineLoad(engine)
        check_rescuable(load, probe, step_tokens=16, audited=load.engine, refusals=12)


def engine_probe(engine: Engine) -> CpuProbe:
    assert isinstance(engine.probe, CpuProbe)
    return engine.probe
