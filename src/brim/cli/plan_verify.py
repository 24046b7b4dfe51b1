"""`brim plan --verify`: a plan's size for vLLM beside the one that the fit proves inside vLLM.

In: a plan for a GPU of this machine. Out: both sizes. vLLM is started as `brim fit --engine vllm` does, with the
settings of the plan's command, so that what is compared is what would be served.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from brim.cli.fit_vllm import check_installed, proven_report
from brim.errors import DeviceError, InvalidRequest
from brim.planning.devices import this_machine
from brim.planning.engines import find_engine
from brim.records.plan import Device, MemoryPlan
from brim.units import format_bytes

_SAME_DEVICE_PERCENT = 2  # by which what a driver reports may differ from the catalogue
_SIZED_BY_THE_FIT = ("kv_cache_memory_bytes", "gpu_memory_utilization")


@dataclass(frozen=True, slots=True)
class Verified:
    """What was proven, and what was planned."""

    kv_bytes: int  # for which the worst steps ran
    kv_tokens: int
    planned_bytes: int

    @property
    def difference(self) -> int:
        """What was proven beyond the plan; negative: the plan is too large."""
        return self.kv_bytes - self.planned_bytes

    def to_json(self) -> dict[str, int]:
        """The stable keys of `verified` in `brim plan --json`."""
        return {
            "kv_bytes": self.kv_bytes,
            "kv_tokens": self.kv_tokens,
            "planned_bytes": self.planned_bytes,
            "difference": self.difference,
        }


def check_asked(engine: str | None) -> None:
    """Refuse what cannot be verified before anything is planned."""
    found = find_engine(engine)
    if found is None or not found.own_rules:
        raise InvalidRequest("--verify runs the fit inside vLLM; plan with --engine vllm, or use brim fit")
    check_installed()


def verify(plan: MemoryPlan, *, load_format: str = "auto") -> Verified:
    """Start vLLM with the plan's settings, and let Brim's worker prove a size."""
    gpus = _gpus()
    planned, real = plan.device.total_bytes, gpus[0].total_bytes
    if abs(planned - real) * 100 > real * _SAME_DEVICE_PERCENT:
        raise InvalidRequest(
            f"the plan is for {plan.device.name} ({format_bytes(planned)}), and this machine has {gpus[0].name} "
            f"({format_bytes(real)}); leave out --gpu"
        )
    if plan.ranks > len(gpus):
        raise InvalidRequest(f"the plan is for {plan.ranks} GPUs, and this machine shows {len(gpus)}; lower --tp")
    if not plan.fits:
        raise InvalidRequest("the plan does not fit, so there is no size to verify; see what fits without --verify")
    given = llm_arguments(plan)
    settings = {"canary": f"{plan.asked.request.canary_bytes}B", "score_in_pieces": False}
    given |= {"load_format": load_format, "additional_config": {"brim": settings}}
    if load_format == "dummy":
        given["skip_tokenizer_init"] = True
    report = proven_report(given, "cuda", quiet=False)
    return Verified(report["kv_cache_memory_bytes"], report["kv_tokens"], planned_bytes(plan.flags))


def _gpus() -> tuple[Device, ...]:
    try:
        return this_machine()
    except DeviceError as error:
        raise DeviceError(
            f"--verify runs on the GPU of the plan, and there is none here ({error}); leave it out"
        ) from None


def llm_arguments(plan: MemoryPlan) -> dict[str, Any]:
    """The plan's command as arguments of `vllm.LLM`, without the sizes that the fit finds."""
    model = plan.command[-len(plan.flags) - 1]
    return {"model": model} | {name: value for name, value in _pairs(plan.flags) if name not in _SIZED_BY_THE_FIT}


def planned_bytes(flags: Sequence[str]) -> int:
    return int(flags[flags.index("--kv-cache-memory-bytes") + 1])


def _pairs(flags: Sequence[str]) -> list[tuple[str, Any]]:
    """Options with their values; one without is a switch that is on."""
    found: list[tuple[str, Any]] = []
    for word in flags:
        if word.startswith("--"):
            found.append((word.removeprefix("--").replace("-", "_"), True))
        else:
            found[-1] = (found[-1][0], _value(word))
    return found


def _value(word: str) -> Any:
    """A number or an object where it is one, else a text."""
    try:
        return json.loads(word)
    except ValueError:
        return word


def show_verified(found: Verified) -> None:
    share = abs(found.difference) / found.kv_bytes
    verdict = "below what was proven" if found.difference >= 0 else "ABOVE what was proven"
    print(f"planned {found.planned_bytes:,} bytes of KV cache ({format_bytes(found.planned_bytes)})")
    print(f"proven  {found.kv_bytes:,} bytes inside vLLM ({format_bytes(found.kv_bytes)}, {found.kv_tokens:,} tokens)")
    print(f"the plan is {format_bytes(abs(found.difference))} ({share:.2%}) {verdict}")
