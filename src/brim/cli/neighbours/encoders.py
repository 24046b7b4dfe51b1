"""Encoders of a command's engine, started before the engine sizes itself: they are its neighbours on the device."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from brim.cli.engine_options import EnginePlace, engine_settings, read_place
from brim.cli.neighbours.options import leased_device
from brim.errors import DeviceError, InvalidRequest
from brim.folders import leases_folder
from brim.progress import showing
from brim.records.progress import Progress
from brim.suggest import shown

if TYPE_CHECKING:
    from brim.engine.encoders.pool import Encoders
    from brim.engine.encoders.start import EncoderPlace


@contextmanager
def encoders_beside(
    options: argparse.Namespace, place: EnginePlace, progress: Progress = None, *, serves: bool = False
) -> Iterator[tuple[EnginePlace, Encoders | None]]:
    """Encoders as the options say, until the command is done; and where the engine runs, as they share it.

    A private budget on the CPU gets a name, by which the engine and its encoders find each other. `serves`: the text of
    others would wait for media that the engine encodes by itself.
    """
    if options.encoder == "auto":
        options.encoder = "process" if _gets_process(options, place, serves) else "inline"
    settings = engine_settings(options)
    if settings.encoder != "process":
        if options.encoder_gpus is not None or options.encoder_reserve is not None:
            raise InvalidRequest(
                "encoder-gpus and encoder-reserve are for encoders in processes; leave out them or --encoder inline"
            )
        yield place, None
        return
    if _is_other_rank(options):
        yield place, None  # the first has them
        return
    from brim.engine.encoders.start import start_encoders
    from brim.engine.weights.from_hub import on_this_machine

    with showing(False if options.quiet and progress is None else progress) as told:
        model = on_this_machine(options.model, options.load_format, told)
    private = place.budget_bytes is not None and place.budget_name is None
    if private:
        from brim.reserve.devices import private_budget

        place = replace(place, budget_name=private_budget(os.getpid()))
    where = [place] if options.encoder_gpus is None else _places(options.encoder_gpus)
    encoders = start_encoders(
        model,
        settings,
        tuple(_of_encoder(one, _owner(options)) for one in where),
        load_format=options.load_format,
        dtype=options.dtype,
        seed=0,
    )
    try:
        yield place, encoders
    finally:
        if encoders is not None:
            encoders.close()
        if private and place.budget_name is not None:
            from brim.reserve.ledger import forget_device

            forget_device(leases_folder(), place.budget_name)


def _gets_process(options: argparse.Namespace, place: EnginePlace, serves: bool) -> bool:
    """Where nobody has said it: on a GPU, text beside images was measured to wait a quarter as long."""
    if options.encoder_gpus is not None or options.encoder_reserve is not None:
        return True
    return serves and options.tp == 1 and (place.device or _default_device()).startswith("cuda")


def _places(text: str) -> list[EnginePlace]:
    """Devices with commas between them."""
    found = [read_place(one.strip()) for one in text.split(",")]
    if any(place.device is None for place in found):
        raise InvalidRequest(f"encoder-gpus '{shown(text)}' must name devices; write 1,2 or cpu:a:1GiB,cpu:b:1GiB")
    return found


def own_roles(options: argparse.Namespace, device_key: str, encoders: Encoders | None) -> tuple[str, ...]:
    """Roles of this command's encoders that hold memory of a device; another rank may have started them."""
    from brim.reserve.devices import key_of

    if encoders is not None:
        return tuple(role for lease, role in encoders.leases if lease is not None and key_of(lease) == device_key)
    if not _is_other_rank(options) or options.encoder != "process" or options.encoder_gpus is None:
        return ()
    from brim.engine.encoders.start import role_of

    places = [_of_encoder(one, _owner(options)) for one in _places(options.encoder_gpus)]
    roles = (role_of(options.model, options.load_format, one) for one in places if one.lease is not None)
    keys = (key_of(one.lease) for one in places if one.lease is not None)
    return tuple(role for role, key in zip(roles, keys, strict=True) if role is not None and key == device_key)


def _is_other_rank(options: argparse.Namespace) -> bool:
    return options.tp > 1 and os.environ.get("RANK", "0") != "0"


def _owner(options: argparse.Namespace) -> str:
    """Whose encoders these are, as all ranks know it."""
    return f"of {os.getpid()}" if options.tp == 1 else f"of ranks at {os.environ.get('MASTER_PORT')}"


def _of_encoder(place: EnginePlace, owner: str) -> EncoderPlace:
    from brim.engine.encoders.start import EncoderPlace

    device = place.device or _default_device()
    return EncoderPlace(device, _lease(replace(place, device=device)), owner)


def _default_device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _lease(place: EnginePlace) -> str | None:
    """The device as `brim.hold` takes it; None where nobody shares it."""
    if place.device == "cpu":
        return None if place.budget_name is None else f"{place.budget_name}:{place.budget_bytes}"
    try:
        return leased_device(place).key
    except DeviceError as error:
        print(f"note: the encoder takes no lease: {error}", file=sys.stderr)
        return None
