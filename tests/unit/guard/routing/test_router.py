"""A router between decisions: what it has sent counts at once, and a replica that is new counts as idle."""

from __future__ import annotations

from brim.guard.routing.router import MemoryRouter
from brim.records.routing import Route, RouteRequest
from tests.unit.guard.routing.test_policy import ASKED, CONVERSATION, busy, idle, summary


def best(router: MemoryRouter) -> str:
    found = router.route(ASKED)
    assert isinstance(found, Route)
    return found.replicas[0]


def test_a_replica_that_has_not_reported_counts_as_an_idle_one_of_its_kind() -> None:
    router = MemoryRouter()
    router.assume_idle("new", 0.0)
    assert not router.knows("new")  # of what kind it is nobody knows yet
    router.reported("old", busy(30.0, number=7, summary=summary(*CONVERSATION)), 0.0)
    router.assume_idle("new", 0.0)
    assert best(router) == "new"
    router.reported("new", busy(60.0), 1.0)  # its own word
    router.assume_idle("new", 2.0)
    assert best(router) == "old"


def test_what_was_sent_counts_before_any_report() -> None:
    router, other = MemoryRouter(), RouteRequest(tokens=40, blocks=3)
    for name in ("one", "two"):
        router.reported(name, idle(), 0.0)
    went = []
    for number in range(6):
        found = router.route(other)
        assert isinstance(found, Route)
        went.append(found.replicas[0])
        router.sent(other, went[-1], 0.0, f"{number}")
    assert sorted(went) == ["one"] * 3 + ["two"] * 3
