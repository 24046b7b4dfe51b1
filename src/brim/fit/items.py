"""The report's lines: what was measured, and what a plan had predicted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from brim.records.fit import FitItem, FitReport, FitRequest, Usage

COMPILED = "compiled code needs less: the prediction is an upper bound"
GATHERED = "on the CPU attention copies a request's keys and values; the prediction is for a GPU"
_ONLY_WHERE_THERE = ("state", "features", "keep_free")
ENCODER = "a step with the largest image or audio; only the part beyond activation adds to the total"


def measured_items(usage: Usage, request: FitRequest, kv_bytes: int) -> tuple[FitItem, ...]:
    """A line for everything that the device holds; as `counted`, they add up to the peak."""
    measured = {
        "context": usage.other_bytes - usage.neighbour_bytes,
        "neighbours": usage.neighbour_bytes,
        "weights": usage.weights_bytes,
        "state": request.state_bytes,  # recurrent, of all requests in flight
        "features": request.feature_bytes,  # of images, kept for requests that show them again
        "graphs": usage.built_bytes
        - request.state_bytes
        - request.feature_bytes,  # captured steps, and the buffers that serving holds
        "activation": usage.activation_bytes,
        "workspace": usage.slack_bytes,
        "canary": request.canary_bytes,
        "keep_free": request.keep_free_bytes,
        "kv": kv_bytes,
    }
    items = [FitItem(name, None, size) for name, size in measured.items() if size or name not in _ONLY_WHERE_THERE]
    items = [replace(item, note=request.keep_free_note) if item.name == "keep_free" else item for item in items]
    if usage.encoder_bytes is not None:
        behind = [item.name for item in items].index("activation") + 1
        items.insert(behind, FitItem("encoder", None, usage.encoder_bytes, ENCODER))
    return tuple(items)


def with_note(items: tuple[FitItem, ...], name: str, note: str) -> tuple[FitItem, ...]:
    """The same lines, one of them with a note."""
    return tuple(replace(item, note=note) if item.name == name and note else item for item in items)


def counted(items: tuple[FitItem, ...]) -> Iterator[tuple[FitItem, int]]:
    """What each line adds to the total: of a step with an image, the part beyond a text step."""
    activation = sum(item.measured_bytes or 0 for item in items if item.name == "activation")
    for item in items:
        size = item.measured_bytes or 0
        yield item, max(0, size - activation) if item.name == "encoder" else size


def compare(report: FitReport, predicted: Mapping[str, int], activation_note: str = "") -> FitReport:
    """The same report with what was predicted, by the names of a plan's ledger."""
    items = tuple(
        replace(
            item,
            predicted_bytes=predicted.get(item.name),
            note=activation_note if activation_note and item.name == "activation" else item.note,
        )
        for item in report.items
    )
    return replace(report, items=items)
