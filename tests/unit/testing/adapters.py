"""The adapter and the load of docs/authors.md, for deliberately broken ones to inherit from."""

from __future__ import annotations

from functools import cache
from typing import Any

from brim.testing import FakeDevice, FakeEngine, check_rescuable, check_sizable
from tests.authors_page import page_blocks, run_page


@cache
def page_names() -> dict[str, Any]:
    names = run_page(1)
    third = page_blocks()[2]
    exec(third[: third.index("\n\ndevice =")], names)  # the load, without the checks that the page runs
    return names


Adapter: Any = page_names()["Adapter"]
Load: Any = page_names()["Load"]


def made(kind: Any, **settings: Any) -> Any:
    return kind(FakeEngine(FakeDevice(1 << 20), **settings))


def check_size_of(adapter: Any) -> None:
    check_sizable(adapter, adapter.engine.device, price=adapter.price, small_tokens=64, large_tokens=512)


def check_rescue_of(adapter: Any, load: Any = Load, audited: bool = True) -> None:
    adapter.build(128)
    device = adapter.engine.device
    check_rescuable(load(adapter), device, step_tokens=32, audited=adapter if audited else None)
