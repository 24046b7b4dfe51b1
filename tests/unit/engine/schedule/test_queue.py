"""In which order waiting requests start: lines of shares, and turns between them."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from brim.engine.requests.sequence import Sequence
from brim.engine.schedule.queue import WaitingQueue
from brim.guard.shares import EVERYBODY, ClientShare
from tests.unit.engine.schedule.world import full, request

costs = st.integers(1, 40)
shares = st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0]), min_size=2, max_size=4).map(
    lambda weights: [ClientShare(str(number), weight) for number, weight in enumerate(weights)]
)


def waiting(name: str, share: ClientShare = EVERYBODY, tokens: int = 4, priority: int = 0) -> Sequence:
    asked = request(name, tokens, 3, share=share, priority=priority)
    return Sequence(asked, list(asked.prompt))


def ids(queue: WaitingQueue) -> list[str]:
    return [one.request.id for one in queue]


def start_next(queue: WaitingQueue) -> Sequence:
    first = next(iter(queue))
    queue.step_out(first, 0)
    return first


@given(priorities=st.lists(st.integers(-2, 2), max_size=12), data=st.data())
def test_with_one_share_a_higher_priority_comes_first_and_then_who_came_first(
    priorities: list[int], data: st.DataObject
) -> None:
    queue = WaitingQueue()
    model: list[tuple[int, int]] = []  # priority and number, as they are to start
    for number, priority in enumerate(priorities):
        queue.join(waiting(str(number), priority=priority))
        model = sorted([*model, (priority, number)], key=lambda one: (-one[0], one[1]))
        if data.draw(st.booleans()):
            assert start_next(queue).request.id == str(model.pop(0)[1])
        assert ids(queue) == [str(number) for _, number in model]


@given(shares=shares, sizes=st.lists(costs, min_size=30, max_size=60))
def test_shares_that_always_wait_get_tokens_by_weight_in_every_window(
    shares: list[ClientShare], sizes: list[int]
) -> None:
    """The bound of start-time fair queueing: two of them are never further apart than a request of each."""
    queue = WaitingQueue()
    for share in shares:
        for number, tokens in enumerate(sizes):
            queue.join(waiting(f"{share.name}-{number}", share, tokens))
    counts = Counter({share.name: len(sizes) for share in shares})
    served = {share.name: [0.0] for share in shares}
    while all(counts.values()):
        one = start_next(queue)
        counts[one.request.share.name] -= 1
        for share in shares:
            mine = one.request.share is share
            served[share.name].append(one.length / share.weight if mine else 0.0)
    sums = {name: list(accumulate(found)) for name, found in served.items()}
    largest = max(sizes)
    for one in shares:
        for other in shares:
            apart = [mine - theirs for mine, theirs in zip(sums[one.name], sums[other.name], strict=True)]
            assert max(apart) - min(apart) <= largest / one.weight + largest / other.weight + 1e-6


@given(shares=shares, sizes=st.lists(st.tuples(st.integers(0, 3), costs, st.booleans()), max_size=40))
def test_nobody_is_left_out_and_each_share_keeps_its_order(
    shares: list[ClientShare], sizes: list[tuple[int, int, bool]]
) -> None:
    queue = WaitingQueue()
    inside: list[str] = []
    for number, (which, tokens, starts) in enumerate(sizes):
        share = shares[which % len(shares)]
        queue.join(waiting(f"{number:03}", share, tokens))
        inside.append(f"{number:03}")
        if starts:
            inside.remove(start_next(queue).request.id)
        found = list(queue)
        assert sorted(one.request.id for one in found) == inside
        assert len(queue) == len(inside) == len(queue.copy())
        for one in shares:
            own = [sequence.request.id for sequence in found if sequence.request.share is one]
            assert own == sorted(own)


@given(ahead=st.integers(0, 500), tokens=costs)
def test_no_stream_of_new_shares_keeps_one_waiting_for_ever(ahead: int, tokens: int) -> None:
    """It was served much, and every other that waits is a newcomer."""
    queue = WaitingQueue()
    heavy = ClientShare("heavy")
    queue.join(waiting("first", heavy, ahead + 1))
    start_next(queue)
    queue.join(waiting("again", heavy, 4))
    queue.join(waiting("new-0", ClientShare("new-0"), tokens))
    for number in range(2 * ahead // tokens + 3):
        if start_next(queue).request.id == "again":
            return
        queue.join(waiting(f"new-{number + 1}", ClientShare(f"new-{number + 1}"), tokens))
    raise AssertionError("it never had its turn")


def test_a_newcomer_waits_for_one_turn_of_a_client_with_hundreds_waiting() -> None:
    queue = WaitingQueue()
    for number in range(300):
        queue.join(waiting(f"many-{number}", ClientShare("many")))
    for _ in range(10):
        start_next(queue)
    queue.join(waiting("one", ClientShare("one")))
    assert "one" in ids(queue)[:2]


def test_a_departure_is_undone_with_its_charge() -> None:
    queue = WaitingQueue()
    for name, share in (
        ("a", ClientShare("x")),
        ("b", ClientShare("x")),
        ("c", ClientShare("y")),
        ("d", ClientShare("y")),
    ):
        queue.join(waiting(name, share))
    before = ids(queue)
    first, second = list(queue)[:2]
    left = [queue.step_out(first, 0), queue.overtake(list(queue)[1], 0)]
    assert ids(queue) != before
    for departure in reversed(left):
        queue.rejoin(departure)
        queue.rejoin(departure)  # after an interrupt
    assert ids(queue) == before
    assert [one.passed for one in queue] == [0] * 4
    assert second.account is not None
    assert second.account.served == 0


def test_accounts_of_clients_that_have_left_do_not_pile_up() -> None:
    queue = WaitingQueue()
    for number in range(5000):
        queue.join(waiting("one", ClientShare(str(number))))
        queue.left(start_next(queue))
    assert len(queue.turns.accounts) <= 1024


def test_a_newcomer_starts_when_the_next_slot_is_free_and_answers_share_their_prompt_all_the_same() -> None:
    """Ten requests with eight answers each wait; one of another client is not the last of them."""
    world = full(4096, max_batch=8, max_batch_tokens=64)
    for number in range(10):
        for index in range(8):
            world.submit(request(f"many-{number}", 12, 4, seed=index, share=ClientShare("many"), index=index))
    for _ in range(3):
        world.step()
    world.submit(request("one", 12, 4, share=ClientShare("one")))
    while not world.scheduler.idle:
        world.step()
    place = world.started.index(("one", 0))
    assert place <= 16, "the answers that ran, and those to a prompt that was being computed"
    reused = [one.reused for key, one in world.sequences.items() if key[1] > 0]
    assert min(reused) >= 8, "their prompts were computed once"
    world.check_end()


def test_long_answers_of_one_client_leave_half_of_the_tokens_to_another() -> None:
    """Turns by requests would give the one with long answers 25 times as much."""
    world = full(1 << 14, max_batch=4, max_batch_tokens=64)
    for number in range(20):
        world.submit(request(f"long-{number}", 4, 200, share=ClientShare("long")))
    for number in range(200):
        world.submit(request(f"short-{number}", 4, 8, share=ClientShare("short")))
    while any(one.finish is None for key, one in world.sequences.items() if key[0].startswith("short")):
        world.step()
    drawn = Counter[str]()
    for (name, _), one in world.sequences.items():
        drawn[name.split("-")[0]] += one.generated
    assert drawn["short"] == 200 * 8
    assert drawn["long"] <= drawn["short"] + 200 * 4 + 200 * 4, "the prompts, and what a full batch had begun"
