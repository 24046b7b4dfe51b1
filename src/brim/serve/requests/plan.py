"""What the page's planner asks: a model of the catalogue on a known GPU. No paths, no hub, bounded sizes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brim.model.catalogue import find_entry
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.planning.devices import catalogue
from brim.planning.engines import ENGINES
from brim.serve.problems import invalid
from brim.serve.requests.fields import RequestFields
from brim.suggest import did_you_mean, shown, suggestions

KV_DTYPES = ("auto", "bf16", "fp16", "fp8", "int8")
WEIGHTS = ("bf16", "fp16", *NAMED_FORMATS)
GRAPHS = {"auto": None, "on": True, "off": False}
MOST_GPUS = 128
SIZES = {  # the most of each
    "gpus": MOST_GPUS,
    "max_len": 1 << 24,
    "concurrency": 1 << 16,
    "image_pixels": 1 << 28,
    "batch_tokens": 1 << 20,
    "pp": MOST_GPUS,
    "dp": MOST_GPUS,
    "gpu_layers": 1024,
    "cpu_moe": 1024,
}


@dataclass(frozen=True, slots=True)
class PlanQuery:
    """Checked, and small enough to be planned in milliseconds."""

    model: str
    gpu: str
    gpus: int = 1
    max_len: int | None = None
    concurrency: int | None = None
    kv_dtype: str | None = None
    weights: str | None = None
    image_pixels: int | None = None
    engine: str | None = None
    batch_tokens: int | None = None
    graphs: bool | None = None
    pp: int = 1
    dp: int = 1
    ep: bool = False
    gpu_layers: int | None = None
    cpu_moe: int | None = None


def read_plan(body: Mapping[str, Any]) -> PlanQuery:
    fields = RequestFields(body)
    asked = PlanQuery(
        model=_model(fields),
        gpu=_gpu(fields),
        gpus=_size(fields, "gpus") or 1,
        max_len=_size(fields, "max_len"),
        concurrency=_size(fields, "concurrency"),
        kv_dtype=fields.choice("kv_dtype", KV_DTYPES, "auto"),
        weights=fields.choice("weights", WEIGHTS, "") or None,
        image_pixels=_size(fields, "image_pixels"),
        engine=fields.choice("engine", ENGINES, "") or None,
        batch_tokens=_size(fields, "batch_tokens"),
        graphs=GRAPHS[fields.choice("graphs", GRAPHS, "auto")],
        pp=_size(fields, "pp") or 1,
        dp=_size(fields, "dp") or 1,
        ep=fields.flag("ep"),
        gpu_layers=_size(fields, "gpu_layers"),
        cpu_moe=_size(fields, "cpu_moe"),
    )
    fields.refuse_others()
    return asked


def _size(fields: RequestFields, name: str) -> int | None:
    return fields.integer(name, 1, SIZES[name])


def _model(fields: RequestFields) -> str:
    text = fields.text("model")
    entry = None if text is None else find_entry(text)
    if entry is None:
        raise invalid("model", f"'{shown(text or '')}' is not in the catalogue; /v1/catalogue lists the models")
    return entry.name


def _gpu(fields: RequestFields) -> str:
    text, known = fields.text("gpu") or "", [device.key for device in catalogue()]
    if text not in known:
        meant = did_you_mean(suggestions(text, known))
        raise invalid("gpu", f"'{shown(text)}' is not in the catalogue; {meant}/v1/catalogue lists the GPUs")
    return text
