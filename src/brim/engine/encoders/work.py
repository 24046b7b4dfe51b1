"""The life of an encoder's process: promise memory, load the tower, run its worst batch, hold that, serve batches.

One batch is in flight, and none is larger than what was run. What the worst batch took stays in the allocator, and the
process is kept to it. A process that takes the place of one that died holds what that was proven to need, at once.
Where a reserve was given and is too small, the limits of images and audio are lowered until the worst batch fits. The
process ends when its engine does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch

from brim.engine.device.segments import let_segments_grow
from brim.engine.encoders.areas import Area, needed_bytes, read_tensors, type_name, type_of
from brim.engine.encoders.batches import elements, kind_of
from brim.engine.encoders.cuda_ipc import SharedBuffer
from brim.engine.encoders.records import MOST_PARTS, EncoderSource, TowerFacts
from brim.engine.encoders.tower import Tower, allowed_media, largest_part, made_smaller, towers_of, worst_batches
from brim.engine.encoders.wire import Message, Wire, WireClosed
from brim.engine.media.allowed import AllowedMedia
from brim.engine.media.families import feature_levels
from brim.engine.media.parts import MediaKind, MediaPart
from brim.engine.weights.load import load, read_model, type_of_weights
from brim.engine.weights.parts import ModelPart
from brim.errors import BrimError, DeviceError, DoesNotFit, InvalidRequest, OutOfMemory, first_line
from brim.probes.cpu import CpuProbe
from brim.probes.cuda import CudaProbe
from brim.probes.translate import translated
from brim.records.fit import CUDA_SEGMENT_BYTES
from brim.units import GIB, format_bytes

_CUDA_BYTES = 1 * GIB  # promised for a context, kernels and workspaces, until they have been measured
_PROMISED = 1.05  # of what the trace says
_LARGER_PROMISE = 2
_SMALLER = 0.8  # of the patches or frames of the last attempt
_UNLIMITED = 1 << 60

# bytes of towers and worst batch, from a trace: of the largest media within limits
Predict = Callable[[EncoderSource, Any, Sequence[MediaPart]], int | None]


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
    """The worst batches of one kind of media, run; and what they made."""

    allowed: AllowedMedia
    largest: MediaPart
    batch: int  # so many of the largest
    levels: int
    width: int
    dtype: torch.dtype
    peak_bytes: int
    peak_reserved_bytes: int

    @property
    def rows(self) -> int:
        return self.largest.tokens * self.batch


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
        self._device = _numbered(torch.device(source.device))
        self._promised_bytes = 0
        self._probe: CpuProbe | CudaProbe | None = None
        self._shared: SharedBuffer | None = None
        self._warnings: list[str] = []
        self._lowered: dict[MediaKind, str] = {}  # what was done to keep to a reserve
        self._width = 0

    def run(self) -> int:
        """Serve until the engine has gone; the exit code."""
        try:
            return self._served()
        except WireClosed:
            return 0

    def _served(self) -> int:
        """Batches, one after the other; the exit code where it cannot start. Ends with `WireClosed`."""
        try:
            facts = self._start()
        except BrimError as error:
            memory = isinstance(error, OutOfMemory | DoesNotFit)
            self._wire.send({"op": "cannot", "why": str(error), "memory": memory})
            return 1
        handle = None if self._shared is None else self._shared.handle.hex()
        self._wire.send({"op": "ready", "facts": facts.to_json(), "handle": handle})
        while True:
            self._answer(self._wire.receive())

    # -- start ---------------------------------------------------------------------------------------------------

    def _start(self) -> TowerFacts:
        source = self._source
        folder, config = read_model(source.model, source.load_format)
        allowed = allowed_media(source, config, folder)
        if source.proven is not None:
            return self._start_again(source.proven, config, allowed)
        largest = self._largest(config, allowed)
        predicted = self._predicted(config, largest)
        self._promise(predicted, self._features_bytes(config, largest))
        with translated():
            self._load()
            stressed = [self._fitted(config, allowed, part.kind) for part in largest]
        if not self._source.holds:
            self._forget()
        facts = self._facts(stressed, predicted)
        self._reservation.hold(facts.held_bytes)
        self._keep_to(facts.held_bytes)
        return facts

    def _largest(self, config: Any, allowed: AllowedMedia) -> tuple[MediaPart, ...]:
        """The largest of each kind that is allowed."""
        found = [largest_part(kind, self._source, config, allowed) for kind in towers_of(config)]
        if not any(found):
            raise _all_refused("image" if allowed.audios is None else "audio" if allowed.images is None else "medium")
        return tuple(part for part in found if part is not None)

    def _predicted(self, config: Any, largest: Sequence[MediaPart]) -> int | None:
        if self._source.lease is None:
            return None  # nobody wants to know before it has run
        found = self._predict(self._source, config, largest)
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

    def _features_bytes(self, config: Any, largest: Sequence[MediaPart]) -> int:
        """The buffer in which features of the worst batch come back: on a GPU memory of its own."""
        width = config.get_text_config(decoder=True).hidden_size * feature_levels(config)
        row_bytes = int(width * type_of_weights(self._source.dtype, config).itemsize)
        return max(part.tokens for part in largest) * self._source.batch * row_bytes

    def _start_again(self, proven: TowerFacts, config: Any, allowed: AllowedMedia) -> TowerFacts:
        """In the place of a process that has died: with its memory and its limits, which were measured once."""
        self._promised_bytes = proven.promised_bytes
        self._reservation.promise(proven.held_bytes)
        allowed = allowed.lowered(proven.call_patches, proven.audio_frames)
        with translated():
            self._load()
            self._keep_to(proven.held_bytes)
            self._take(proven.reserved_bytes)
            for part in self._largest(config, allowed):
                self._run(worst_batches(config, allowed, part, self._source.batch)[-1:])
        self._share(proven)
        self._reservation.hold(proven.held_bytes)
        return proven

    def _take(self, reserved_bytes: int) -> None:
        """Let the allocator hold so much. In one piece, which it divides as batches need it."""
        assert self._probe is not None
        missing = reserved_bytes - self._probe.reading().reserved_bytes
        if self._device.type == "cuda" and missing > 0:
            torch.empty(missing, dtype=torch.uint8, device=self._device)

    def _promise(self, predicted: int | None, features_bytes: int) -> None:
        extra = _CUDA_BYTES + features_bytes if self._device.type == "cuda" else 0
        self._promised_bytes = self._source.reserve_bytes or int((predicted or 0) * _PROMISED) + extra
        self._reservation.promise(self._promised_bytes)

    def _limit(self) -> int:
        return self._promised_bytes if self._source.lease or self._source.reserve_bytes else _UNLIMITED

    def _load(self) -> None:
        if self._device.type == "cuda":
            let_segments_grow()
        self._probe = CudaProbe(self._device.index or 0) if self._device.type == "cuda" else CpuProbe(self._limit())
        self._tower = self._loaded()
        self._keep_to(self._limit())

    def _loaded(self) -> Tower:
        source = self._source
        with _counted(self._probe):
            loaded = load(
                source.model,
                load_format=source.load_format,
                dtype=source.dtype,
                device=source.device,
                attention=None,  # of each tower its own: not all have the same
                seed=source.seed,
                part=ModelPart.TOWERS,
            )
        if isinstance(self._probe, CpuProbe):
            self._probe.hold([*loaded.model.parameters(), *loaded.model.buffers()])
        self._weight_bytes = loaded.weight_bytes
        return Tower(loaded.model, self._device)

    def _fitted(self, config: Any, allowed: AllowedMedia, kind: MediaKind) -> _Stressed:
        """The worst batches of a kind, run: with a larger promise where that was too small, or with smaller media."""
        while True:
            largest = largest_part(kind, self._source, config, allowed)
            if largest is None:
                raise _all_refused(kind.removesuffix("s"))
            try:
                return self._stressed(config, allowed, largest)
            except torch.OutOfMemoryError as error:
                self._forget()
                if self._source.reserve_bytes is None:
                    self._promise_more(error)
                else:
                    allowed = self._made_smaller(config, allowed, largest)

    def _made_smaller(self, config: Any, allowed: AllowedMedia, largest: MediaPart) -> AllowedMedia:
        """The limits with a fifth less of this kind than was tried, and a warning that says so."""
        smaller, held = made_smaller(config, allowed, largest, _SMALLER)
        reserve = format_bytes(self._source.reserve_bytes or 0)
        self._lowered[largest.kind] = f"encoder-reserve {reserve} holds {held}"
        return smaller

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

    def _stressed(self, config: Any, allowed: AllowedMedia, largest: MediaPart) -> _Stressed:
        assert self._probe is not None
        batches = worst_batches(config, allowed, largest, self._source.batch)
        self._run(batches[-1:])  # workspaces that libraries take at a first call stay, and are no part of a batch
        before = self._probe.reading().allocated_bytes
        self._probe.reset_peak()
        found = self._run(batches)
        reading = self._probe.reading()
        peak = reading.peak_allocated_bytes - before
        return _Stressed(allowed, largest, len(batches[0]), *found, peak, reading.peak_reserved_bytes)

    def _run(self, batches: Sequence[Sequence[MediaPart]]) -> tuple[int, int, torch.dtype]:
        """(levels, width, type) of the features that these make, the last of them."""
        for batch in batches:
            with _counted(self._probe):
                rows, levels = self._tower.rows([part.inputs for part in batch], sum(part.tokens for part in batch))
            found = levels, rows.shape[1], rows.dtype
            del rows
        return found

    def _facts(self, stressed: Sequence[_Stressed], predicted: int | None) -> TowerFacts:
        assert self._probe is not None
        input_bytes = max(needed_bytes(one.largest.inputs) * one.batch for one in stressed)
        facts = TowerFacts(
            budgets={kind_of(one.largest.inputs): elements(one.largest.inputs) * one.batch for one in stressed},
            call_patches=_limit(stressed, MediaKind.IMAGE),
            audio_frames=_limit(stressed, MediaKind.AUDIO),
            rows=max(one.rows for one in stressed),
            part_rows=max(one.largest.tokens for one in stressed),
            width=max(one.width for one in stressed),
            levels=max(one.levels for one in stressed),
            dtype=type_name(stressed[0].dtype),
            input_bytes=input_bytes + MOST_PARTS * 1024,  # small ones are aligned too
            weight_bytes=self._weight_bytes,
            predicted_bytes=predicted,
            promised_bytes=self._promised_bytes,
            held_bytes=0,
            peak_bytes=max(one.peak_bytes for one in stressed),
            reserved_bytes=self._probe.reading().reserved_bytes,
        )
        size = self._share(facts)
        return replace(
            facts,
            held_bytes=self._held_bytes(size, max(one.peak_reserved_bytes for one in stressed)),
            warnings=(*self._warnings, *self._lowered.values()),
        )

    def _share(self, facts: TowerFacts) -> int:
        """Make the memory that the engine sees as large as the largest batch; the bytes of its features."""
        self._width = facts.width
        size = facts.rows * facts.width * type_of(facts.dtype).itemsize
        self._inputs.resize(facts.input_bytes)
        self._outputs.resize(size)
        if self._device.type == "cuda":
            try:
                self._shared = SharedBuffer.make(size, self._device)
            except DeviceError as error:
                self._warnings.append(f"features pass through the host: {error}")
        return size

    def _held_bytes(self, output_bytes: int, peak_bytes: int) -> int:
        """The high-water mark, the context of the process included where that can be known."""
        assert self._probe is not None
        reading = self._probe.reading()
        if isinstance(self._probe, CpuProbe):
            return peak_bytes
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
        allowed = max(limit_bytes - outside, reading.reserved_bytes) + CUDA_SEGMENT_BYTES
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
        rows, _ = self._tower.rows(parts, message["rows"])
        if rows.shape[0] != message["rows"]:
            raise ValueError(f"the tower made {rows.shape[0]} features where {message['rows']} were counted")
        on_device = self._shared is not None and message["on_device"]
        memory = self._shared.bytes if on_device and self._shared is not None else self._outputs.bytes
        size = rows.shape[0] * self._width * rows.dtype.itemsize
        memory[:size].view(rows.dtype).view(-1, self._width)[:, : rows.shape[1]].copy_(rows)  # audio has one level only
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _numbered(device: torch.device) -> torch.device:
    """Of `cuda` alone the first one: a limit of memory is set for a device with a number."""
    return torch.device("cuda", 0) if device.type == "cuda" and device.index is None else device


def _all_refused(what: str) -> InvalidRequest:
    return InvalidRequest(
        f"encoder: every {what} is refused by the limits that were given; raise image-pixels, audio-seconds, max-len "
        "or encoder-reserve"
    )


def _limit(stressed: Sequence[_Stressed], kind: MediaKind) -> int | None:
    """Patches or frames of the largest call that was run; None where none of this kind was."""
    found = next((one.allowed for one in stressed if one.largest.kind is kind), None)
    if found is None:
        return None
    if kind is MediaKind.AUDIO:
        return None if found.audios is None else found.audios.frames
    return None if found.images is None else found.images.call_patches


def _counted(probe: CpuProbe | CudaProbe | None) -> AbstractContextManager[object]:
    """A budget on the CPU counts what is allocated while it is entered."""
    return probe if isinstance(probe, CpuProbe) else nullcontext()
