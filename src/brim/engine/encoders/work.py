"""The life of an encoder's process: promise memory, load the tower, run its worst batch, hold that, serve batches.

One batch is in flight, and none is larger than what was run. What the worst batch took stays in the allocator, and the
process is kept to it. Where a reserve was given and is too small, the limit of images is lowered until the worst batch
fits. The process ends when its engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from brim.engine.device.segments import let_segments_grow
from brim.engine.encoders.areas import Area, needed_bytes, read_tensors, type_name
from brim.engine.encoders.batches import elements, kind_of
from brim.engine.encoders.cuda_ipc import SharedBuffer
from brim.engine.encoders.records import MOST_PARTS, EncoderSource, TowerFacts
from brim.engine.encoders.tower import Tower, largest_part, worst_batches
from brim.engine.encoders.wire import Message, Wire, WireClosed
from brim.engine.media.limits import ImageLimits, limits_of
from brim.engine.media.parts import MediaPart
from brim.engine.weights.load import load, max_positions, read_model
from brim.engine.weights.parts import ModelPart
from brim.errors import BrimError, DeviceError, DoesNotFit, InvalidRequest, OutOfMemory, first_line
from brim.probes.cpu import CpuProbe
from brim.probes.cuda import CudaProbe
from brim.probes.translate import translated
from brim.units import GIB, MIB, format_bytes

_CUDA_BYTES = 1 * GIB  # promised for a context, kernels and workspaces, until they have been measured
_PROMISED = 1.05  # of what the trace says
_LARGER_PROMISE = 2
_SMALLER_IMAGE = 0.8  # of the patches of the last attempt
_ROUNDING_BYTES = 20 * MIB  # a segment of torch's allocator grows by so much
_UNLIMITED = 1 << 60

Predict = Callable[[EncoderSource, Any, ImageLimits, MediaPart], int | None]  # bytes of the worst batch, from a trace


class Reservation(Protocol):
    """What neighbours on the device are told."""

    def promise(self, promised_bytes: int) -> None:
        """No more than this will be taken. `DoesNotFit` where the neighbours leave less."""
        ...

    def hold(self, held_bytes: int) -> None:
        """So much has been taken, and stays."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Stressed:
    """A worst batch that was run, and what it made."""

    limits: ImageLimits
    largest: MediaPart
    levels: int
    width: int
    dtype: torch.dtype
    peak_bytes: int


class EncoderWork:
    """One process' work."""

    def __init__(
        self,
        source: EncoderSource,
        wire: Wire,
        areas: tuple[Area, Area],
        reservation: Reservation,
        predict: Predict,
    ) -> None:
        self._source = source
        self._wire = wire
        self._inputs, self._outputs = areas
        self._reservation = reservation
        self._predict = predict
        self._device = torch.device(source.device)
        self._promised_bytes = 0
        self._probe: CpuProbe | CudaProbe | None = None
        self._shared: SharedBuffer | None = None
        self._warnings: list[str] = []
        self._lowered = ""  # what was done to keep to a reserve

    def run(self) -> int:
        """Serve until the engine has gone; the exit code."""
        try:
            facts = self._start()
        except BrimError as error:
            memory = isinstance(error, OutOfMemory | DoesNotFit)
            self._wire.send({"op": "cannot", "why": str(error), "memory": memory})
            return 1
        handle = None if self._shared is None else self._shared.handle.hex()
        self._wire.send({"op": "ready", "facts": facts.to_json(), "handle": handle})
        try:
            while True:
                self._answer(self._wire.receive())
        except WireClosed:
            return 0

    # -- start ---------------------------------------------------------------------------------------------------

    def _start(self) -> TowerFacts:
        source = self._source
        folder, config = read_model(source.model, source.load_format)
        limits, largest = self._limited(config, folder, None)
        predicted = self._predicted(config, limits, largest)
        self._promise(predicted)
        if self._device.type == "cuda":
            let_segments_grow()
        self._probe = CudaProbe(self._device.index or 0) if self._device.type == "cuda" else CpuProbe(self._limit())
        with translated():
            self._tower = self._loaded()
            self._keep_to(self._limit())
            stressed = self._fitted(config, folder)
        if not self._source.holds:
            self._forget()
        facts = self._facts(stressed, predicted)
        self._reservation.hold(facts.held_bytes)
        self._keep_to(facts.held_bytes)
        return facts

    def _limited(self, config: Any, folder: Path | None, patches: int | None) -> tuple[ImageLimits, MediaPart]:
        """Limits of images, lowered to so many patches in a call; and the largest image within them."""
        source = self._source
        max_length = source.max_length or max_positions(config.get_text_config(decoder=True))
        limits = limits_of(config, folder, source.max_image_pixels, max_length)
        if patches is not None:
            limits = limits.lowered(patches)
        largest = largest_part(config, limits, max_length, source.max_batch_tokens)
        if largest is None:
            raise InvalidRequest(
                "encoder: every image is refused by the limits that were given; raise image-pixels or encoder-reserve"
            )
        return limits, largest

    def _predicted(self, config: Any, limits: ImageLimits, largest: MediaPart) -> int | None:
        if self._source.lease is None:
            return None  # nobody wants to know before it has run
        found = self._predict(self._source, config, limits, largest)
        if found is None and self._source.reserve_bytes is None:
            raise InvalidRequest(
                f"encoder: the tower of '{config.model_type}' cannot be traced, so that nothing is known of its memory "
                "before it runs; give --encoder-reserve, such as 6GiB"
            )
        if found is None:
            self._warnings.append(
                f"the tower of '{config.model_type}' cannot be traced: its reserve of "
                f"{format_bytes(self._source.reserve_bytes or 0)} was promised as it was given"
            )
        return found

    def _promise(self, predicted: int | None) -> None:
        extra = _CUDA_BYTES if self._device.type == "cuda" else 0
        self._promised_bytes = self._source.reserve_bytes or int((predicted or 0) * _PROMISED) + extra
        self._reservation.promise(self._promised_bytes)

    def _limit(self) -> int:
        return self._promised_bytes if self._source.lease or self._source.reserve_bytes else _UNLIMITED

    def _loaded(self) -> Tower:
        source = self._source
        with _counted(self._probe):
            loaded = load(
                source.model,
                load_format=source.load_format,
                dtype=source.dtype,
                device=source.device,
                attention="sdpa",
                seed=source.seed,
                part=ModelPart.TOWERS,
            )
        if isinstance(self._probe, CpuProbe):
            self._probe.hold([*loaded.model.parameters(), *loaded.model.buffers()])
        self._weight_bytes = loaded.weight_bytes
        return Tower(loaded.model, self._device)

    def _fitted(self, config: Any, folder: Path | None) -> _Stressed:
        """The worst batch, run: with a larger promise where that was too small, or with smaller images."""
        patches: int | None = None
        while True:
            limits, largest = self._limited(config, folder, patches)
            try:
                return self._stressed(config, limits, largest)
            except torch.OutOfMemoryError as error:
                self._forget()
                if self._source.reserve_bytes is None:
                    self._promise_more(error)
                else:
                    patches = int(largest.tokens * limits.merge * _SMALLER_IMAGE)
                    self._lowered = (
                        f"encoder-reserve {format_bytes(self._source.reserve_bytes)} holds images of at most "
                        f"{patches * limits.pixels_per_patch:,} pixels"
                    )

    def _promise_more(self, error: torch.OutOfMemoryError) -> None:
        """Neighbours are asked before more is taken."""
        if self._source.lease is None:
            raise error  # the device itself is full
        self._promised_bytes *= _LARGER_PROMISE
        self._reservation.promise(self._promised_bytes)
        self._keep_to(self._limit())

    def _forget(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _stressed(self, config: Any, limits: ImageLimits, largest: MediaPart) -> _Stressed:
        assert self._probe is not None
        before = self._probe.reading().allocated_bytes
        self._probe.reset_peak()
        for batch in worst_batches(config, limits, largest, self._source.batch) * 2:
            with _counted(self._probe):
                rows, levels = self._tower.rows([part.inputs for part in batch])
            found = levels, rows.shape[1], rows.dtype
            del rows
        peak = self._probe.reading().peak_allocated_bytes - before
        return _Stressed(limits, largest, *found, peak)

    def _facts(self, stressed: _Stressed, predicted: int | None) -> TowerFacts:
        batch, largest = self._source.batch, stressed.largest
        rows = largest.tokens * batch
        size = rows * stressed.width * stressed.dtype.itemsize
        input_bytes = needed_bytes(largest.inputs) * batch + MOST_PARTS * 1024  # small ones are aligned too
        self._inputs.resize(input_bytes)
        self._outputs.resize(size)
        if self._device.type == "cuda":
            try:
                self._shared = SharedBuffer.make(size, self._device)
            except DeviceError as error:
                self._warnings.append(f"features pass through the host: {error}")
        return TowerFacts(
            budgets={kind_of(largest.inputs): elements(largest.inputs) * batch},
            call_patches=stressed.limits.call_patches,
            rows=rows,
            width=stressed.width,
            levels=stressed.levels,
            dtype=type_name(stressed.dtype),
            input_bytes=input_bytes,
            weight_bytes=self._weight_bytes,
            predicted_bytes=predicted,
            promised_bytes=self._promised_bytes,
            held_bytes=self._held_bytes(size),
            peak_bytes=stressed.peak_bytes,
            warnings=(*self._warnings, *((self._lowered,) if self._lowered else ())),
        )

    def _held_bytes(self, output_bytes: int) -> int:
        """The high-water mark, the context of the process included where that can be known."""
        assert self._probe is not None
        reading = self._probe.reading()
        if isinstance(self._probe, CpuProbe):
            return reading.peak_reserved_bytes
        if reading.process_bytes is not None:
            return reading.process_bytes
        return reading.reserved_bytes + output_bytes + _CUDA_BYTES

    def _keep_to(self, limit_bytes: int) -> None:
        """From here on, what is beyond this is refused to this process itself; context and kernels are part of it."""
        if self._limit() == _UNLIMITED or self._probe is None:
            return
        if isinstance(self._probe, CpuProbe):
            self._probe.budget_bytes = limit_bytes
            return
        reading = self._probe.reading()
        outside = _CUDA_BYTES if reading.process_bytes is None else reading.process_bytes - reading.reserved_bytes
        allowed = max(limit_bytes - outside, reading.reserved_bytes) + _ROUNDING_BYTES
        torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / reading.total_bytes), self._device)

    # -- batches -------------------------------------------------------------------------------------------------

    def _answer(self, message: Message) -> None:
        number = message.get("batch")
        try:
            with _counted(self._probe):
                self._encode(message)
        except (RuntimeError, ValueError, TypeError, KeyError, IndexError) as error:  # torch's own, out of memory too
            self._wire.send({"op": "failed", "batch": number, "why": first_line(error)})
        else:
            self._wire.send({"op": "done", "batch": number})

    def _encode(self, message: Mapping[str, Any]) -> None:
        """The features of a batch, where the engine looks for them."""
        parts = [read_tensors(self._inputs, one) for one in message["parts"]]
        rows, _ = self._tower.rows(parts)
        if rows.shape[0] != message["rows"]:
            raise ValueError(f"the tower made {rows.shape[0]} features where {message['rows']} were counted")
        on_device = self._shared is not None and message["on_device"]
        memory = self._shared.bytes if on_device and self._shared is not None else self._outputs.bytes
        memory[: rows.nbytes].view(rows.dtype).view(rows.shape).copy_(rows)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _counted(probe: CpuProbe | CudaProbe | None) -> AbstractContextManager[object]:
    """A budget on the CPU counts what is allocated while it is entered."""
    return probe if isinstance(probe, CpuProbe) else nullcontext()
