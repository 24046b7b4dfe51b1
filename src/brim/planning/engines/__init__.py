"""Serving engines as a plan sees them: what they store beyond the model's minimum, and the plan as their command.

Engines are described with their default behaviour, one file for each. A command says everything that the plan counts
on and that is not the engine's default; what an engine cannot be told is a note beside it, and what it cannot do is
refused.
"""

from __future__ import annotations

from brim.errors import InvalidRequest
from brim.planning.engines.brim import BRIM
from brim.planning.engines.capability import Ruling, rule
from brim.planning.engines.lightllm import LIGHTLLM
from brim.planning.engines.llama_cpp import LLAMA_CPP
from brim.planning.engines.max import MAX
from brim.planning.engines.models import check_models, draft_notes
from brim.planning.engines.names import checkpoint_format, draft_algorithm, format_key, limits_pixels
from brim.planning.engines.record import Algorithm, EngineCommand, EngineRules, PlannedDraft, Sizes
from brim.planning.engines.sglang import SGLANG
from brim.planning.engines.split import Split, device_specs
from brim.planning.engines.tgi import TGI
from brim.planning.engines.transformers import TRANSFORMERS
from brim.planning.engines.trtllm import TRTLLM
from brim.planning.engines.vllm import VLLM
from brim.records.model import ModelSpec
from brim.suggest import near, shown
from brim.units import MIB, ceil_div

__all__ = [
    "DEFAULT_DRAFT_TOKENS",
    "ENGINES",
    "Algorithm",
    "EngineCommand",
    "EngineRules",
    "PlannedDraft",
    "Ruling",
    "Sizes",
    "Split",
    "check_models",
    "checkpoint_format",
    "chosen_engine",
    "device_specs",
    "draft_algorithm",
    "draft_notes",
    "engine_for",
    "find_engine",
    "format_key",
    "graph_bytes",
    "limits_pixels",
    "rule",
    "version_notes",
]

DEFAULT_DRAFT_TOKENS = 3
ENGINES: dict[str, EngineRules] = {
    engine.name: engine for engine in (BRIM, VLLM, SGLANG, LIGHTLLM, MAX, TGI, LLAMA_CPP, TRTLLM, TRANSFORMERS)
}

_ALSO = {"tensorrtllm": "trtllm", "llama": "llama.cpp", "textgenerationinference": "tgi", "hf": "transformers"}


def _spelling(name: str) -> str:
    """Without case and separators: "llamacpp", "Llama.CPP" and "llama-cpp" are one."""
    return "".join(character for character in name.lower() if character.isalnum())


_SPELLINGS = {_spelling(name): engine for name, engine in ENGINES.items()} | {
    spelling: ENGINES[name] for spelling, name in _ALSO.items()
}


def find_engine(name: str | None) -> EngineRules | None:
    """An engine by name, with a version or without ("vllm@0.26"); None stands for the model's own minimum."""
    if name is None:
        return None
    found = _SPELLINGS.get(_spelling(name.partition("@")[0]))
    if found is None:
        meant = near(name, ENGINES)
        hint = f"did you mean {meant}? It" if meant else "it"
        raise InvalidRequest(f"engine '{shown(name)}' is not known; {hint} may be {', '.join(ENGINES)}")
    return found


def chosen_engine(spec: ModelSpec, name: str | None) -> EngineRules | None:
    """The engine that was asked for; llama.cpp for a GGUF file, which is made for it, where none was."""
    return LLAMA_CPP if name is None and spec.is_gguf else find_engine(name)


def version_notes(engine: EngineRules, name: str | None) -> list[str]:
    """What a plan says of a version that was asked for: only one is known of each engine."""
    asked = (name or "").partition("@")[2].strip()
    if not asked or asked == engine.version or asked.startswith(f"{engine.version}."):
        return []
    return [f"{engine.name} {shown(asked)} is modelled as {engine.version}, the last version that Brim knows"]


def engine_for(method: str) -> EngineRules | None:
    """An engine that runs weights stored in a quantised format; None where Brim knows of none."""
    return next((engine for engine in ENGINES.values() if method in engine.quantised), None)


def graph_bytes(layers: int, captured_step_bytes: int, sizes: int = 35) -> int:
    """CUDA graphs: the first capture, one shared pool as large as the largest captured step, and the nodes.

    The first capture took 70 MiB on an H200 and further ones nothing that the driver reported; the nodes of many
    layers and sizes are an estimate.
    """
    return 70 * MIB + captured_step_bytes + ceil_div(sizes * layers * 16384, MIB) * MIB
