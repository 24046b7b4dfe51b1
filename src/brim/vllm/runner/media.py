"""The largest images, videos and sounds that a vLLM server accepts (`LargestInput`), by its own processor.

In: vLLM's configuration. Out: for every modality its largest input, how many of them a step may encode, and a prompt
that holds one. They are made on the host, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class LargestInput:
    """One modality at its maximum."""

    modality: str
    item: Any  # what the processor makes of it
    position: Any  # of its placeholders in the prompt
    prompt: tuple[int, ...]  # up to the last placeholder, and one token to draw from
    items: int  # in a step


def largest_inputs(config: Any) -> tuple[LargestInput, ...]:
    """Of all modalities that are allowed, for a server that takes more than text."""
    from vllm.multimodal import MULTIMODAL_REGISTRY
    from vllm.multimodal.encoder_budget import MultiModalBudget

    budget = MultiModalBudget(config, MULTIMODAL_REGISTRY)
    return tuple(
        _largest(config, budget, modality, items) for modality, items in budget.mm_max_items_per_batch.items() if items
    )


def _largest(config: Any, budget: Any, modality: str, items: int) -> LargestInput:
    made = _processed(config, budget, {modality: 1})
    position = made["mm_placeholders"][modality][0]
    return LargestInput(
        modality=modality,
        item=made["mm_kwargs"][modality][0],
        position=position,
        prompt=tuple(made["prompt_token_ids"][: position.offset + position.length + 1]),
        items=items,
    )


def _processed(config: Any, budget: Any, counts: dict[str, int]) -> Any:
    """Without the processor's cache: an item that is found there would come back empty."""
    from vllm.multimodal import MULTIMODAL_REGISTRY

    by_processor = getattr(budget.processor, "get_dummy_mm_inputs", None)  # newer versions
    if by_processor is not None:
        return by_processor(counts, cache=None)
    return MULTIMODAL_REGISTRY.get_dummy_mm_inputs(config.model_config, counts)


def allocated_bytes(device: Any) -> int:
    """Of this process on a GPU; the CPU has no such count."""
    import torch

    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


@contextmanager
def kept_embeddings(size: int, device: Any) -> Iterator[None]:
    """Memory of embeddings that wait in the encoder cache while other steps run, as they do in serving."""
    import torch

    held = torch.empty(size, dtype=torch.uint8, device=device)
    yield
    del held
