"""What the page's planner asks: a model of the catalogue on a known GPU. No paths, no hub, bounded sizes."""

from __future__ import annotations

from dataclasses import dataclass

from brim.model.catalogue import entries, find_entry
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.planning.devices import catalogue
from brim.planning.engines import ENGINES
from brim.serve.problems import invalid
from brim.serve.requests import types as t
from brim.suggest import did_you_mean, shown, suggestions

KV_DTYPES = ("auto", "bf16", "fp16", "fp8", "int8")
WEIGHTS = ("bf16", "fp16", *NAMED_FORMATS)
_ON_OR_OFF = {"auto": None, "on": True, "off": False}
MOST_GPUS = 128


def _model(name: str, path: str, model: t.ServedModel) -> str:
    entry = find_entry(name)
    if entry is None:
        raise invalid(path, f"'{shown(name)}' is not in the catalogue; /v1/catalogue lists the models")
    return entry.name


def _gpu(name: str, path: str, model: t.ServedModel) -> str:
    known = [device.key for device in catalogue()]
    if name not in known:
        meant = did_you_mean(suggestions(name, known))
        raise invalid(path, f"'{shown(name)}' is not in the catalogue; {meant}/v1/catalogue lists the GPUs")
    return name


_MODEL = t.JsonType((str,), _model, lambda model: {"enum": list(entries())})
_GPU = t.JsonType((str,), _gpu, lambda model: {"enum": [device.key for device in catalogue()]})
_NAMED_SWITCH = t.choice(_ON_OR_OFF)
_GRAPHS = t.JsonType(
    (str,),
    lambda value, path, model: _ON_OR_OFF[_NAMED_SWITCH.convert(value, path, model)],
    _NAMED_SWITCH.schema,
)


@dataclass(frozen=True, slots=True)
class PlanQuery(t.JsonObject):
    """Checked, and small enough to be planned in milliseconds."""

    model: str = t.required(_MODEL)
    gpu: str = t.required(_GPU)
    gpus: int = t.optional(t.integer(1, MOST_GPUS), default=1)
    max_len: int | None = t.optional(t.integer(1, 1 << 24))
    concurrency: int | None = t.optional(t.integer(1, 1 << 16))
    kv_dtype: str | None = t.optional(t.choice(KV_DTYPES), default="auto")
    weights: str | None = t.optional(t.choice(WEIGHTS))
    image_pixels: int | None = t.optional(t.integer(1, 1 << 28))
    engine: str | None = t.optional(t.choice(ENGINES))
    batch_tokens: int | None = t.optional(t.integer(1, 1 << 20))
    graphs: bool | None = t.optional(_GRAPHS)
    pp: int = t.optional(t.integer(1, MOST_GPUS), default=1)
    dp: int = t.optional(t.integer(1, MOST_GPUS), default=1)
    ep: bool = t.optional(t.FLAG, default=False)
    gpu_layers: int | None = t.optional(t.integer(1, 1024))
    cpu_moe: int | None = t.optional(t.integer(1, 1024))
