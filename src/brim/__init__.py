"""Brim: memory for LLM serving, filled to the brim, never spilled."""

from typing import TYPE_CHECKING, Any

from brim.api import plan
from brim.errors import BrimError
from brim.planning.devices import find_device, find_devices
from brim.records.model import ModelSpec
from brim.records.plan import Advice, Device, LedgerItem, MemoryPlan, PlanRequest, Source
from brim.trace.loading import load_model
from brim.version import __version__

if TYPE_CHECKING:
    from brim.engine.chat.chat import Chat
    from brim.engine.engine import Engine
    from brim.engine.requests.grammar import Grammar
    from brim.engine.requests.params import SamplingParams
    from brim.engine.settings import EngineSettings
    from brim.engine.streaming import StreamingEngine
    from brim.reserve.hold import hold
    from brim.serving import fit_engine

__all__ = [
    "Advice",
    "BrimError",
    "Chat",
    "Device",
    "Engine",
    "EngineSettings",
    "Grammar",
    "LedgerItem",
    "MemoryPlan",
    "ModelSpec",
    "PlanRequest",
    "SamplingParams",
    "Source",
    "StreamingEngine",
    "__version__",
    "find_device",
    "find_devices",
    "fit_engine",
    "hold",
    "load_model",
    "plan",
]

_LATER = {  # these import torch, or what few need
    "Chat": "brim.engine.chat.chat",
    "Engine": "brim.engine.engine",
    "EngineSettings": "brim.engine.settings",
    "Grammar": "brim.engine.requests.grammar",
    "SamplingParams": "brim.engine.requests.params",
    "StreamingEngine": "brim.engine.streaming",
    "fit_engine": "brim.serving",
    "hold": "brim.reserve.hold",
}


def __getattr__(name: str) -> Any:
    """What needs torch, and leases, are imported when they are asked for."""
    if name not in _LATER:
        raise AttributeError(f"module 'brim' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_LATER[name]), name)
