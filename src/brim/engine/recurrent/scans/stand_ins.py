"""Brim's scans in place of the slow reference code of `transformers`, while a model uses them.

Modeling code calls functions that `transformers` registers under the name of a kernel (`mamba_chunk_scan_combined`,
...). If the package with the kernel is installed, they are that kernel and stay; if not, they are a slow reference in
torch, and Brim's function replaces it in the module's namespace. The functions are identified by their registration, so
no model is known by name here.

A namespace is shared by all models of a class, so a replacement counts its users and is removed with the last one. For
calls that need gradients, or pass packed sequences by their lengths, it calls the original function.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FunctionType
from typing import Any

import torch

from brim.engine.recurrent.scans import delta_rule, mamba2

# Functions by the names of their kernels. The kernel for many tokens identifies the kind: Mamba-1 updates a state too.
OWN: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "mamba_chunk_scan_combined": {
        "mamba_chunk_scan_combined": mamba2.chunk_scan,
        "selective_state_update": mamba2.state_update,
    },
    "chunk_gated_delta_rule": {
        "chunk_gated_delta_rule": delta_rule.chunk_rule,
        "fused_recurrent_gated_delta_rule": delta_rule.recurrent_rule,
    },
}
_REGISTERED = ("func_name", "torch_function", "implementation")  # what a registered function closes over
_PACKED = ("seq_idx", "cu_seqlens")  # arguments that say where sequences begin in a row
_LOCK = threading.RLock()  # models are dropped in any thread, and in the middle of anything


class StandIn:
    """One of Brim's functions in a namespace, replacing the function that was found there."""

    def __init__(self, original: Callable[..., Any], own: Callable[..., Any]) -> None:
        self.original = original
        self.own = own
        self.users = 0
        self._takes = frozenset(inspect.signature(own).parameters)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() or any(kwargs.get(name) is not None for name in _PACKED):
            return self.original(*args, **kwargs)
        return self.own(*args, **{name: value for name, value in kwargs.items() if name in self._takes})


@contextmanager
def own_scans(functions: Iterable[FunctionType]) -> Iterator[None]:
    """Have these functions of modeling code call Brim's functions instead of the references of `transformers`."""
    namespaces = {id(function.__globals__): function.__globals__ for function in functions}
    places = [(namespace, name, own) for namespace in namespaces.values() for name, own in _replaceable(namespace)]
    with _LOCK:
        used = [(namespace, name, _stand_in(namespace, name, own)) for namespace, name, own in places]
    try:
        yield
    finally:
        with _LOCK:
            for namespace, name, stand_in in used:
                stand_in.users -= 1
                if not stand_in.users and namespace.get(name) is stand_in:
                    namespace[name] = stand_in.original


def kernels_in(namespace: Mapping[str, Any]) -> frozenset[str]:
    """The names of the kernels that functions of a namespace are registered for, whichever implementation runs."""
    return frozenset(found["func_name"] for found in map(_registration, namespace.values()) if found)


def _stand_in(namespace: dict[str, Any], name: str, own: Callable[..., Any]) -> StandIn:
    """The replacement at a place, installed if it is not there, with one more user."""
    if not isinstance(namespace[name], StandIn):
        namespace[name] = StandIn(namespace[name], own)
    stand_in: StandIn = namespace[name]
    stand_in.users += 1
    return stand_in


def _replaceable(namespace: Mapping[str, Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The names under which a namespace has a reference that Brim can replace, and the replacement."""
    own = {kernel: form for kind in kernels_in(namespace) & OWN.keys() for kernel, form in OWN[kind].items()}
    for name, value in namespace.items():
        found = _registration(value)
        if found and found["func_name"] in own and found["implementation"] is found["torch_function"]:
            yield name, own[found["func_name"]]


def _registration(value: Any) -> dict[str, Any] | None:
    """The registration of a function for a kernel: its name, its reference, its implementation."""
    if isinstance(value, StandIn):
        value = value.original
    if isinstance(value, torch.nn.Module):  # the package `kernels` makes a module of it, which it may give a kernel
        value = _closure(getattr(value.forward, "__func__", None)).get("func")
    closure = _closure(value)
    return closure if all(name in closure for name in _REGISTERED) else None


def _closure(value: Any) -> dict[str, Any]:
    if not isinstance(value, FunctionType) or value.__closure__ is None:
        return {}
    try:
        return dict(zip(value.__code__.co_freevars, (cell.cell_contents for cell in value.__closure__), strict=True))
    except ValueError:  # a cell that nothing was ever put into
        return {}
