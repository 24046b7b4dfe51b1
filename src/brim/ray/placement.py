"""What a replica may be placed on: a plan is made before anything is started, and one that does not fit is refused.

In: the arguments of a model, and the accelerators of the cluster where none was named. Out: nothing, or `DoesNotFit`
with the numbers of the plan. Models whose device is not known before they are placed are left to their fit.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection

from brim.api import plan
from brim.cli.engine_options import is_in_package
from brim.cli.show.answer import answer
from brim.errors import DoesNotFit, InvalidRequest, UnknownDevice
from brim.planning.devices import find_devices
from brim.ray.arguments import ModelArguments
from brim.records.plan import MemoryPlan
from brim.units import parse_bytes


def check_placement(chosen: ModelArguments, accelerators: Collection[str] = ()) -> MemoryPlan | None:
    """The plan of one replica on its device; None where there is nothing to plan for."""
    options = chosen.serve_options()
    if is_in_package(chosen.model) and chosen.plan_for is None:
        return None
    device = _device(chosen, options, accelerators)
    if device is None:
        return None
    found = plan(
        chosen.model,
        gpu=device,
        tp=chosen.tensor_parallel if chosen.tensor_parallel > 1 else None,
        max_len=options.max_len,
        kv_dtype=None if options.kv_dtype == "auto" else options.kv_dtype,
        reserve=_others_part(chosen, device),
        trace=False,
    )
    if not found.fits and found.shortfall_bytes > _smaller_canary(found, options):
        ranks = f" on each of {chosen.tensor_parallel} ranks" if chosen.tensor_parallel > 1 else ""
        part = f" ({chosen.gpus:g} of it)" if 0 < chosen.gpus < 1 else ""
        said = "; ".join(answer(found))
        raise DoesNotFit(
            f"a replica of {chosen.model} does not fit {found.device.name}{part}{ranks}: {said}; nothing was started",
            found.shortfall_bytes,
        )
    return found


def _device(chosen: ModelArguments, options: argparse.Namespace, accelerators: Collection[str]) -> str | None:
    """As a plan writes it."""
    if chosen.plan_for is not None:
        find_devices(chosen.plan_for)  # an unknown one is refused by name
        return chosen.plan_for if chosen.tensor_parallel == 1 else f"{chosen.tensor_parallel}x{chosen.plan_for}"
    if chosen.gpus:
        named = [chosen.accelerator] if chosen.accelerator else sorted(accelerators)
        known = [name.lower() for name in named if _is_known(name.lower())]
        if not known:
            return None
        # It may be placed on any of them: the smallest decides.
        smallest = min(known, key=lambda name: find_devices(name)[0].total_bytes)
        return smallest if chosen.tensor_parallel == 1 else f"{chosen.tensor_parallel}x{smallest}"
    if options.memory:
        return f"cpu:{options.memory}"
    return options.device if options.device and options.device.startswith("cpu:") else None


def _is_known(name: str) -> bool:
    try:
        find_devices(name)
    except (UnknownDevice, InvalidRequest):
        return False
    return True


def _smaller_canary(found: MemoryPlan, options: argparse.Namespace) -> int:
    """What a replica saves of the canary that plans count."""
    planned = sum(item.bytes for item in found.items if item.name == "canary")
    return max(0, planned - parse_bytes(options.canary, "canary"))


def _others_part(chosen: ModelArguments, device: str) -> int:
    """Of a card that is shared: what is not this replica's."""
    if not 0 < chosen.gpus < 1:
        return 0
    return int((1 - chosen.gpus) * find_devices(device)[0].total_bytes)
