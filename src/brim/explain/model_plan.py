"""The plan of what a server was started with, where its model and its device are known. Nothing is downloaded."""

from __future__ import annotations

from pathlib import Path

from brim.api import plan
from brim.errors import BrimError
from brim.explain.facts import Incident
from brim.model.catalogue import find_entry
from brim.model.packaged import packaged_folder
from brim.records.plan import MemoryPlan
from brim.units import MIB

_MODEL_FLAGS = ("model", "model_path", "model_dir", "model_id")
_PLANNED = ("vllm", "sglang", "lightllm", "trtllm", "tgi")


def known_model(incident: Incident) -> str | None:
    """A name of the catalogue, or a folder with a config: one on this machine, or of a model in the package."""
    for flag in reversed(incident.flags):
        if flag.name not in _MODEL_FLAGS:
            continue
        name = flag.value.rstrip("/")
        entry = find_entry(name) or find_entry(name.rsplit("/", 1)[-1])
        if entry is not None:
            return entry.name
        folder = packaged_folder(name) or Path(name)
        if (folder / "config.json").is_file():
            return str(folder)
    return None


def plan_of(incident: Incident) -> MemoryPlan | None:
    """As the flags say; None where model or device are not known, or cannot be planned."""
    model, total = known_model(incident), _total_bytes(incident)
    if model is None or total is None:
        return None
    try:
        return plan(
            model,
            gpu=f"{total // MIB}MiB",
            engine=incident.engine if incident.engine in _PLANNED else None,
            max_len=_count(incident, "max_model_len", "max_len", "context_length"),
            max_seqs=_count(incident, "max_num_seqs", "max_running_requests"),
            batch_tokens=_count(incident, "max_num_batched_tokens", "chunked_prefill_size"),
            graphs=False if incident.flag("enforce_eager", "disable_cuda_graph") else None,
            trace=False,
        )
    except BrimError:
        return None


def _total_bytes(incident: Incident) -> int | None:
    stated = next((one.total_bytes for one in reversed(incident.refusals) if one.total_bytes), None)
    return incident.value("total_bytes") or stated


def _count(incident: Incident, *names: str) -> int | None:
    flag = incident.flag(*names)
    digits = flag.value if flag is not None else ""
    return int(digits) if digits.isdecimal() and 0 < len(digits) <= 9 and int(digits) > 0 else None
