"""Brim: memory for LLM serving, filled to the brim, never spilled."""

from brim.api import plan
from brim.errors import BrimError
from brim.model.source import load_model
from brim.plan.devices import find_device
from brim.records.model import ModelSpec
from brim.records.plan import Advice, Device, LedgerItem, MemoryPlan, PlanRequest, Source
from brim.version import __version__

__all__ = [
    "Advice",
    "BrimError",
    "Device",
    "LedgerItem",
    "MemoryPlan",
    "ModelSpec",
    "PlanRequest",
    "Source",
    "__version__",
    "find_device",
    "load_model",
    "plan",
]
