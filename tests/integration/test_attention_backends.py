"""Attention backends by name: what the engine calls in each step, and that the tokens are the model's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from brim.engine.attention import backends  # noqa: E402
from brim.engine.attention.backends import BackendSizes, register_backend  # noqa: E402
from brim.engine.attention.kernels.splits import DecodeShape  # noqa: E402
from brim.engine.attention.reference import ReferenceAttention  # noqa: E402
from brim.engine.run.rows import LAST_DRAWN  # noqa: E402
from brim.errors import InvalidRequest  # noqa: E402
from tests.integration.test_engine import FAMILIES, family, greedy, prompts_of  # noqa: E402
from tests.triton_interpreter import interpreted, needs_interpreter  # noqa: E402

if TYPE_CHECKING:
    from brim.engine.attention.protocol import AttentionBackend, AttentionRule
    from brim.engine.device.layout import StepLayout
    from brim.engine.kv.tensors import LayerCache


class Planned:
    """Plans a step on the host, as kernels with a planner do; its layers know nothing but the plan."""

    def __init__(self, sizes: BackendSizes) -> None:
        self.sizes = sizes
        self.log: list[str] = []
        self.plan: list[tuple[slice, int, int]] = []  # place in the row, slot, and length of each request

    def prepare(self, layout: StepLayout) -> None:
        self.log.append("prepare")
        decodes = zip(layout.decode_slots.tolist(), layout.decode_lengths.tolist(), strict=True)
        self.plan = [(slice(row, row + 1), slot, length) for row, (slot, length) in enumerate(decodes)]
        for chunk in layout.chunks:
            here = slice(chunk.start, chunk.start + chunk.length)
            self.plan.append((here, chunk.slot, chunk.context + chunk.length))

    def store(self, cache: LayerCache, key: torch.Tensor, value: torch.Tensor, write_slots: torch.Tensor) -> None:
        self.log.append("store")
        cache.keys[write_slots], cache.values[write_slots] = key, value

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        self.log.append("attend")
        output = torch.full_like(query, float("nan"))
        for here, slot, length in self.plan:
            places = torch.arange(length)
            slots = table[slot][places // rule.block_size].long() * rule.block_size + places % rule.block_size
            keys, values = cache.keys[slots].transpose(0, 1), cache.values[slots].transpose(0, 1)
            asked = query[here].transpose(0, 1)
            seen = places[None, :] <= torch.arange(length - asked.shape[1], length)[:, None]
            found = scaled_dot_product_attention(asked, keys, values, seen, scale=rule.scale, enable_gqa=True)
            output[here] = found.transpose(0, 1)
        return output


class Blind(Planned):
    """Sees nothing: what a model says without attention."""

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        return torch.zeros_like(query)


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Planned]], list[Planned]]:
    """Registers a class under the name `planned`, for one test; gives the list of those that engines make."""
    monkeypatch.setattr(backends, "_BACKENDS", dict(backends._BACKENDS))

    def plug(kind: type[Planned]) -> list[Planned]:
        made: list[Planned] = []

        def make(sizes: BackendSizes) -> AttentionBackend:
            made.append(kind(sizes))
            return made[-1]

        register_backend("planned", make)
        return made

    return plug


def test_a_backend_by_name_prepares_each_step_once(plugged: Callable[[type[Planned]], list[Planned]]) -> None:
    made = plugged(Planned)
    model, prompts = family("llama"), prompts_of([3, 45, 17, 30])
    with model.engine(attention="planned") as engine:
        answers = [list(answer.tokens) for answer in engine.generate(prompts, greedy(10))]
    assert answers == [model.greedy(prompt, 10) for prompt in prompts]
    (backend,) = made
    layers = len(backend.sizes.layers)
    steps = backend.log.count("prepare")
    assert steps >= 10
    assert backend.log == ["prepare", *["store", "attend"] * layers] * steps


def test_a_step_to_be_captured_is_prepared_too(plugged: Callable[[type[Planned]], list[Planned]]) -> None:
    """What CUDA graphs capture is a call like this one: all rows on the slot for padding."""
    made = plugged(Planned)
    with family("llama").engine(attention="planned") as engine, torch.inference_mode():
        runner = engine.loop.runner
        slots, lengths = torch.full((3,), runner.scratch_slot), torch.ones(3, dtype=torch.int64)
        logits = runner.decode_logits(slots, lengths, torch.full((3,), LAST_DRAWN))
        assert logits.shape[0] == 3
    assert made[0].log[:2] == ["prepare", "store"]
    assert made[0].plan == [(slice(row, row + 1), runner.scratch_slot, 1) for row in range(3)]


def test_what_a_backend_answers_is_used(plugged: Callable[[type[Planned]], list[Planned]]) -> None:
    plugged(Blind)
    model, prompt = family("llama"), prompts_of([45])[0]
    with model.engine(attention="planned") as engine:
        (answer,) = engine.generate([prompt], greedy(10))
    assert list(answer.tokens) != model.greedy(prompt, 10)


def test_a_pool_makes_its_backend_anew(plugged: Callable[[type[Planned]], list[Planned]]) -> None:
    made = plugged(Planned)
    with family("llama").engine(attention="planned") as engine:
        engine.teardown()
        engine.build(256)
    assert len(made) == 2
    assert made[0].sizes.decode_batches == range(1, 5)


def test_unregistered_names_are_refused_with_the_registered_ones(
    plugged: Callable[[type[Planned]], list[Planned]],
) -> None:
    plugged(Planned)
    with pytest.raises(InvalidRequest, match=r"attention 'flash' is not known; choose auto, .*reference.*planned"):
        family("llama").engine(attention="flash")


@pytest.mark.parametrize("name", ["auto", "reference", "triton"])
def test_names_that_are_taken_stay(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"attention '{name}' is taken"):
        register_backend(name, Planned)


def test_kernels_for_a_gpu_are_refused_on_the_cpu() -> None:
    with pytest.raises(InvalidRequest, match="attention 'triton' runs on CUDA devices"):
        family("llama").engine(attention="triton")


class AsSized(ReferenceAttention):
    """Refuses a layer that is not of one of the shapes that backends are sized for."""

    def __init__(self, sizes: BackendSizes) -> None:
        super().__init__()
        self.shapes = {
            DecodeShape(layer.query_heads, layer.kv_heads, layer.value_dim, layer.window) for layer in sizes.layers
        }

    def attend(
        self, query: torch.Tensor, cache: LayerCache, table: torch.Tensor, layout: StepLayout, rule: AttentionRule
    ) -> torch.Tensor:
        assert DecodeShape(query.shape[1], *cache.values.shape[1:], rule.window) in self.shapes
        return super().attend(query, cache, table, layout, rule)


@pytest.mark.parametrize("name", FAMILIES)
def test_layers_attend_in_the_shapes_that_backends_are_sized_for(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits and scratch are worked out beforehand from what the layers were found to be."""
    monkeypatch.setattr(backends, "_BACKENDS", {**backends._BACKENDS, "sized": AsSized})
    with family(name).engine(attention="sized") as engine:
        (answer,) = engine.generate(prompts_of([3]), greedy(2))
    assert len(answer.tokens) == 2


@needs_interpreter
def test_an_engine_on_the_kernels_gives_the_tokens_of_generate(tmp_path: Path) -> None:
    rows = interpreted("tests/integration/interpreted_engine.py", tmp_path / "out.json")
    assert len(rows) == 2
    assert [row for row in rows if row["tokens"] != row["wanted"]] == []
