"""Puts an engine together: the parts that do not depend on how large its KV pool is, and those that do."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.attention.paged import NAME, AttentionBackend, register
from brim.engine.discover import AttentionLayers, discover_layers
from brim.engine.kv.geometry import KvShape, LayerGroup, group_layers, pool_shape
from brim.engine.kv.ledger import KvLedger
from brim.engine.load import LoadedModel
from brim.engine.loop import ServingLoop
from brim.engine.recurrent import discover_states, fullest_chunk
from brim.engine.runner import Runner, RunnerShape
from brim.engine.scheduler import Limits, Scheduler
from brim.engine.settings import EngineSettings
from brim.engine.text_model import TextModel
from brim.engine.vision import Vision, ahead_in_windows_only, find_vision
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.engine.parallel import Ranks

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp8": torch.float8_e4m3fn}


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A model made ready, and what its pool would look like at any size."""

    runner: Runner
    groups: tuple[LayerGroup, ...]
    settings: EngineSettings
    max_length: int
    element_bytes: int
    state_bytes: int  # recurrent states of all slots; 0: the model has none
    fullest_chunk: int | None  # tokens of chunks that recurrent layers hold most for
    vision: Vision | None = None
    clock: Callable[[], float] = time.monotonic

    def shape(self, kv_tokens: int) -> KvShape:
        settings = self.settings
        return pool_shape(self.groups, kv_tokens, settings.block_size, settings.max_batch, settings.max_batch_tokens)

    def kv_bytes(self, kv_tokens: int) -> int:
        return self.shape(kv_tokens).bytes(self.groups, self.element_bytes)

    def tokens_one_request_can_hold(self, kv_tokens: int) -> int:
        """The longest request that every pool can hold, beside the tokens of a step."""
        shape = self.shape(kv_tokens)
        lengths = []
        for group, blocks in zip(self.groups, shape.blocks, strict=True):
            tokens = blocks * shape.block_size
            if group.window is not None and tokens >= group.window + self.settings.max_batch_tokens + shape.block_size:
                continue  # its window passes on for ever
            lengths.append(tokens)
        return min(lengths, default=self.max_length)

    def build(self, kv_tokens: int) -> ServingLoop:
        """Everything that holds KV, and the loop that serves with it."""
        shape = self.shape(kv_tokens)
        ledger = KvLedger(self.groups, shape)
        limits = Limits(
            self.settings.max_batch,
            self.settings.max_batch_tokens,
            reuse_prefixes=self.settings.reuse_prefixes and not self.state_bytes,
        )
        self.runner.build(self.groups, shape)
        scheduler = Scheduler(ledger, limits, can_fork=not self.state_bytes)
        return ServingLoop(scheduler, self.runner, self.settings.overlap, self.clock)


def assemble(
    loaded: LoadedModel, settings: EngineSettings, device: torch.device, ranks: Ranks | None = None
) -> EngineParts:
    """Learn what the model's layers keep, choose how they attend, and make the parts that any size shares."""
    text_model = TextModel(loaded.model)
    max_length = settings.max_length or loaded.max_positions
    if max_length > loaded.max_positions:
        raise InvalidRequest(
            f"max_length {max_length}: the model was made for {loaded.max_positions} positions; lower max_length"
        )
    use_paged_attention(loaded.model, text_model.backbone)
    layers = discover_layers(text_model, loaded.config)
    states = discover_states(loaded.model)
    kv_dtype = text_model.dtype if settings.kv_dtype == "auto" else _DTYPES[settings.kv_dtype]
    shape = RunnerShape(
        max_batch=settings.max_batch,
        max_batch_tokens=settings.max_batch_tokens,
        max_length=max_length,
        kv_dtype=kv_dtype,
        device=device,
        graphs=settings.graphs,
    )
    if settings.compile:
        from brim.engine.compiling import compile_layers

        compile_layers(text_model.backbone, layers)
    runner = Runner(
        text_model,
        layers,
        states,
        shape,
        partial(make_backend, layers, shape),
        mrope=_has_mrope(loaded),
        ahead_in_windows_only=ahead_in_windows_only(loaded.full_config),
        **in_step(ranks),
    )
    groups = group_layers(layers.geometry)
    return EngineParts(
        runner,
        groups,
        settings,
        max_length,
        kv_dtype.itemsize,
        state_bytes=sum(state.slot_bytes for state in states) * runner.rows,
        fullest_chunk=fullest_chunk(text_model.backbone, settings.max_batch, settings.max_batch_tokens),
        vision=find_vision(loaded),
        clock=time.monotonic if ranks is None else ranks.clock,
    )


def in_step(ranks: Ranks | None) -> dict[str, Any]:
    """What keeps a runner in step with those of the other ranks."""
    if ranks is None:
        return {}
    from brim.engine.parallel import InStep

    together = InStep(ranks)
    return {"check_plan": together.check, "same_tokens": together.tokens}


def use_paged_attention(model: Any, backbone: Any) -> None:
    """The decoder attends through the pool; towers that were loaded that way too go back to the library's choice."""
    register()
    backbone.set_attn_implementation(NAME)
    for module in model.modules():
        config = getattr(module, "config", None)
        if config is None or config is model.config or config is backbone.config:
            continue
        if hasattr(module, "set_attn_implementation") and config._attn_implementation == NAME:
            module.set_attn_implementation(None)


def make_backend(layers: AttentionLayers, shape: RunnerShape) -> AttentionBackend:
    """How layers attend on this device; made anew with every pool, since it holds memory too."""
    if shape.device.type == "cuda":
        from brim.engine.attention.kernels import TritonAttention

        return TritonAttention(layers.geometry, shape.max_batch, shape.max_length, shape.device)
    if shape.device.type == "meta":
        from brim.engine.attention.nowhere import NowhereAttention

        return NowhereAttention()
    from brim.engine.attention.reference import ReferenceAttention

    return ReferenceAttention()


def _has_mrope(loaded: LoadedModel) -> bool:
    parameters = getattr(loaded.config, "rope_parameters", None) or {}
    return "mrope_section" in parameters or hasattr(loaded.model.base_model, "get_rope_index")
