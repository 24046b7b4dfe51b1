"""One encoder, as its engine sees it: a child process, a connection, and the memory that both see."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Any

import torch

from brim.engine.encoders.areas import Area, type_of, write_tensors
from brim.engine.encoders.cuda_ipc import SharedBuffer
from brim.engine.encoders.records import EncoderSource, TowerFacts
from brim.engine.encoders.wire import Message, Wire, WireClosed
from brim.engine.media.parts import MediaPart
from brim.errors import DeviceError

MODULE = "brim.encoding"  # what the child runs: an encoder that takes part in leases
_LEAVE_SECONDS = 5.0


class EncoderProcess:
    """A child that encodes one batch at a time."""

    def __init__(self, source: EncoderSource, module: str = MODULE) -> None:
        self.source = source
        self.facts: TowerFacts | None = None  # None: it is not ready
        self.busy = False
        self._shared: SharedBuffer | None = None
        self._pinned = False
        self._sender = ThreadPoolExecutor(1, thread_name_prefix="brim-encoder")
        with ExitStack() as undo:  # where no process can be started, no descriptor is left
            self._inputs, self._outputs = _area(undo), _area(undo)
            ours, theirs = socket.socketpair()
            self.wire = Wire(ours)
            undo.callback(self.wire.close)
            with theirs:
                descriptors = (theirs.fileno(), self._inputs.descriptor, self._outputs.descriptor)
                self._child = subprocess.Popen(
                    [sys.executable, "-m", module, *map(str, descriptors)],
                    pass_fds=descriptors,
                    stdin=subprocess.DEVNULL,
                )
            undo.pop_all()
        with suppress(WireClosed):  # it has died: the next look finds that
            self.wire.send(source.to_json())

    @property
    def pid(self) -> int:
        return self._child.pid

    def arrived(self) -> list[Message]:
        """Messages since the last look; raises `WireClosed` where the child has gone."""
        return list(self.wire.arrived())

    def became_ready(self, message: Message) -> None:
        """It has run its worst batch."""
        self.facts = TowerFacts.from_json(message["facts"])
        if message["handle"] is not None:
            with suppress(DeviceError):  # then features pass through the host
                self._shared = SharedBuffer.open(
                    bytes.fromhex(message["handle"]), self._output_bytes, torch.device(self.source.device)
                )
        if self._shared is None and torch.device(self.source.device).type == "cuda":
            self._pin()

    def _pin(self) -> None:
        """Copies from pinned memory to the device do not wait; without, they do."""
        memory = self._outputs.bytes
        runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._pinned = int(runtime.cudaHostRegister(memory.data_ptr(), memory.numel(), 0)) == 0

    @property
    def on_device(self) -> bool:
        """Features come back in memory of the GPU."""
        return self._shared is not None

    @property
    def _output_bytes(self) -> int:
        assert self.facts is not None
        return self.facts.rows * self.facts.width * type_of(self.facts.dtype).itemsize

    def encode(self, number: int, parts: Sequence[MediaPart]) -> None:
        """Send a batch. Its answer is a message, and `rows` are its features from then until the next batch.

        Pixels are copied in a thread: those of a large image take as long as several steps of text.
        """
        self.busy = True
        self._sender.submit(self._send, number, parts)

    def _send(self, number: int, parts: Sequence[MediaPart]) -> None:
        described: list[list[dict[str, Any]]] = []
        start = 0
        for part in parts:
            where, start = write_tensors(self._inputs, part.inputs, start)
            described.append(where)
        rows = sum(part.tokens for part in parts)
        message = {"op": "encode", "batch": number, "parts": described, "rows": rows, "on_device": self.on_device}
        with suppress(WireClosed):  # it has died: the next look finds that
            self.wire.send(message)

    def rows(self, count: int) -> torch.Tensor:
        """The features of the batch that was answered last, as they lie in shared memory."""
        assert self.facts is not None
        kind = type_of(self.facts.dtype)
        memory = self._outputs.bytes if self._shared is None else self._shared.bytes
        return memory[: count * self.facts.width * kind.itemsize].view(kind).view(count, self.facts.width)

    def end(self) -> None:
        """The child is gone afterwards: it leaves by itself when the connection is closed, or is killed."""
        self._sender.shutdown(cancel_futures=True)
        self.wire.close()
        try:
            self._child.wait(0 if self.busy or self.facts is None else _LEAVE_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            with suppress(subprocess.TimeoutExpired):  # one that hangs in a driver must not hold up its engine
                self._child.wait(_LEAVE_SECONDS)
        if self._shared is not None:
            with suppress(DeviceError):  # its owner has gone
                self._shared.close()
            self._shared = None
        if self._pinned:
            torch.cuda.synchronize()  # copies from it may be under way
            runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            runtime.cudaHostUnregister(self._outputs.bytes.data_ptr())
        self._inputs.close()
        self._outputs.close()


def _area(undo: ExitStack) -> Area:
    made = Area.make()
    undo.callback(made.close)
    return made
