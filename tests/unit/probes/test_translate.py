"""Torch's out-of-memory errors as Brim's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brim.errors import DeviceError, OutOfMemory
from brim.probes.cpu import CpuProbe
from brim.probes.translate import out_of_memory, translated
from brim.units import GIB, KIB, MIB

torch = pytest.importorskip("torch")

CUDA = (
    "CUDA out of memory. Tried to allocate 1.95 GiB. GPU 0 has a total capacity of 14.57 GiB of which 1.58 GiB is free."
    " Process 2493055 has 12.02 GiB memory in use. Including non-PyTorch memory, this process has 966.00 MiB memory in "
    "use. Of the allocated memory 734.07 MiB is allocated by PyTorch, and 33.93 MiB is reserved by PyTorch but "
    "unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True "
    "to avoid fragmentation.  See documentation for Memory Management  "
    "(https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-alloc-conf)"
)
FRACTION = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of 139.80 GiB of which 100.00 GiB is "
    "free. 4.00 GiB allowed; Of the allocated memory 2.50 GiB is allocated by PyTorch, with 1.00 GiB allocated in "
    "private pools (e.g., CUDA Graphs), and 512.00 MiB is reserved by PyTorch but unallocated."
)
LIMITED = (  # torch 2.11 on an H200
    "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 139.80 GiB of which 124.01 GiB is "
    "free. Including non-PyTorch memory, this process has 15.79 GiB memory in use. 27.96 GiB allowed; Of the allocated "
    "memory 14.99 GiB is allocated by PyTorch, and 129.49 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation."
)
SMALL = (
    "CUDA out of memory. Tried to allocate 512 bytes. GPU 0 has a total capacity of 1.00 GiB of which 0 bytes is free."
)
IN_PIECES = (
    "CUDA out of memory. Tried to allocate 2.00 KiB. GPU 0 has a total capacity of 1.00 GiB of which 4.00 KiB is free."
)


@pytest.mark.parametrize(
    ("message", "missing", "words"),
    [
        (CUDA, round(1.95 * GIB) - round(1.58 * GIB), "1.95 GiB requested, 1.58 GiB free"),
        (FRACTION, GIB, "2.00 GiB requested, 1.00 GiB free"),
        (LIMITED, 7684185129, "20.00 GiB requested, 12.84 GiB free"),
        (SMALL, 512, "512 B requested, 0 B free"),
        (IN_PIECES, None, "2.0 KiB requested, 4.0 KiB free"),
        ("CUDA driver error: out of memory", None, "driver error"),
        ("", None, "no figures"),
    ],
)
def test_messages(message: str, missing: int | None, words: str) -> None:
    found = out_of_memory(message)
    assert found.missing_bytes == missing
    assert words in str(found)
    assert "\n" not in str(found)


def test_a_budget_s_refusal_is_exact() -> None:
    probe = CpuProbe(10 * KIB)
    with probe:
        kept = torch.empty(4 * KIB, dtype=torch.uint8)
        with pytest.raises(OutOfMemory) as caught, translated():
            torch.cat([kept, kept, kept])
    assert caught.value.missing_bytes == 6 * KIB
    assert isinstance(caught.value, DeviceError)


def test_tensors_on_the_way_die_with_the_frames() -> None:
    probe = CpuProbe(MIB)

    def deep() -> Any:
        hidden = torch.empty(MIB // 2, dtype=torch.uint8)
        return hidden, torch.empty(MIB, dtype=torch.uint8)

    with pytest.raises(OutOfMemory) as caught, translated(), probe:
        deep()
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)  # the error lives, and its tensors do not
    assert probe.reading().allocated_bytes == 0


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="shapes"), translated():
        raise RuntimeError("shapes")
    with pytest.raises(OutOfMemory), translated():
        raise RuntimeError("CUDA error: out of memory\nCompile with ...")


def warmed_up() -> None:
    """As vLLM raises it."""
    try:
        raise torch.OutOfMemoryError(CUDA)
    except RuntimeError as error:
        raise RuntimeError("warming up failed; lower max_num_seqs") from error


def captured() -> None:
    """As the end of a capture raises it."""
    try:
        raise torch.OutOfMemoryError(CUDA)
    finally:
        broken("the capture has failed")


def broken(words: str) -> None:
    raise RuntimeError(words)


@pytest.mark.parametrize("fails", [warmed_up, captured])
def test_an_error_that_was_raised_because_of_one_is_translated(fails: Callable[[], None]) -> None:
    with pytest.raises(OutOfMemory) as caught, translated():
        fails()
    assert caught.value.missing_bytes == out_of_memory(CUDA).missing_bytes


def test_another_error_while_one_is_handled_passes() -> None:
    try:
        with translated():
            raise torch.OutOfMemoryError(CUDA)
    except OutOfMemory:
        with pytest.raises(RuntimeError, match="no kernel image"), translated():
            broken("no kernel image")
