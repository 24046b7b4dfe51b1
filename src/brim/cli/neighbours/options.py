"""The options of a process that shares a device with others, and its part of that device."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from brim.cli.engine_options import EnginePlace
from brim.errors import DeviceError, InvalidRequest, OutOfMemory
from brim.records.progress import Progress, Stage
from brim.suggest import shown
from brim.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from brim.engine.encoders.pool import Encoders
    from brim.ports import MemoryProbe
    from brim.records.lease import Expected, SizeWish
    from brim.reserve.devices import LeasedDevice
    from brim.reserve.sizing import Sizer

_MOST_EXPECTED = 1000
_FRACTION = re.compile(r"(\d*\.?\d+)\s*(%?)")


def add_neighbour_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("neighbours", "other processes on the GPU, or on a budget such as cpu:lab:4GiB")
    group.add_argument(
        "--wait-neighbours",
        metavar="TIME",
        help="how long to wait until neighbours that are starting hold what they promised (120s)",
    )
    group.add_argument(
        "--expect-neighbours",
        metavar="WHO",
        help="neighbours to wait for although they may not have started: roles (embedder,tower) or how many (2)",
    )
    group.add_argument(
        "--share",
        metavar="PART",
        help="the most this process takes: of what holders leave (0.5, 50%%), or a size (12GiB); all that is left",
    )


@contextmanager
def part_of_device(
    options: argparse.Namespace, place: EnginePlace, progress: Progress = None, encoders: Encoders | None = None
) -> Iterator[Sizer | None]:
    """This process' part of its device, after the neighbours are ready; None where nobody can share it.

    `progress` is as in `brim.progress`; None: as the options say. `encoders` on the device are neighbours too: they
    start while the engine is loaded, and with them the part is decided after that (`decide_part`).
    """
    wanted = read_neighbours(options)
    with ExitStack() as leased:
        shown = _shown(options) if progress is None else progress
        sizer = _entered(options, place, wanted, leased, shown, encoders)
        try:
            yield sizer
        except OutOfMemory as error:
            note = "" if sizer is None else sizer.note()
            if not note:
                raise
            raise OutOfMemory(f"{error}; neighbours: {note}", error.missing_bytes) from error


def _entered(
    options: argparse.Namespace,
    place: EnginePlace,
    wanted: tuple[float, Expected, SizeWish],
    leased: ExitStack,
    progress: Progress,
    encoders: Encoders | None,
) -> Sizer | None:
    from brim.cli.neighbours.encoders import own_roles
    from brim.progress import showing
    from brim.reserve.sizing import sizing

    given = [name for name in ("wait_neighbours", "expect_neighbours", "share") if getattr(options, name) is not None]
    private = place.device == "cpu" and place.budget_name is None
    if private and given:
        option = given[0].replace("_", "-")
        raise InvalidRequest(f"{option}: nobody shares this budget; name it, such as --device cpu:lab:4GiB")
    if private:
        return None
    seconds, expected, share = wanted
    try:
        with showing(progress) as shown:
            device = leased_device(place)
            own = own_roles(options, device.key, encoders)

            def told(stage: Stage) -> None:
                if encoders is not None:
                    encoders.check()
                shown(stage)

            part = sizing(device, expected=expected, wait_seconds=seconds, share=share, told=told, started=own)
            return leased.enter_context(part)
    except DeviceError as error:
        if given or place.device == "cpu" or type(error) is not DeviceError:
            raise  # asked for, or the doing of a neighbour or of an encoder
        print(f"note: neighbours are not asked: {error}", file=sys.stderr)
        return None


def decide_part(part: Sizer | None, probe: MemoryProbe) -> None:
    """After the weights were loaded beside encoders that were starting: these hold what they need by now."""
    if part is None or part.is_decided:
        return
    part.decide(probe.reading())
    if not part.device.has_driver:
        from brim.probes.cpu import CpuProbe

        assert isinstance(probe, CpuProbe)
        probe.budget_bytes = part.part.promised_bytes


def _shown(options: argparse.Namespace) -> Progress:
    return False if options.quiet else None if options.as_json else True


def leased_device(place: EnginePlace) -> LeasedDevice:
    """The device that others share with an engine."""
    from brim.reserve.devices import Budget, Gpu, budget_key

    if place.budget_name is not None:
        assert place.budget_bytes is not None
        return Budget(budget_key(place.budget_name, "device"), place.budget_bytes)
    from brim.probes.nvml import device_uuid
    from brim.probes.usage import gpu_usage

    index = (place.device or "").partition(":")[2] or os.environ.get("LOCAL_RANK", "0")
    uuid = device_uuid(int(index))
    return Gpu(uuid, gpu_usage(uuid).total_bytes)


def read_neighbours(options: argparse.Namespace) -> tuple[float, Expected, SizeWish]:
    """How long to wait, for whom, and the most that this process takes."""
    return (
        parse_seconds(options.wait_neighbours or "120s", "wait-neighbours"),
        _expected(options.expect_neighbours),
        _share(options.share),
    )


def _expected(text: str | None) -> Expected:
    from brim.records.lease import Expected

    if text is None:
        return Expected()
    words = text.strip()
    if words.isdecimal() and len(words) <= len(str(_MOST_EXPECTED)) and int(words) <= _MOST_EXPECTED:
        return Expected(count=int(words))
    roles = tuple(" ".join(role.split()) for role in words.split(","))
    if not all(roles) or words.isdecimal():
        raise InvalidRequest(f"expect-neighbours '{shown(text)}': write roles such as embedder,tower, or how many")
    return Expected(roles=roles)


def _share(text: str | None) -> SizeWish:
    from brim.records.lease import SizeWish

    if text is None:
        return SizeWish()
    fraction = _FRACTION.fullmatch(text.strip())
    if fraction is None:
        size = parse_bytes(text, "share")
        if size < 1:
            raise InvalidRequest(f"share '{shown(text)}' is nothing; write 0.5, 50% or 12GiB")
        return SizeWish(bytes=size)
    part = float(fraction[1]) / (100 if fraction[2] else 1)
    if not 0 < part <= 1:
        raise InvalidRequest(f"share '{shown(text)}' is not above 0 and at most 1; write 0.5, 50% or 12GiB")
    return SizeWish(fraction=part)
