"""The real engine, fitted on budgets that are really counted: filled, served from, and given back to the last byte."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.engine import Engine  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.settings import EngineSettings  # noqa: E402
from brim.engine.stress.text import text_shapes  # noqa: E402
from brim.engine.weights.load import LoadedModel, load  # noqa: E402
from brim.errors import DoesNotFit, InvalidRequest  # noqa: E402
from brim.fit.fit import fit  # noqa: E402
from brim.fit.items import counted  # noqa: E402
from brim.fit.measure import least_free_bytes  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.records.fit import Attempt, AttemptOutcome, FitReport, FitRequest, FitSeconds  # noqa: E402
from brim.records.memory import DeviceFacts  # noqa: E402
from brim.records.progress import Stage  # noqa: E402
from brim.serving import fit_engine  # noqa: E402
from brim.units import GIB, KIB, MIB, format_bytes, round_down  # noqa: E402
from tests.integration.tiny_models import VOCAB, tiny_config  # noqa: E402

CANARY = 32 * KIB
ROOM = 8 * MIB  # for more than running requests need
BLOCK = 8
SETTINGS = EngineSettings(max_batch=4, max_batch_tokens=32, max_length=96, block_size=BLOCK)
QUICK = replace(SETTINGS, max_length=48)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"num_hidden_layers": 2}),
    "windows": ("gemma3_text", {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}),
    "hybrid": ("qwen3_5_text", {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]}),
    "mixture": ("qwen3_moe", {"num_hidden_layers": 2}),
    "sliding": ("gemma3_text", {"num_hidden_layers": 2, "layer_types": ["sliding_attention"] * 2}),
    "smallest": ("llama", {"num_hidden_layers": 1}),
}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Threads cost more than they bring at this size, and collections cost more than all the rest together."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    gc.unfreeze()
    torch.set_num_threads(before)


OPEN: list[Bench] = []


@pytest.fixture(autouse=True)
def nothing_stays_built() -> Iterator[None]:
    """The engines of a test share a model: two must not be built at once."""
    yield
    while OPEN:
        OPEN.pop().engine.teardown()


@cache
def loaded(name: str) -> LoadedModel:
    from brim.engine.attention.paged import NAME, register

    register()
    kind, changes = MODELS[name]
    made = load(tiny_config(kind, **changes), load_format="dummy", dtype="fp32", device="cpu", attention=NAME)
    gc.collect()
    gc.freeze()
    return made


@dataclass
class Bench:
    """An engine on a budget, with a log of what the fit did to it."""

    engine: Engine
    probe: CpuProbe
    log: list[tuple[str, int]]
    weights_bytes: int

    def fit(self, **options: Any) -> FitReport:
        self.log.clear()
        return fit_engine(self.engine, probe=self.probe, **{"canary_bytes": CANARY, **options})

    def give_back(self) -> None:
        self.engine.teardown()
        self.probe.hold_canary(0)
        assert self.probe.reading().allocated_bytes == self.weights_bytes, self.probe.largest_held(3)

    def assert_proven(self, report: FitReport) -> None:
        """Built at the reported size, with every worst step run on it, and the canary still held."""
        shapes = [shape.name for shape in self.engine.stress_shapes()]
        assert [one for one in self.log if one[0] == "build"][-1] == ("build", report.kv_tokens)
        assert self.log[-len(shapes) :] == [(name, report.kv_tokens) for name in shapes]
        assert report.attempts[-1] == Attempt(report.kv_tokens, AttemptOutcome.PROVEN)
        assert self.engine.kv_tokens == report.kv_tokens
        held = self.probe.reading().allocated_bytes
        assert held >= self.weights_bytes + report.kv_bytes + CANARY
        assert held <= self.probe.budget_bytes


def bench(name: str, *, budget: int = ROOM, settings: EngineSettings = SETTINGS) -> Bench:
    probe = CpuProbe(GIB)
    probe.hold([*loaded(name).model.parameters(), *loaded(name).model.buffers()])
    engine = Engine(loaded(name), kv_tokens=0, settings=settings, device="cpu", probe=probe)
    log: list[tuple[str, int]] = []
    build, stress = engine.build, engine.stress

    def logged_build(kv_tokens: int) -> None:
        log.append(("build", kv_tokens))
        build(kv_tokens)

    def logged_stress(shape: Any) -> None:
        log.append((shape.name, engine.kv_tokens))
        stress(shape)

    engine.build, engine.stress = logged_build, logged_stress  # type: ignore[method-assign]
    OPEN.append(Bench(engine, probe, log, probe.reading().allocated_bytes))
    probe.budget_bytes = budget
    return OPEN[-1]


@cache
def kept_bytes(name: str) -> int:
    """What everything but KV takes at its worst, canary included: from a fit with room for everything."""
    made = bench(name)
    report = made.fit()
    made.give_back()
    return sum(size for item, size in counted(report.items) if item.name != "kv")


def budget_for(name: str, kv_tokens: int) -> int:
    return kept_bytes(name) + bench(name).engine.kv_bytes(kv_tokens)


FAMILIES = pytest.mark.parametrize("name", ["llama", "windows", "hybrid", "mixture"])


@pytest.mark.parametrize(
    ("name", "spare"), [("llama", 0), ("llama", 511), ("windows", 511), ("hybrid", 0), ("mixture", 0)]
)
def test_the_proven_size_is_what_fills_the_budget(name: str, spare: int) -> None:
    made = bench(name, budget=budget_for(name, 240) + spare)
    report = made.fit()
    made.assert_proven(report)
    assert report.kv_tokens == 240
    assert report.attempts == (Attempt(240, AttemptOutcome.PROVEN),)
    used = sum(size for _, size in counted(report.items))
    block_bytes = made.engine.kv_bytes(240 + BLOCK) - made.engine.kv_bytes(240)
    assert 0 <= made.probe.budget_bytes - used < block_bytes
    made.probe.reset_peak()
    for shape in made.engine.stress_shapes():
        made.engine.stress(shape)
    assert made.probe.reading().peak_allocated_bytes == used
    made.give_back()


@FAMILIES
def test_no_request_runs_out_of_memory_at_the_proven_size(name: str) -> None:
    """Longest prompts, full batches, full sampler, scores of whole prompts: half of the canary is never touched."""
    made = bench(name, budget=budget_for(name, 160))
    made.fit()
    made.probe.hold_canary(0)
    made.probe.reset_peak()
    draw = random.Random(name)
    everything = {"temperature": 0.9, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.1, "logprobs": 20}
    scores: dict[str, Any] = {"temperature": 0, "prompt_logprobs": 20}
    longest = made.engine.max_length - 3
    lengths = [longest, longest, *(draw.randrange(1, 40) for _ in range(6))]
    answered = 0
    for length in lengths:
        params = SamplingParams(max_tokens=draw.randrange(1, 8), ignore_eos=True, **draw.choice([everything, scores]))
        made.engine.submit([draw.randrange(3, VOCAB) for _ in range(length)], params)
    while not made.engine.idle:
        answered += sum(update.completion is not None for update in made.engine.step())
    assert answered == len(lengths)
    assert made.probe.reading().peak_allocated_bytes <= made.probe.budget_bytes - CANARY // 2
    made.give_back()


@pytest.mark.parametrize("name", ["llama", "windows", "mixture", "sliding"])
def test_what_running_requests_cannot_use_is_prefix_cache(name: str) -> None:
    made = bench(name)
    report = made.fit()
    running = SETTINGS.max_batch * 96
    assert (report.needed_tokens, report.cache_tokens) == (running, report.kv_tokens - running)
    assert report.cache_tokens > 10 * running
    used = sum(size for _, size in counted(report.items))
    assert 0 <= ROOM - used < made.engine.kv_bytes(report.kv_tokens + BLOCK) - report.kv_bytes
    assert report.needed_bytes + report.cache_bytes == report.kv_bytes == made.engine.kv_bytes(report.kv_tokens)
    made.assert_proven(report)
    made.give_back()


@pytest.mark.parametrize(("name", "reuse"), [("smallest", False), ("windows", False), ("hybrid", True)])
def test_where_no_prefix_is_reused_no_more_is_taken_than_requests_can_use(name: str, reuse: bool) -> None:
    made = bench(name, settings=replace(SETTINGS, reuse_prefixes=reuse))
    report = made.fit()
    assert (report.kv_tokens, report.cache_tokens) == (SETTINGS.max_batch * 96, 0)
    made.give_back()


def test_a_prefix_is_reused_from_the_cache_beyond_running_requests() -> None:
    """More prompts than the pool of running requests could hold, with windows; the first is still there at the end."""
    made = bench("windows")
    made.fit()
    draw = random.Random(0)
    prompts = [[draw.randrange(3, VOCAB) for _ in range(90)] for _ in range(24)]
    params = SamplingParams(max_tokens=2, temperature=0, ignore_eos=True)
    made.engine.generate(prompts, params)
    again = made.engine.generate(prompts[:1], params)
    assert again[0].reused_tokens == 88
    made.give_back()


def test_a_length_that_ends_inside_a_block_is_held_to_its_end() -> None:
    made = bench("smallest", settings=replace(SETTINGS, max_length=61))
    assert made.fit().needed_tokens == SETTINGS.max_batch * 64
    made.give_back()


def test_a_fraction_takes_that_much_of_what_is_left() -> None:
    made = bench("smallest", budget=budget_for("smallest", 320))
    report = made.fit(memory_fraction=0.5)
    left = made.engine.kv_bytes(320) // 2
    assert report.kv_bytes <= left < made.engine.kv_bytes(report.kv_tokens + BLOCK)
    with pytest.raises(InvalidRequest, match="memory_fraction"):
        made.fit(memory_fraction=1.5)
    made.give_back()


def test_a_pinned_size_is_stressed_once_and_taken_or_refused() -> None:
    made = bench("smallest", budget=budget_for("smallest", 200))
    report = made.fit(kv_tokens=160)
    assert (report.kv_tokens, [name for name, _ in made.log].count("build")) == (160, 1)
    made.assert_proven(report)
    made.give_back()
    with pytest.raises(DoesNotFit, match="tried 360 tokens") as caught:
        made.fit(kv_tokens=360)
    assert [name for name, _ in made.log].count("build") == 1
    assert caught.value.knobs[0].name == "kv_tokens"
    assert caught.value.knobs[0].proposed.startswith("at most ")
    with pytest.raises(
        InvalidRequest, match=r"kv_tokens 99,999,999,999,999: blocks are tracked for at most .*; lower it"
    ):
        made.fit(kv_tokens=99_999_999_999_999)
    made.give_back()


@pytest.mark.parametrize("kv_tokens", [32, 40, 64])
def test_a_pool_that_holds_less_than_a_full_step_is_stressed_as_far_as_it_goes(kv_tokens: int) -> None:
    made = bench("smallest", settings=replace(SETTINGS, max_batch=16, max_batch_tokens=64, max_length=32))
    made.assert_proven(made.fit(kv_tokens=kv_tokens))
    made.give_back()


@pytest.mark.parametrize(
    ("facts", "asked", "kept", "provable"),
    [
        (DeviceFacts(), None, 0, True),
        (DeviceFacts(), MIB, MIB, True),
        (DeviceFacts(spills=True), None, -(-ROOM // 10), False),
        (DeviceFacts(spills=True), 0, 0, False),
    ],
)
def test_what_stays_free_of_the_device(facts: DeviceFacts, asked: int | None, kept: int, provable: bool) -> None:
    made = bench("smallest")
    report = made.fit(keep_free_bytes=asked, facts=facts)
    assert (report.keep_free_bytes, report.provable) == (kept, provable)
    assert any("nothing can be proven" in warning for warning in report.warnings) is not provable
    items = {item.name: item for item in report.items}
    assert ("keep_free" in items) is (kept > 0)
    block_bytes = made.engine.kv_bytes(report.kv_tokens + BLOCK) - report.kv_bytes
    assert kept <= least_free_bytes(made.probe.reading()) < kept + block_bytes + 512
    made.assert_proven(report)
    made.give_back()


def test_a_card_that_drives_a_display_and_is_too_small_for_that_says_so() -> None:
    made = bench("smallest")
    with pytest.raises(DoesNotFit, match=r"512\.0 MiB are kept free \(keep_free\)") as caught:
        made.fit(facts=DeviceFacts(drives_display=True))
    assert caught.value.knobs[0].name == "keep_free"
    made.assert_proven(made.fit(facts=DeviceFacts(drives_display=True), keep_free_bytes=0))
    made.give_back()


# -- what does not fit -------------------------------------------------------------------------------------------------


@FAMILIES
def test_too_small_for_one_request_reports_a_shortfall_that_is_enough(name: str) -> None:
    made = bench(name, budget=kept_bytes_of_least(name) - 3 * KIB)
    with pytest.raises(DoesNotFit, match="one request needs") as caught:
        made.fit()
    made.give_back()
    missing = caught.value.missing_bytes
    assert 3 * KIB - 512 <= missing <= 3 * KIB  # a pool for one request cuts prompts in another way: an allocation
    assert f"({missing:,} bytes)" in str(caught.value)
    made.probe.budget_bytes += missing
    made.assert_proven(made.fit())
    made.give_back()


@cache
def kept_bytes_of_least(name: str) -> int:
    """The least budget with which one request fits: everything as measured on a pool for one request."""
    made = bench(name)
    made.engine.build(made.engine.least_tokens)
    held = made.probe.reading().allocated_bytes
    made.probe.reset_peak()
    for shape in made.engine.stress_shapes():
        made.engine.stress(shape)
    peak = made.probe.reading().peak_allocated_bytes
    made.engine.teardown()
    assert peak > held
    return peak + CANARY


def test_the_message_names_the_ledger_and_every_knob_that_helps() -> None:
    made = bench("hybrid", budget=kept_bytes_of_least("hybrid") - 3 * KIB)
    with pytest.raises(DoesNotFit) as caught:
        made.fit()
    error = caught.value
    assert {item.name for item in error.ledger} >= {"weights", "graphs", "activation", "canary", "kv"}
    assert [knob.name for knob in error.knobs] == ["max_batch_tokens", "canary", "max_batch", "kv_dtype", "max_length"]
    for line in ("weights", "canary", "max_batch_tokens", "32 -> 16"):
        assert line in str(error)
    made.give_back()


@pytest.mark.parametrize(
    ("name", "knob"),
    [
        ("llama", "max_batch"),
        ("llama", "kv_dtype"),
        ("llama", "canary"),
        ("hybrid", "max_batch"),
        ("hybrid", "max_batch_tokens"),
    ],
)
def test_a_knob_that_promises_enough_is_enough(name: str, knob: str) -> None:
    short = bench(name, budget=kept_bytes_of_least(name) - 3 * KIB)
    with pytest.raises(DoesNotFit) as caught:
        short.fit()
    short.give_back()
    missing = caught.value.missing_bytes
    found = {one.name: one for one in caught.value.knobs}[knob]
    assert missing is not None
    if found.buys_bytes < missing:
        assert (name, knob) == ("llama", "max_batch")  # block tables are small, and it says so
        assert f"frees {format_bytes(found.buys_bytes)}, not enough by itself" in str(caught.value)
        return
    options: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    if knob == "canary":
        options = {"canary_bytes": CANARY - found.buys_bytes}
    else:
        settings = {knob: found.proposed if knob == "kv_dtype" else int(found.proposed)}
    made = bench(name, budget=short.probe.budget_bytes, settings=replace(SETTINGS, **settings))
    report = made.fit(**options)
    assert report.attempts[-1] == Attempt(made.engine.kv_tokens, AttemptOutcome.PROVEN)
    made.give_back()


def test_an_engine_without_room_for_anything_says_so() -> None:
    made = bench("hybrid")
    made.probe.budget_bytes = made.weights_bytes + 1
    with pytest.raises(DoesNotFit, match="does not fit even with 32 KV tokens") as caught:
        made.fit()
    assert caught.value.ledger == ()
    assert {knob.name for knob in caught.value.knobs} >= {"canary", "kv_dtype"}
    made.give_back()


# -- faults ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "samples"), [("smallest", 40), ("hybrid", 5), ("windows", 5)])
def test_out_of_memory_at_any_allocation_ends_proven_or_clear(name: str, samples: int) -> None:
    made = bench(name, settings=replace(SETTINGS, max_length=48))
    engine, probe = made.engine, made.probe
    most = SETTINGS.max_batch * 48
    request = FitRequest(most, engine.least_tokens, most, canary_bytes=CANARY)

    def allocations() -> int:
        before = probe.allocations
        assert fit(engine, probe, request, engine.kv_bytes).attempts == (Attempt(most, AttemptOutcome.PROVEN),)
        made.give_back()
        return probe.allocations - before

    allocations()  # rates are measured by the first build only
    total = allocations()
    for number in sorted({1, 3, total, *range(7, total, total // samples)}):
        probe.fail_at = probe.allocations + number
        with suppress(DoesNotFit):
            made.assert_proven(fit(engine, probe, request, engine.kv_bytes))
        made.give_back()
    probe.fail_at = None
    assert allocations() == total  # nothing stayed behind


@pytest.mark.parametrize("number", [1, 7, 40, 300, 700, 1000])
def test_out_of_memory_at_a_full_budget_ends_proven_or_clear(number: int) -> None:
    made = bench("smallest", budget=budget_for("smallest", 200))
    made.probe.fail_at = made.probe.allocations + number
    report = made.fit()
    made.assert_proven(report)
    assert report.kv_tokens >= round_down(int(200 * 0.9), BLOCK)
    made.give_back()


@pytest.mark.parametrize("error", [RuntimeError("boom"), KeyboardInterrupt()])
@pytest.mark.parametrize("number", range(1, 8))
def test_any_other_exception_ends_the_fit_with_nothing_left(number: int, error: BaseException) -> None:
    """Raised by the n-th build or stress of the two of each shape."""
    made = bench("smallest", settings=replace(SETTINGS, max_length=48))
    shapes = len(text_shapes(SETTINGS, 48))
    build, stress = made.engine.build, made.engine.stress
    calls: list[int] = []

    def failing(what: Any, argument: Any) -> None:
        calls.append(1)
        what(argument)
        if len(calls) == number:
            raise error

    made.engine.build = lambda kv_tokens: failing(build, kv_tokens)  # type: ignore[method-assign]
    made.engine.stress = lambda shape: failing(stress, shape)  # type: ignore[method-assign]
    with pytest.raises(type(error)) as caught:
        made.fit()
    assert caught.value is error
    assert len(calls) == number <= 2 * (1 + shapes)
    made.give_back()


def test_a_leak_names_its_holder() -> None:
    made = bench("smallest", settings=replace(SETTINGS, max_length=48))
    kept: list[Any] = []
    build = made.engine.build

    def leaking(kv_tokens: int) -> None:
        build(kv_tokens)
        with made.probe:
            kept.append(torch.zeros(4321, dtype=torch.uint8))

    made.engine.build = leaking  # type: ignore[method-assign]
    with pytest.raises(Exception, match=r"were not freed .* \(4321,\) torch\.uint8"):
        made.fit()
    kept.clear()
    made.give_back()


# -- progress ----------------------------------------------------------------------------------------------------------


def test_every_phase_is_reported_and_every_second_accounted_for(tmp_path: Path) -> None:
    told: list[Stage] = []
    made = bench("smallest")
    report = made.fit(progress=told.append, store=tmp_path)
    phases = [phase for phase, _ in groupby(stage.phase for stage in told)]
    assert phases == ["probe", "build", "stress", "rebuild", "build", "scaling", "validate", "predict"]
    shapes = [shape.title for shape in made.engine.stress_shapes()]
    assert [stage.detail for stage in told if stage.phase == "stress"] == shapes * 2
    assert [stage.detail for stage in told if stage.phase == "validate"] == shapes
    measured = [step.stress.title for step in made.engine.scaling_steps().steps]
    assert [stage.detail for stage in told if stage.phase == "scaling"] == measured
    assert Stage("build", f"KV cache of {report.kv_tokens:,} tokens") in told
    seconds = asdict(report.seconds)
    total = seconds.pop("total")
    assert total == pytest.approx(sum(seconds.values()))
    assert min(seconds.values()) > 0
    assert made.engine.progress is None  # as before
    made.give_back()
    told.clear()
    again = made.fit(progress=told.append, store=tmp_path)
    assert again.from_store
    assert {stage.phase for stage in told} == {"rebuild", "build", "validate"}
    assert again.seconds.total == pytest.approx(sum(asdict(again.seconds).values()) - again.seconds.total)
    made.give_back()


def test_a_stored_size_that_failed_is_part_of_the_time(tmp_path: Path) -> None:
    """Its build takes long, and is counted beside those of the search."""
    budget = budget_for("smallest", 200)
    bench("smallest", budget=budget).fit(store=tmp_path)
    made = bench("smallest", budget=budget)
    neighbour = torch.empty(made.engine.kv_bytes(100) - made.engine.kv_bytes(60), dtype=torch.uint8)
    made.probe.hold([neighbour])
    build = made.engine.build

    def slow_at_first(kv_tokens: int) -> None:
        time.sleep(0.0 if made.log else 0.2)
        build(kv_tokens)

    made.engine.build = slow_at_first  # type: ignore[method-assign]
    report = made.fit(store=tmp_path)
    assert not report.from_store
    assert report.seconds.rebuild >= 0.2
    seconds = asdict(report.seconds)
    assert seconds.pop("total") == pytest.approx(sum(seconds.values()))


def test_an_engine_reports_loading_and_building() -> None:
    told: list[Stage] = []
    with Engine("brim-random", kv_tokens=512, settings=SETTINGS, device="cpu", progress=told.append):
        assert told == [
            *(Stage("load"), Stage("load", "weights", 1, 1), Stage("load", "layers")),
            Stage("build", "KV cache of 512 tokens"),
        ]


def test_progress_of_an_engine_is_that_of_its_fit(capsys: pytest.CaptureFixture[str]) -> None:
    probe = CpuProbe(32 * MIB)
    for progress, shown in ((None, False), (False, False), (True, True)):
        with Engine("brim-random", kv_tokens=0, settings=QUICK, device="cpu", probe=probe, progress=progress) as engine:
            fit_engine(engine, probe=probe, canary_bytes=CANARY, kv_tokens=96)
            lines = capsys.readouterr().err.splitlines()
            assert ("brim: load (weights)" in lines and "brim: rebuild (96 tokens)" in lines) is shown
            assert shown or not lines
            probe.hold_canary(0)


# -- the store ---------------------------------------------------------------------------------------------------------


def without_time(report: FitReport) -> FitReport:
    return replace(report, seconds=FitSeconds(), from_store=False)


def test_the_next_start_validates_the_stored_size_once(tmp_path: Path) -> None:
    first = bench("smallest", settings=QUICK)
    found = first.fit(store=tmp_path)
    second = bench("smallest", settings=QUICK)
    again = second.fit(store=tmp_path)
    assert (found.from_store, again.from_store) == (False, True)
    assert without_time(again) == without_time(found)
    assert [name for name, _ in second.log].count("build") == 1
    second.assert_proven(again)


@pytest.mark.parametrize(
    "other", [{"settings": replace(QUICK, max_batch=3)}, {"budget": ROOM // 2}], ids=["settings", "memory"]
)
def test_another_engine_or_device_searches(tmp_path: Path, other: dict[str, Any]) -> None:
    bench("smallest", settings=QUICK).fit(store=tmp_path)
    assert not bench("smallest", **{"settings": QUICK, **other}).fit(store=tmp_path).from_store
    assert len(list(tmp_path.iterdir())) == 2


def test_other_options_search(tmp_path: Path) -> None:
    bench("smallest", settings=QUICK).fit(store=tmp_path)
    assert not bench("smallest", settings=QUICK).fit(store=tmp_path, canary_bytes=CANARY + 512).from_store
    assert not bench("smallest", settings=QUICK).fit(store=tmp_path, memory_fraction=0.9).from_store
    assert not bench("smallest", settings=QUICK).fit(store=tmp_path, keep_free_bytes=512).from_store


def test_other_free_memory_searches(tmp_path: Path) -> None:
    bench("smallest", settings=QUICK, budget=128 * MIB).fit(store=tmp_path)
    made = bench("smallest", settings=QUICK, budget=128 * MIB)
    neighbour = torch.empty(100 * MIB, dtype=torch.uint8)
    made.probe.hold([neighbour])
    assert not made.fit(store=tmp_path).from_store


def test_a_stored_size_that_no_longer_fits_is_searched_again(tmp_path: Path) -> None:
    budget = budget_for("smallest", 200)
    bench("smallest", budget=budget).fit(store=tmp_path)
    made = bench("smallest", budget=budget)
    neighbour = torch.empty(made.engine.kv_bytes(100) - made.engine.kv_bytes(60), dtype=torch.uint8)
    made.probe.hold([neighbour])
    report = made.fit(store=tmp_path)
    assert (report.from_store, report.kv_tokens) == (False, 160)
    made.assert_proven(report)


def test_a_damaged_entry_is_searched_again(tmp_path: Path) -> None:
    proven = bench("smallest", settings=QUICK).fit(store=tmp_path).kv_tokens
    (entry,) = tmp_path.iterdir()
    entry.write_text(entry.read_text().replace(f'"kv_tokens": {proven}', f'"kv_tokens": {proven - 1}'))
    made = bench("smallest", settings=QUICK)
    assert not made.fit(store=tmp_path).from_store
    assert bench("smallest", settings=QUICK).fit(store=tmp_path).from_store


def test_a_store_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    in_the_way = tmp_path / "store"
    in_the_way.write_text("a file")
    made = bench("smallest", settings=QUICK)
    report = made.fit(store=in_the_way)
    assert "could not be stored" in report.warnings[0]
    made.assert_proven(report)
