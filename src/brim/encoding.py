"""The process of an encoder: connects the work of a tower, its lease, and what a trace predicts of it.

An engine starts it (`brim.engine.encoders.process`) with three descriptors: a connection, and two pieces of shared
memory. It takes no part in the terminal's signals: it ends when its engine does.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from brim.engine.encoders.areas import Area
from brim.engine.encoders.batches import joined
from brim.engine.encoders.lifeline import end_with_engine
from brim.engine.encoders.records import EncoderSource
from brim.engine.encoders.wire import Wire, WireClosed
from brim.engine.encoders.work import EncoderWork
from brim.engine.media.parts import MediaKind, MediaPart
from brim.engine.weights.load import type_of_weights
from brim.engine.weights.parts import tower_names
from brim.errors import CannotTrace, InputError
from brim.predictions import traced_tower
from brim.reserve.devices import find_leased
from brim.reserve.hold import OwnLease, take
from brim.reserve.processes import identify


class LeasedMemory:
    """A promise to the neighbours on the device, in the ledger of leases."""

    def __init__(self, device: str, role: str) -> None:
        self._device = find_leased(device)
        self._role = role
        self._lease: OwnLease | None = None

    def promise(self, promised_bytes: int) -> None:
        if self._lease is None:
            engine = identify(os.getppid())  # it starts another one when this dies
            self._lease = take(self._device, promised_bytes, self._role, starting=True, keeper=engine)
        else:
            self._lease.promise(promised_bytes)

    def hold(self, held_bytes: int) -> None:
        assert self._lease is not None, "memory is promised before it is held"
        self._lease.hold(held_bytes)

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()


class Unshared:
    """Nobody sizes itself on the device."""

    def promise(self, promised_bytes: int) -> None:
        pass

    def hold(self, held_bytes: int) -> None:
        pass

    def release(self) -> None:
        pass


def predicted_bytes(source: EncoderSource, config: Any, largest: Sequence[MediaPart]) -> int | None:
    """Weights of the towers and their worst batch, from traces; None where one of them cannot be traced."""
    try:
        return _predicted_bytes(source, config, largest)
    except (CannotTrace, InputError):
        return None


def _predicted_bytes(source: EncoderSource, config: Any, largest: Sequence[MediaPart]) -> int:
    from brim.trace.build import build_model

    dtype = _dtype(source.dtype, config)
    model, _ = build_model(config.to_dict(), dtype)
    towers = [getattr(model.base_model, name) for name in tower_names(model)]
    tensors = [tensor for tower in towers for tensor in (*tower.parameters(), *tower.buffers())]
    calls = [_traced_batch(source, config, part, dtype) for part in largest]
    return int(sum(tensor.nbytes for tensor in tensors)) + max(calls)


def _traced_batch(source: EncoderSource, config: Any, part: MediaPart, dtype: str) -> int:
    """So many of the largest images, or the longest audio by itself."""
    count = 1 if part.kind is MediaKind.AUDIO else source.batch
    inputs = joined([part.inputs] * count)
    return traced_tower(config, inputs, part.tokens * count, dtype=dtype, on_device=source.device != "cpu")


def _dtype(asked: str, config: Any) -> str:
    """The type that a trace takes by name."""
    stored = str(type_of_weights(asked, config)).removeprefix("torch.")
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(stored, "bf16")


def main(arguments: list[str]) -> int:
    """Serve one engine to its end; the exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    connection, inputs, outputs = map(int, arguments)
    end_with_engine(connection)
    wire = Wire(socket.socket(fileno=connection))
    try:
        source = EncoderSource.from_json(wire.receive())
    except WireClosed:
        return 0
    memory = Unshared() if source.lease is None else LeasedMemory(source.lease, source.role)
    try:
        return EncoderWork(source, wire, (Area(inputs), Area(outputs)), memory, predicted_bytes).run()
    finally:
        memory.release()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
