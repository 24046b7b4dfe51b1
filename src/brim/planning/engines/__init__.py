"""Serving engines as a plan sees them: what they store beyond the model's minimum, and the plan as their command.

Engines are described with their default behaviour, one file for each. A command says everything that the plan counts
on and that is not the engine's default; what an engine cannot be told is a note beside it, and what it cannot do is
refused.
"""

from __future__ import annotations

from brim.errors import InvalidRequest
from brim.planning.engines.brim import BRIM
from brim.planning.engines.lightllm import LIGHTLLM
from brim.planning.engines.llama_cpp import LLAMA_CPP
from brim.planning.engines.max import MAX
from brim.planning.engines.models import check_models, draft_notes
from brim.planning.engines.names import checkpoint_format, draft_algorithm, format_key, limits_pixels
from brim.planning.engines.record import Algorithm, Command, Draft, Engine, Sizes
from brim.planning.engines.sglang import SGLANG
from brim.planning.engines.split import Split, device_specs
from brim.planning.engines.tgi import TGI
from brim.planning.engines.transformers import TRANSFORMERS
from brim.planning.engines.trtllm import TRTLLM
from brim.planning.engines.vllm import VLLM
from brim.units import MIB, ceil_div

__all__ = [
    "DEFAULT_DRAFT_TOKENS",
    "ENGINES",
    "Algorithm",
    "Command",
    "Draft",
    "Engine",
    "Sizes",
    "Split",
    "check_models",
    "checkpoint_format",
    "device_specs",
    "draft_algorithm",
    "draft_notes",
    "engine_for",
    "find_engine",
    "format_key",
    "graph_bytes",
    "limits_pixels",
]

DEFAULT_DRAFT_TOKENS = 3
ENGINES: dict[str, Engine] = {
    engine.name: engine for engine in (BRIM, VLLM, SGLANG, LIGHTLLM, MAX, TGI, LLAMA_CPP, TRTLLM, TRANSFORMERS)
}


def find_engine(name: str | None) -> Engine | None:
    """An engine by name; None stands for the model's own minimum."""
    if name is None:
        return None
    if name not in ENGINES:
        raise InvalidRequest(f"engine '{name[:40]}' is not one of {', '.join(ENGINES)}")
    return ENGINES[name]


def engine_for(method: str) -> Engine | None:
    """An engine that runs weights stored in a quantised format; None where Brim knows of none."""
    return next((engine for engine in ENGINES.values() if method in engine.quantised), None)


def graph_bytes(layers: int, captured_step_bytes: int, sizes: int = 35) -> int:
    """CUDA graphs: the first capture, one shared pool as large as the largest captured step, and the nodes.

    The first capture took 70 MiB on an H200 and further ones nothing that the driver reported; the nodes of many
    layers and sizes are an estimate.
    """
    return 70 * MIB + captured_step_bytes + ceil_div(sizes * layers * 16384, MIB) * MIB
