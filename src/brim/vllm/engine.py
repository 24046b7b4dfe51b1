"""A vLLM worker as an engine whose KV cache can be rebuilt (`VllmEngine`, a `SizableEngine`).

In: a worker with its weights loaded. Sizes are tokens of its KV cache. Builds are vLLM's own: allocation, warm-up and
capture; the worst steps go through the worker's own `execute_model` and `sample_tokens`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brim.errors import DeviceError
from brim.probes.translate import translated
from brim.records.fit import IMAGE_SHAPE
from brim.records.memory import StressShape
from brim.units import ceil_div
from brim.vllm.blocks import SEGMENT_BYTES, Blocks, separate_tensors
from brim.vllm.requests import StepMaker, Vocabulary
from brim.vllm.steps import Limits, Step, small_steps, worst_steps
from brim.vllm.teardown import GraphSettings, tear_down


@dataclass(frozen=True, slots=True)
class StockCalls:
    """The worker's own way to build, which Brim's worker overrides."""

    initialize: Callable[[Any], None]  # `initialize_from_config`
    warm_up: Callable[[], Any]  # `compile_or_warm_up_model`


class VllmEngine:
    """`kv_tokens` of any build include no null block."""

    def __init__(self, worker: Any, stock: StockCalls) -> None:
        self._worker = worker
        self._stock = stock
        self._config = worker.vllm_config
        self._specs = worker.get_kv_cache_spec()
        self._graphs = GraphSettings(self._config.compilation_config)
        self.blocks = self._geometry()
        self.limits = _limits(self._config, worker.device.type)
        self.built: Any = None  # the KVCacheConfig that stands
        self.times: Any = None  # what the warm-up of that build returned
        self.builds = 0
        self._maker: StepMaker | None = None
        self._steps = {step.shape.name: step for step in worst_steps(self.limits)}

    @property
    def least_tokens(self) -> int:
        """The fewest that hold one request, by vLLM's own count."""
        from vllm.v1.core.kv_cache_utils import _max_memory_usage_bytes_from_groups

        needed = _max_memory_usage_bytes_from_groups(self._config, self._groups())
        return ceil_div(needed, self.blocks.bytes) * self.blocks.tokens

    @property
    def probe_tokens(self) -> int:
        """Of the build that is measured: one request, and a block for every row where rows hold states."""
        rows = self.limits.rows if self._has_states() else 0
        return max(self.least_tokens, rows * self.blocks.tokens)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """What serving may do and no step of the fit does."""
        found = []
        runs = inspect.unwrap(type(self._worker.model_runner).profile_run).__code__.co_names
        if self.limits.encodes and "supports_mm_inputs" not in runs:
            found.append("this runner does not profile its encoder: images, sound and video are not part of the proof")
        if self._config.lora_config is not None:
            found.append("LoRA: the scratch memory of adapters' kernels is not part of the proof")
        return tuple(found)

    # -- SizableEngine -------------------------------------------------------------------------------------------

    def build(self, kv_tokens: int) -> None:
        from vllm.config import set_current_vllm_config

        self.builds += 1
        planned = self._planned(self.blocks.count(kv_tokens))
        with translated(), set_current_vllm_config(self._config):
            self._stock.initialize(planned)
            self.times = self._stock.warm_up()
            self.built = planned
            self._maker = StepMaker(planned, _vocabulary(self._config), f"brim-{self.builds}")
            if self.builds == 1:
                for step in small_steps(self.limits):
                    _check_output(self._run(step), step)

    def teardown(self) -> None:
        self.built = self._maker = None
        tear_down(self._worker, self._graphs)

    def stress_shapes(self) -> tuple[StressShape, ...]:
        return tuple(step.shape for step in self._steps.values())

    def stress(self, shape: StressShape) -> None:
        """One step, twice: while the second runs, the first one's results are still on their way, as in serving."""
        with translated():
            if shape.name == IMAGE_SHAPE:
                self.profile()
                return
            step = self._steps[shape.name]
            for output in [self._run(step) for _ in range(2)]:
                _check_output(output, step)

    # -- steps ---------------------------------------------------------------------------------------------------

    def profile(self) -> None:
        """vLLM's own dummy run: compiles, makes communication buffers, and runs the encoder at its largest input."""
        import torch
        from vllm.config import set_current_vllm_config

        with torch.inference_mode(), set_current_vllm_config(self._config):
            self._worker.model_runner.profile_run()

    def _run(self, step: Step) -> Any:
        assert self._maker is not None, "stress before build"
        opening = self._maker.opening(step)
        try:
            output = self._execute(opening)
            return self._execute(self._maker.verifying(step, opening)) if step.drafts else output
        finally:
            self._settle()
            self._worker.execute_model(self._maker.closing(opening))

    def _execute(self, scheduled: Any) -> Any:
        output = self._worker.execute_model(scheduled)
        return self._worker.sample_tokens(None) if output is None else output

    def _settle(self) -> None:
        """Pinned inputs are reused as soon as the step is over; and forget what a failed step left."""
        import torch

        torch.accelerator.synchronize()
        self._worker.model_runner.execute_model_state = None

    # -- the KV cache --------------------------------------------------------------------------------------------

    def _groups(self) -> Any:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_groups

        return get_kv_cache_groups(self._config, dict(self._specs))

    def _planned(self, blocks: int) -> Any:
        """vLLM's configuration of a cache of exactly so many blocks, made as its own profiling does."""
        from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups

        cache = self._config.cache_config
        before, cache.num_gpu_blocks_override = cache.num_gpu_blocks_override, blocks
        try:
            planned = get_kv_cache_config_from_groups(self._config, self._groups(), available_memory=0)
        finally:
            cache.num_gpu_blocks_override = before
        if planned.num_blocks != blocks:
            raise DeviceError(f"vLLM made a KV cache of {planned.num_blocks} blocks where {blocks} were asked for")
        if hasattr(planned, "kv_cache_layout"):  # newer versions resolve it before the workers are asked
            planned.kv_cache_layout = cache.kv_cache_layout
        return planned

    def _geometry(self) -> Blocks:
        from vllm.v1.core.kv_cache_utils import _pool_bytes_per_block

        groups, some = self._groups(), self._planned(2)
        size = _pool_bytes_per_block(self._config, groups)
        return Blocks(
            tokens=min(group.kv_cache_spec.block_size for group in groups),
            bytes=size,
            tensors=separate_tensors(some.kv_cache_tensors, some.num_blocks, size),
            rounding_bytes=SEGMENT_BYTES if self._worker.device.type == "cuda" else 1,
        )

    def _has_states(self) -> bool:
        from vllm.v1.kv_cache_interface import MambaSpec

        return any(isinstance(group.kv_cache_spec, MambaSpec) for group in self._groups())


def same_cache(built: Any, asked: Any) -> bool:
    """Whether what stands is what vLLM's core asks for: blocks, tensors and groups of layers."""

    def described(cache: Any) -> tuple[Any, ...]:
        groups = [group.layer_names for group in cache.kv_cache_groups]
        return cache.num_blocks, [tensor.size for tensor in cache.kv_cache_tensors], groups

    return built is not None and described(built) == described(asked)


def _limits(config: Any, device: str) -> Limits:
    """On the CPU, vLLM's kernels expand 64-bit parameters only: there, drafts that are drawn fail in stock vLLM too."""
    scheduler, model = config.scheduler_config, config.model_config
    speculative = config.speculative_config
    return Limits(
        batch_tokens=scheduler.max_num_batched_tokens,
        rows=scheduler.max_num_seqs,
        length=model.max_model_len,
        drafts=0 if speculative is None else speculative.num_speculative_tokens,
        draws_drafts=device != "cpu",
        encodes=bool(model.is_multimodal_model),
    )


def _vocabulary(config: Any) -> Vocabulary:
    size = config.model_config.get_vocab_size()
    most = config.model_config.max_logprobs
    return Vocabulary(size, size if most < 0 else most)


def _check_output(output: Any, step: Step) -> None:
    """A step that drew nothing measured nothing."""
    output = output.get_output() if hasattr(output, "get_output") else output
    rows = len(step.rows)
    if len(output.req_ids) != rows or not all(output.sampled_token_ids):
        raise DeviceError(f"{step.shape.title}: vLLM drew tokens for {len(output.req_ids)} of {rows} rows")
    scored = [row for row in step.rows if row.scored]
    given = [one for one in output.prompt_logprobs_dict.values() if one is not None]
    if len(given) != len(scored) or any(len(one.logprobs) != scored[0].new - 1 for one in given):
        raise DeviceError(f"{step.shape.title}: vLLM did not score the prompt")
