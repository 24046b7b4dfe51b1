"""Brim's scans in place of the references of `transformers`: which are replaced, for how long, and in which calls."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from importlib import import_module
from types import FunctionType, ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.recurrent.scans.delta_rule import chunk_rule, recurrent_rule  # noqa: E402
from brim.engine.recurrent.scans.mamba2 import chunk_scan, state_update  # noqa: E402
from brim.engine.recurrent.scans.stand_ins import StandIn, kernels_in, own_scans  # noqa: E402

SCANS = ["bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2"]
RULES = ["olmo_hybrid", "qwen3_5", "qwen3_5_moe", "qwen3_next"]
OTHERS = ["falcon_mamba", "jamba", "kimi_linear", "lfm2"]


def modeling(kind: str) -> dict[str, Any]:
    """The namespace of the code of a family."""
    return vars(import_module(f"transformers.models.{kind}.modeling_{kind}"))


def code_in(namespace: dict[str, Any]) -> FunctionType:
    """Any function of a namespace: the names in it are looked up there."""
    return next(one for one in namespace.values() if isinstance(one, FunctionType) and one.__globals__ is namespace)


def stand_ins(namespace: dict[str, Any]) -> dict[str, StandIn]:
    return {name: value for name, value in namespace.items() if isinstance(value, StandIn)}


def registered(kernel: str, package: str) -> dict[str, Any]:
    """A namespace as modeling code has it, with one function for a kernel of a package."""
    from transformers.integrations.hub_kernels import use_kernel_func_from_hub_with_fallback

    def scan(values: Any, **kwargs: Any) -> str:
        return "the reference"

    namespace: dict[str, Any] = {"scan": use_kernel_func_from_hub_with_fallback(kernel, package)(scan)}
    exec("def forward(*args, **kwargs): return scan(*args, **kwargs)", namespace)
    return namespace


@pytest.mark.parametrize("kind", SCANS + RULES + OTHERS)
def test_references_are_found_by_what_they_are(kind: str) -> None:
    namespace = modeling(kind)
    before = dict(namespace)
    with own_scans([code_in(namespace)]):
        found = {stand_in.own for stand_in in stand_ins(namespace).values()}
    expected = {chunk_scan, state_update} if kind in SCANS else {chunk_rule, recurrent_rule}
    assert found == (set() if kind in OTHERS else expected)
    assert dict(namespace) == before


@pytest.mark.parametrize("first", [0, 1])
def test_a_replacement_is_removed_with_its_last_user(first: int) -> None:
    namespace = modeling("nemotron_h")
    before, users = dict(namespace), [ExitStack(), ExitStack()]
    for user in users:
        user.enter_context(own_scans([code_in(namespace)]))
    there = stand_ins(namespace)
    assert [stand_in.users for stand_in in there.values()] == [2, 2]
    users[first].close()
    assert stand_ins(namespace) == there
    assert kernels_in(namespace) == kernels_in(before)
    users[1 - first].close()
    assert dict(namespace) == before


def test_a_replacement_that_was_replaced_itself_stays_so() -> None:
    namespace = registered("chunk_gated_delta_rule", "a_package_that_is_not_there")
    with own_scans([namespace["forward"]]):
        assert stand_ins(namespace)
        namespace["scan"] = "somebody else's"
    assert namespace["scan"] == "somebody else's"


def test_a_kernel_that_is_installed_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("ssm_of_a_test", "ops", "triton", "ssd_combined")
    paths = [".".join(names[: depth + 1]) for depth in range(len(names))]
    modules: list[Any] = [ModuleType(path) for path in paths]
    for path, module in zip(paths, modules, strict=True):
        monkeypatch.setitem(sys.modules, path, module)
    for parent, name, module in zip(modules, names[1:], modules[1:], strict=False):
        setattr(parent, name, module)
    modules[-1].mamba_chunk_scan_combined = lambda values: "the kernel"
    namespace = registered("mamba_chunk_scan_combined", names[0])
    with own_scans([namespace["forward"]]):
        assert not stand_ins(namespace)
        assert namespace["forward"](1) == "the kernel"
    assert kernels_in(namespace) == {"mamba_chunk_scan_combined"}


def test_calls_with_gradients_or_packed_rows_get_the_original() -> None:
    namespace = registered("mamba_chunk_scan_combined", "a_package_that_is_not_there")
    row = torch.zeros(1, 3, 1, 1)
    arguments = {"dt": row[..., 0], "A": torch.zeros(1), "B": row, "C": row, "chunk_size": 2}
    with own_scans([namespace["forward"]]):
        assert namespace["forward"](row, **arguments) == "the reference"
        with torch.no_grad():
            assert namespace["forward"](row, **arguments, position_ids=1, seq_idx=None).shape == row.shape
    stand_in = StandIn(lambda values, seq_idx: "the original", chunk_scan)
    with torch.no_grad():
        assert stand_in(row, seq_idx=torch.zeros(1)) == "the original"


def test_a_function_that_kernels_made_a_module_of_is_found() -> None:
    """The package `kernels` wraps what is registered, and gives the wrapper another `forward` with a kernel."""
    namespace = registered("chunk_gated_delta_rule", "a_package_that_is_not_there")

    def wrapper(func: Any) -> Any:
        class Func(torch.nn.Module):
            def forward(self, *args: Any, **kwargs: Any) -> Any:
                return func(*args, **kwargs)

        return Func()

    namespace["scan"] = wrapper(namespace["scan"])
    with own_scans([namespace["forward"]]):
        assert stand_ins(namespace)
    namespace["scan"].forward = lambda *args, **kwargs: "a kernel"
    with own_scans([namespace["forward"]]):
        assert not stand_ins(namespace)
