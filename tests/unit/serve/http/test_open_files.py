"""A connection is an open file: the bound on one is kept within that on the other."""

from __future__ import annotations

import resource

import pytest

from brim.serve.http.connections.open_files import connections_allowed


@pytest.mark.parametrize(
    ("limits", "wanted", "allowed", "raised"),
    [
        ((4096, 4096), 1024, 1024, None),
        ((1024, 4096), 1024, 1024, (1280, 4096)),
        ((1024, 1100), 1024, 844, (1100, 1100)),
        ((100, 100), 1024, 1, None),
        ((1024, resource.RLIM_INFINITY), 2000, 2000, (2256, resource.RLIM_INFINITY)),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 10**6, 10**6, None),
    ],
)
def test_the_limit_is_raised_or_there_are_fewer_connections(
    limits: tuple[int, int],
    wanted: int,
    allowed: int,
    raised: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    became = []
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, found: became.append(found))
    assert connections_allowed(wanted) == allowed
    assert became == ([] if raised is None else [raised])
