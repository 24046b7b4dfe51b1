"""Tokens on the device beside tokens of the host: whatever happens to requests, penalties see the same."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brim.engine.device.staging import Staging  # noqa: E402
from brim.engine.requests.params import SamplingParams  # noqa: E402
from brim.engine.requests.request import Request  # noqa: E402
from brim.engine.requests.sequence import Sequence  # noqa: E402
from brim.engine.run.packing import sample_rows  # noqa: E402
from brim.engine.run.sampling import history, pages, penalties, sampler  # noqa: E402
from brim.engine.run.sampling.history import TokenHistory, pool_pages  # noqa: E402
from brim.engine.run.sampling.sampler import SampleRow, sample  # noqa: E402
from brim.engine.schedule.plan import Chunk, StepPlan  # noqa: E402

VOCAB, SLOTS, MAX_LENGTH = 13, 4, 40
PENALTIES: list[dict[str, float]] = [
    {"repetition_penalty": 1.7},
    {"presence_penalty": 0.3, "frequency_penalty": 0.7},
    {"repetition_penalty": 0.6, "frequency_penalty": -0.4},
    {},
]


@pytest.fixture(scope="module", autouse=True)
def small_pages() -> Iterator[None]:
    """So that few tokens are many pages."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (history, pages, penalties):
            patched.setattr(module, "PAGE_TOKENS", 4)
        patched.setattr(history, "_PAGES_AT_ONCE", 3)
        yield


class FailingStaging(Staging):
    """Raises instead of sending, after so many times."""

    left = -1

    def send(self, arrays: Any) -> Any:
        if self.left == 0:
            raise MemoryError
        self.left -= 1
        return super().send(arrays)


@dataclass
class Served:
    """What serving does with sequences, steps and slots, with tokens that are given instead of drawn."""

    pool_tokens: int
    params: list[int]
    staging: FailingStaging = field(default_factory=lambda: FailingStaging(torch.device("cpu")))
    running: dict[int, Sequence] = field(default_factory=dict)  # by slot
    truth: dict[Any, list[int]] = field(default_factory=dict)  # outputs, also those not read yet
    unread: list[tuple[Sequence, int]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.last = torch.full((SLOTS + 1,), -1)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(history, "pool_pages", lambda *_: max(1, self.pool_tokens // 4))
            self.history = TokenHistory(SLOTS, MAX_LENGTH, torch.device("cpu"), self.staging)

    def read(self) -> None:
        for sequence, token in self.unread:
            sequence.unseen -= 1
            sequence.tokens.append(token)
        self.unread = []

    def begin(self, slot: int, old: Sequence | None, prompt: list[int]) -> Sequence:
        if old is not None and old not in self.running.values() and not old.unseen:
            return old  # preempted, and recomputed in another slot
        self.count += 1
        params = SamplingParams(max_tokens=MAX_LENGTH, **PENALTIES[self.params[self.count % len(self.params)]])
        request = Request(str(self.count % 3), tuple(prompt), params, seed=self.count, max_tokens=MAX_LENGTH)
        sequence = Sequence(request, list(prompt))
        self.truth[sequence] = []
        return sequence

    def step(self, decoding: list[int], begun: dict[int, Sequence], tokens: list[int], fails_after: int) -> bool:
        """Launch one step and read the one before it. False if it failed, and is as if it had not been."""
        decodes = [(slot, self.running[slot]) for slot in decoding if slot in self.running and slot not in begun]
        drawing = [*decodes, *begun.items()]
        if not drawing:
            return True
        chunks = tuple(Chunk(sequence, slot, 0, len(sequence.tokens), draws=True) for slot, sequence in begun.items())
        plan = StepPlan(
            tuple(sequence for _, sequence in decodes),
            tuple(slot for slot, _ in decodes),
            tuple(sequence.length for _, sequence in decodes),
            chunks,
        )
        self.staging.left = fails_after
        try:
            looked_up = self.history.look_up(plan, sample_rows(plan.drawing), VOCAB, self.last)
            self.check(plan, looked_up.rows)
            drawn = torch.tensor([tokens[row % len(tokens)] for row in range(len(drawing))])
            self.history.append(looked_up, drawn)
        except MemoryError:
            event("failed")
            return False
        finally:
            self.staging.left = -1
        self.last[[slot for slot, _ in drawing]] = drawn
        for _, sequence in drawing:
            sequence.unseen += 1
        self.read()
        self.unread = [(sequence, token) for (_, sequence), token in zip(drawing, drawn.tolist(), strict=True)]
        for sequence, token in self.unread:
            self.truth[sequence].append(token)
        if looked_up.read_first:
            event("read first")
            self.read()
        return True

    def check(self, plan: StepPlan, rows: list[SampleRow]) -> None:
        """Bit for bit what the host's own tokens give."""
        expected = [
            row._replace(prompt=sequence.request.prompt, output=self.truth[sequence], held=None)
            for row, sequence in zip(rows, plan.drawing, strict=True)
        ]
        logits = torch.randn(len(rows), VOCAB, generator=torch.Generator().manual_seed(len(rows)))
        assert torch.equal(adjusted(logits, rows), adjusted(logits, expected))
        for row in rows:
            event("on the device" if row.held is not None else "on the host" if row.output else "no history")


def adjusted(logits: Any, rows: list[SampleRow]) -> Any:
    scores = logits.clone()
    sampler._adjust(scores, sampler._sent_up(rows, list(range(len(rows))), logits), sampler._changes(rows, logits))
    return scores


@st.composite
def scripts(draw: Any) -> list[Any]:
    slots = st.integers(0, SLOTS - 1)
    one = st.tuples(
        st.lists(slots, unique=True, max_size=SLOTS),  # decode
        st.dictionaries(slots, st.lists(st.integers(-1, VOCAB + 2), min_size=1, max_size=11), max_size=2),  # begin
        st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=SLOTS),
        st.sampled_from([-1, -1, -1, -1, 0, 1, 2, 3]),  # fails after so many copies
        st.booleans(),
    )
    return draw(st.lists(one, min_size=4, max_size=25))


@given(
    script=scripts(),
    pool_tokens=st.sampled_from([4, 12, 40, 200]),
    params=st.lists(st.integers(0, len(PENALTIES) - 1), min_size=1, max_size=4),
)
@settings(max_examples=200, deadline=None)
def test_whatever_happens_penalties_see_the_tokens_of_the_request(
    script: list[Any], pool_tokens: int, params: list[int]
) -> None:
    served = Served(pool_tokens, params)
    ended: Sequence | None = None
    for decoding, begins, tokens, fails_after, again in script:
        if fails_after >= 0 and again:
            served.read()  # a step may fail with the one before it read, or not
        begun: dict[int, Sequence] = {}
        for slot, prompt in begins.items():
            before = served.running.pop(slot, None)
            begun[slot] = served.begin(slot, ended if again else None, prompt)
            served.running[slot] = begun[slot]
            ended = before if before is not None and not before.unseen else None
        if not served.step(decoding, begun, tokens, fails_after):
            for slot in begun:
                del served.running[slot]
            served.step(list(range(SLOTS)), {}, tokens, -1)


def sequence_of(slot: int, prompt: int, output: int, **params: Any) -> Sequence:
    request = Request(str(slot), tuple(range(prompt)), SamplingParams(max_tokens=10**6, **params), slot, 10**6)
    return Sequence(request, [*request.prompt, *(number % 7 for number in range(output))])


def decodes(sequences: list[Sequence]) -> StepPlan:
    slots = tuple(range(len(sequences)))
    return StepPlan(tuple(sequences), slots, tuple(sequence.length for sequence in sequences), ())


def test_a_long_history_goes_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []

    class Counting(Staging):
        def send(self, arrays: Any) -> Any:
            sent.extend(array.size for array in arrays)
            return super().send(arrays)

    in_one_copy = sampler._in_one_copy

    def counted(parts: list[Any], device: Any) -> list[Any]:
        sent.extend(len(part) for part in parts)
        return in_one_copy(parts, device)

    monkeypatch.setattr(sampler, "_in_one_copy", counted)
    for module in (history, pages, penalties):
        monkeypatch.setattr(module, "PAGE_TOKENS", 256)
    tokens = TokenHistory(4, 8000, torch.device("cpu"), Counting(torch.device("cpu")))
    sequences = [sequence_of(slot, 50, 3000, repetition_penalty=1.2, frequency_penalty=0.1) for slot in range(4)]
    last, totals = torch.zeros(5, dtype=torch.int64), []
    for _ in range(3):
        sent.clear()
        plan = decodes(sequences)
        looked_up = tokens.look_up(plan, sample_rows(plan.drawing), VOCAB, last)
        drawn = sample(torch.zeros(4, VOCAB), looked_up.rows).tokens
        tokens.append(looked_up, drawn)
        assert not looked_up.read_first
        totals.append(sum(sent))
        for sequence, token in zip(sequences, drawn.tolist(), strict=True):
            sequence.tokens.append(token)
    assert totals[0] > 12_000
    assert max(totals[1:]) < 500


def test_when_the_pool_is_full_those_that_draw_nothing_give_their_pages_up() -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(history, "pool_pages", lambda *_: 6)
        tokens = TokenHistory(4, MAX_LENGTH, torch.device("cpu"), Staging(torch.device("cpu")))
    sequences = [sequence_of(slot, 2, 6, presence_penalty=1.0) for slot in range(4)]  # two pages each
    last = torch.zeros(5, dtype=torch.int64)

    def held(chosen: list[int]) -> list[bool]:
        those = tuple(sequences[slot] for slot in chosen)
        some = StepPlan(those, tuple(chosen), tuple(sequence.length - 1 for sequence in those), ())
        looked_up = tokens.look_up(some, sample_rows(some.drawing), VOCAB, last)
        assert looked_up.read_first == any(row.held is None for row in looked_up.rows)
        return [row.held is not None for row in looked_up.rows]

    assert held([0, 1, 2]) == [True] * 3
    assert held([3]) == [True]
    assert held([0, 1, 2, 3]) == [True, True, False, True]  # what is there stays, and comes first


def test_the_pool_is_small() -> None:
    for module in (pages, history):
        assert module.PAGE_TOKENS == 4
    assert pool_pages(256, 131_072) * 4 * 4 == 4 * 2**20  # bytes
    assert pool_pages(1, 131_072) * 4 == 131_072  # the longest request
    assert pool_pages(64, 100) * 4 == 6400


def test_ids_are_kept_in_the_order_of_prompt_then_output_and_each_of_the_prompt_once() -> None:
    tokens = TokenHistory(2, MAX_LENGTH, torch.device("cpu"), Staging(torch.device("cpu")))
    request = Request("a", (5, 3, 5, VOCAB, -1, 3), SamplingParams(repetition_penalty=2.0), 0, 9)
    sequence = Sequence(request, [*request.prompt, 7, 7], unseen=1)  # one more is drawn and not read
    last = torch.tensor([0, 9, 0])
    plan = StepPlan((sequence,), (1,), (8,), ())
    looked_up = tokens.look_up(plan, sample_rows(plan.drawing), VOCAB, last)
    held = looked_up.rows[0].held
    assert (held.prompt, held.output) == (2, 3)
    index = np.concatenate([np.arange(start, start + 4) for start in held.starts])[:5]
    assert held.pool[index].tolist() == [3, 5, 7, 7, 9]


def test_a_row_without_room_whose_last_token_is_unread_takes_it_from_the_device() -> None:
    """A launch that failed had taken its pages, and the next one has a row for it again."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(history, "pool_pages", lambda *_: 3)
        staging = FailingStaging(torch.device("cpu"))
        tokens = TokenHistory(2, MAX_LENGTH, torch.device("cpu"), staging)
    first, second = (sequence_of(slot, 2, output, presence_penalty=1.0) for slot, output in ((0, 6), (1, 7)))
    last = torch.tensor([11, 0, 0])

    def look_up(slots: tuple[int, ...]) -> Any:
        sequences = tuple((first, second)[slot] for slot in slots)
        plan = StepPlan(sequences, slots, tuple(sequence.length for sequence in sequences), ())
        return tokens.look_up(plan, sample_rows(sequences), VOCAB, last)

    tokens.append(look_up((0,)), torch.tensor([11]))  # drawn, and not read
    staging.left = 1
    looked_up = look_up((1,))
    with pytest.raises(MemoryError):
        tokens.append(looked_up, torch.tensor([5]))
    staging.left = -1
    first.unseen = 1
    rows = look_up((0, 1)).rows
    assert (rows[0].held, rows[0].output) == (None, [*first.tokens[2:], 11])
    assert rows[1].held is not None


def test_notes_of_another_request_and_of_too_few_tokens_are_not_found() -> None:
    notes = pages.PageNotes(4)
    kept = notes.open(0, ("a", 0), prompt=3)
    assert notes.find(0, ("a", 0), 0) is None  # nothing has been written yet
    kept.output = 2
    assert notes.find(0, ("a", 0), 2) is notes.find(0, ("a", 0), 1) is kept
    assert (notes.find(0, ("a", 0), 3), notes.find(0, ("a", 1), 2), notes.find(1, ("a", 0), 2)) == (None, None, None)


def test_pages_that_are_given_up_can_be_taken_at_once_and_those_that_got_lost_in_the_next_step() -> None:
    notes = pages.PageNotes(4)
    notes.begin_step({0, 1})
    large = notes.open(0, ("a", 0), 0)
    assert not notes.make_room(large, 17)
    notes.drop(0)
    other = notes.open(1, ("b", 0), 0)
    assert notes.make_room(other, 16)
    assert sorted(other.pages) == [0, 1, 2, 3]
    assert sorted(other.starts.tolist()) == [0, 4, 8, 12]
    other.pages.pop()  # as if an interrupt had come between taking a page and noting it
    notes.begin_step({1})
    assert notes.make_room(other, 16)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_cuda_nothing_waits_and_the_tokens_are_those_of_the_cpu() -> None:
    numbers = torch.Generator().manual_seed(0)
    logits = [torch.randn(SLOTS, VOCAB, generator=numbers) for _ in range(20)]

    def served(device: str) -> list[list[int]]:
        tokens = TokenHistory(SLOTS, 200, torch.device(device), Staging(torch.device(device)))
        kinds = [*PENALTIES[:3], {"repetition_penalty": 1.3, "presence_penalty": 0.2}]
        sequences = [sequence_of(slot, 9, 5, temperature=0.0, **kind) for slot, kind in enumerate(kinds)]
        last = torch.zeros(SLOTS + 1, dtype=torch.int64, device=device)
        slots, unread, drawn = torch.arange(SLOTS, device=device), None, []
        for step, some in enumerate(logits):
            there = some.to(device)
            if device == "cuda" and step > 2:  # by then kernels are loaded and pinned memory is there
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
            try:
                plan = decodes(sequences)
                looked_up = tokens.look_up(plan, sample_rows(plan.drawing), VOCAB, last)
                found = sample(there, looked_up.rows).tokens
                tokens.append(looked_up, found)
                last[slots] = found
            finally:
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
            for row, sequence in enumerate(sequences):  # the step before this one is read now
                if unread is None:
                    sequence.unseen = 1
                else:
                    sequence.tokens.append(unread[row])
            unread = found.tolist()
            drawn.append(unread)
        return drawn

    assert served("cuda") == served("cpu")
