"""Of those that come at the same moment one is first; the others come after it, side by side."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

pytest.importorskip("ray.serve")

from brim.ray.first_fit import first_or_after


def test_one_is_first_and_the_others_come_after_it(tmp_path: Path) -> None:
    path, found, begun = tmp_path / "folder" / "lock", [], threading.Event()

    def first() -> None:
        with first_or_after(path) as is_first:
            begun.set()
            time.sleep(0.3)
            found.append((is_first, time.monotonic()))

    def other() -> None:
        begun.wait()
        with first_or_after(path) as is_first:
            came = time.monotonic()
            time.sleep(0.3)
            found.append((is_first, came))

    threads = [threading.Thread(target=first), *(threading.Thread(target=other) for _ in range(3))]
    began = time.monotonic()
    for one in threads:
        one.start()
    for one in threads:
        one.join(10)
    assert [is_first for is_first, _ in found] == [True, False, False, False]
    ended = found[0][1]
    assert all(came >= ended for _, came in found[1:])
    assert time.monotonic() - began < 0.3 * 3  # side by side


def test_it_is_free_again(tmp_path: Path) -> None:
    for _ in range(2):
        with first_or_after(tmp_path / "lock") as is_first:
            assert is_first
