"""The fit's worst steps cover the worst that serving does: its peak, counted, is no higher than the proven one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.attention.paged import NAME, register  # noqa: E402
from brim.engine.engine import Engine  # noqa: E402
from brim.engine.requests.params import MAX_ALTERNATIVES  # noqa: E402
from brim.engine.run.sampling import sampler  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.stress import text  # noqa: E402
from brim.engine.stress.sequences import EVERYTHING  # noqa: E402
from brim.engine.weights.load import load  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.units import GIB  # noqa: E402
from tests.integration.tiny_models import tiny_config  # noqa: E402

SETTINGS = EngineSettings(max_batch=4, max_batch_tokens=32, max_length=96, block_size=8, reuse_prefixes=False)
UNBOUND = replace(EVERYTHING, grammar=None, ignore_eos=True, top_k_logits=128)  # the whole vocabulary
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_hidden_layers": 2}),
    "windows": ("gemma3_text", {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}),
    "hybrid": ("qwen3_5_text", {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}),
}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def engine_of(name: str, settings: EngineSettings = SETTINGS) -> Engine:
    register()
    kind, changes = MODELS[name]
    loaded = load(
        tiny_config(kind, max_position_embeddings=8192, **changes),
        load_format="dummy",
        dtype="fp32",
        device="cpu",
        attention=NAME,
    )
    return Engine(loaded, kv_tokens=1024, settings=settings, device="cpu", probe=CpuProbe(GIB))


def proven_bytes(engine: Engine) -> int:
    """The peak of the worst steps beyond what is held at rest."""
    probe = engine.probe
    for _ in range(2):
        rest = probe.reading().allocated_bytes
        probe.reset_peak()
        for shape in engine.stress_shapes():
            engine.stress(shape)
    assert probe.reading().allocated_bytes == rest, "stress leaves nothing behind"
    return int(probe.reading().peak_allocated_bytes - rest)


def served_bytes(engine: Engine, asked: list[tuple[int, Any]]) -> int:
    """The same while requests of so many tokens are answered, all at once; beside what was drawn last."""
    probe = engine.probe
    rest = probe.reading().allocated_bytes
    probe.reset_peak()
    for number, (length, params) in enumerate(asked):
        engine.submit([(7 * number + place) % 90 + 3 for place in range(length)], params)
    answers = []
    while not engine.idle:
        answers += [update.completion for update in engine.step() if update.completion is not None]
    assert len(answers) == len(asked)
    assert all(one.error is None or not one.error for one in answers)
    return int(probe.reading().peak_allocated_bytes - rest)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scored", [None, MAX_ALTERNATIVES])
def test_full_batches_that_draw_with_everything_stay_within_what_was_proven(name: str, scored: int | None) -> None:
    """Full steps follow each other without a pause: each is launched before the one before it has been read."""
    with engine_of(name) as engine:
        proven = proven_bytes(engine)
        for lengths in ([29, 1, 1, 1] * 2, [8] * 8, [90, 20, 20, 20] * 2):
            asked = [(length, replace(UNBOUND, prompt_logprobs=scored, max_tokens=4)) for length in lengths]
            assert served_bytes(engine, asked) <= proven


def test_the_longest_answer_is_looked_at_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is longer than what a slice of rows may look at together is a slice by itself."""
    for module in (sampler, text):
        monkeypatch.setattr(module, "HISTORY_AT_ONCE", 512)
    settings = replace(SETTINGS, max_length=4096)
    with engine_of("llama", settings) as engine:
        probe, peaks = engine.probe, {}
        runner, ledger = engine.model.runner, engine.loop.scheduler.ledger
        for shape in engine.stress_shapes() * 2:
            rest = probe.reading().allocated_bytes
            probe.reset_peak()
            with probe:
                text.run_text_shape(shape, runner, ledger, engine.max_length)
            peaks[shape.name] = probe.reading().peak_allocated_bytes - rest
        assert peaks[text.LONGEST] - peaks[text.DECODE] > 4096 * 24  # three numbers of 64 bits for each of its tokens
    assert text.LONGEST not in [shape.name for shape in text.text_shapes(settings, 200)]


def test_steps_that_scaling_is_learned_from_run_alone() -> None:
    with engine_of("llama") as engine:
        worst = engine.stress_shapes()
        assert {text.steps_before(one.stress, worst) for one in engine.scaling_steps().steps} == {()}
        scored = worst[1:3]
        assert [(one.name, one.sequences) for one in scored] == [(text.SCORES, 4), (text.SCORES, 1)]
        assert [text.steps_before(shape, worst) for shape in worst] == [(), scored, scored, scored]
