"""A vLLM worker as an engine whose KV cache can be rebuilt (`VllmEngine`, a `SizableEngine`).

In: a worker with its weights loaded. Sizes are tokens of its KV cache. Builds are vLLM's own: allocation, warm-up and
capture; the worst steps go through the worker's own `execute_model` and `sample_tokens`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from brim.errors import DeviceError
from brim.probes.translate import translated
from brim.records.memory import StressKind, StressShape
from brim.units import ceil_div
from brim.vllm.runner.blocks import SEGMENT_BYTES, Blocks, request_tokens, separate_tensors
from brim.vllm.runner.cache_plan import cache_plan
from brim.vllm.runner.lockstep import Lockstep
from brim.vllm.runner.media import allocated_bytes, kept_embeddings, largest_inputs
from brim.vllm.runner.requests import SamplerBounds, StepMaker
from brim.vllm.runner.scores import earlier_scores
from brim.vllm.runner.steps import SchedulerLimits, Step, small_steps, worst_steps
from brim.vllm.runner.teardown import GraphSettings, tear_down


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
        self._all_specs = _of_all_stages(self._specs)
        self._plan = cache_plan(self._config)
        self._graphs = GraphSettings(self._config.compilation_config)
        self.blocks = self._geometry()
        self.limits = _limits(worker)
        self.built: Any = None  # the KVCacheConfig that stands
        self.times: Any = None  # what the warm-up of that build returned
        self.builds = 0
        self.stock_seconds = 0.0  # of the first build in vLLM's own warm-up, which a start without Brim has too
        self.lockstep = Lockstep()
        self._maker: StepMaker | None = None
        self._largest = largest_inputs(self._config) if self.limits.encodes else ()
        self._encoded_bytes = 0  # what a step leaves in the encoder cache, at most
        self._steps = {step.shape.name: step for step in worst_steps(self.limits)}

    @property
    def least_tokens(self) -> int:
        """The fewest that hold one request."""
        return self.blocks.held_tokens(self._request_blocks(self.blocks.bytes) + 1)

    @property
    def probe_tokens(self) -> int:
        """Of the build that is measured: one request, and a block for every row where rows hold states."""
        rows = self.limits.rows if self._has_states() else 0
        return max(self.least_tokens, self.blocks.held_tokens(rows + 1))

    # -- SizableEngine -------------------------------------------------------------------------------------------

    def build(self, kv_tokens: int) -> None:
        from vllm.config import set_current_vllm_config

        self.builds += 1
        planned = self._planned(self.blocks.count(kv_tokens))
        began = perf_counter()
        with set_current_vllm_config(self._config), self.lockstep.allocation(), translated():
            self._stock.initialize(planned)
        with set_current_vllm_config(self._config), self.lockstep.warm_up(), translated():
            self.times = self._stock.warm_up()
            self.stock_seconds = self.stock_seconds or perf_counter() - began
            self.built = planned
            self._maker = StepMaker(
                planned,
                self._config,
                _vocabulary(self._config),
                f"brim-{self.builds}",
                adapters=self._most_adapters,
                drafts=self.limits.drafts,
            )
            if self.builds == 1:
                self._load_kernels()

    def teardown(self) -> None:
        self.built = self._maker = None
        tear_down(self._worker, self._graphs)

    def stress_shapes(self) -> tuple[StressShape, ...]:
        return tuple(step.shape for step in self._steps.values())

    def stress(self, shape: StressShape) -> None:
        """One step, twice: while the second runs, the first one's results are still on their way, as in serving."""
        with self.lockstep.step(shape.title), translated(), self._adapters():
            if shape.name == StressKind.IMAGE:
                self._encode()
                return
            step = self._steps[shape.name]
            with self._earlier_scores(step), kept_embeddings(self._encoded_bytes, self._worker.device):
                outputs = [self._run(step) for _ in range(2)]
            for output in outputs:
                self._check(output, step)

    # -- steps ---------------------------------------------------------------------------------------------------

    def profile(self) -> None:
        """vLLM's own dummy run: compiles, and makes communication buffers."""
        import torch
        from vllm.config import set_current_vllm_config

        with torch.inference_mode(), set_current_vllm_config(self._config):
            self._worker.model_runner.profile_run()

    def _load_kernels(self) -> None:
        with self._adapters():
            for step in small_steps(self.limits):
                self._check(self._run(step), step)
            self._encode()

    def _adapters(self) -> AbstractContextManager[None]:
        """Upstream's dummies of LoRA, as many as a step may use, registered as if they had been loaded."""
        lora = self._config.lora_config
        found: AbstractContextManager[None] = self._worker.model_runner.maybe_setup_dummy_loras(lora)
        return found

    @property
    def _most_adapters(self) -> int:
        lora = self._config.lora_config
        return 0 if lora is None else int(lora.max_loras)

    def _run(self, step: Step) -> Any:
        assert self._maker is not None, "stress before build"
        opening = self._maker.opening(step)
        with self._ended(opening):
            output = self._execute(opening)
            return self._execute(self._maker.verifying(step, opening)) if step.drafts else output

    def _earlier_scores(self, step: Step) -> AbstractContextManager[None]:
        """What the V2 runner keeps on the device of a prompt that is scored in several steps."""
        if not self._worker.use_v2_model_runner:
            return nullcontext()
        return earlier_scores(step, _vocabulary(self._config).score_bytes, self._worker.device)

    def _encode(self) -> None:
        """Of every modality as many of the largest inputs as a step may have, through the worker's own encoder."""
        assert self._maker is not None, "stress before build"
        for largest in self._largest:
            opening = self._maker.encoding(largest, self.limits)
            with self._ended(opening):
                before = allocated_bytes(self._worker.device)
                self._execute(opening)
                left = allocated_bytes(self._worker.device) - before
                self._encoded_bytes = max(self._encoded_bytes, left)

    @contextmanager
    def _ended(self, opening: Any) -> Iterator[None]:
        """After these steps, the requests of the first one are gone, also where a step failed."""
        assert self._maker is not None
        try:
            yield
        except Exception as error:
            self._log(error)
            raise
        finally:
            self._settle()
            self._worker.execute_model(self._maker.closing(opening))

    def _log(self, error: Exception) -> None:
        """At once: other ranks may wait in a collective of this step, and nothing else would say why."""
        from vllm.logger import init_logger

        init_logger("vllm.brim").warning("brim: a step failed on rank %d", self._worker.rank, exc_info=error)

    def _check(self, output: Any, step: Step) -> None:
        """Only the last stage of a pipeline draws."""
        from vllm.distributed.parallel_state import get_pp_group

        if get_pp_group().is_last_rank:
            _check_output(output, step)

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
        return self._plan.groups(self._all_specs, self._specs)

    def _planned(self, blocks: int) -> Any:
        planned = self._plan.planned(self._groups(), blocks)
        if planned.num_blocks != blocks:
            raise DeviceError(f"vLLM made a KV cache of {planned.num_blocks} blocks where {blocks} were asked for")
        if hasattr(planned, "kv_cache_layout"):  # newer versions resolve it before the workers are asked
            planned.kv_cache_layout = self._config.cache_config.kv_cache_layout
        return planned

    def _geometry(self) -> Blocks:
        groups, some = self._groups(), self._planned(2)
        size = self._plan.block_bytes(groups)
        tokens, of_request = request_tokens(
            self._config.model_config.max_model_len,
            self._request_blocks(size),
            [self._block_tokens(group.kv_cache_spec) for group in groups],
        )
        return Blocks(
            tokens=tokens,
            of_request=of_request,
            bytes=size,
            tensors=separate_tensors(some.kv_cache_tensors, some.num_blocks, size),
            rounding_bytes=SEGMENT_BYTES if self._worker.device.type == "cuda" else 1,
        )

    def _request_blocks(self, block_bytes: int) -> int:
        """Of the longest request, by vLLM's own count."""
        return ceil_div(self._plan.request_bytes(self._groups()), block_bytes)

    def _block_tokens(self, spec: Any) -> int:
        """Of a request, in a block: where ranks share a context, a block of each holds a part of them."""
        tokens: int = spec.block_size * self._config.parallel_config.decode_context_parallel_size
        return tokens // int(spec.max_num_blocks_per_req(self._config, tokens))

    def _has_states(self) -> bool:
        from vllm.v1.kv_cache_interface import MambaSpec

        return any(isinstance(group.kv_cache_spec, MambaSpec) for group in self._groups())


def _of_all_stages(specs: dict[str, Any]) -> dict[str, Any]:
    """The layers of all stages of a pipeline; every stage has some."""
    import torch.distributed
    from vllm.distributed.parallel_state import get_pp_group

    stages = get_pp_group()
    if stages.world_size == 1:
        return specs
    found: list[Any] = [None] * stages.world_size
    torch.distributed.all_gather_object(found, specs, group=stages.cpu_group)
    return {name: spec for stage in found for name, spec in stage.items()}


def same_cache(built: Any, asked: Any) -> bool:
    """Whether what was built is what vLLM's core asks for: blocks, tensors and groups of layers."""

    def described(cache: Any) -> tuple[Any, ...]:
        groups = [group.layer_names for group in cache.kv_cache_groups]
        return cache.num_blocks, [tensor.size for tensor in cache.kv_cache_tensors], groups

    return built is not None and described(built) == described(asked)


def _limits(worker: Any) -> SchedulerLimits:
    """What stock vLLM cannot do on the CPU is left out there.

    Drafts that are drawn: its kernels take 64-bit parameters only. Prompts that are scored beside LoRA: its kernels
    expect one row of logits for each request.
    """
    config, on_cpu = worker.vllm_config, worker.device.type == "cpu"
    scheduler, speculative = config.scheduler_config, config.speculative_config
    return SchedulerLimits(
        batch_tokens=scheduler.max_num_scheduled_tokens or scheduler.max_num_batched_tokens,
        slots=_drafter_slots(scheduler, speculative),
        rows=scheduler.max_num_seqs,
        length=_drafter_length(speculative, config.model_config.max_model_len),
        drafts=0 if speculative is None else speculative.num_speculative_tokens,
        draws_drafts=not on_cpu,
        scores=not on_cpu or config.lora_config is None,
        encodes=bool(worker.model_runner.supports_mm_inputs),
        most_chunk=scheduler.long_prefill_token_threshold,
    )


def _drafter_slots(scheduler: Any, speculative: Any) -> int:
    """Of a row; older versions have taken those of all rows off the tokens that they schedule."""
    if speculative is None or scheduler.max_num_scheduled_tokens != scheduler.max_num_batched_tokens:
        return 0
    return int(speculative.max_num_new_slots_for_drafting)


def _drafter_length(speculative: Any, longest: int) -> int:
    """Beyond it nothing is drafted; a drafter that is no model drafts everywhere."""
    model = getattr(speculative, "draft_model_config", None)
    return longest if model is None else min(longest, int(model.max_model_len))


def _vocabulary(config: Any) -> SamplerBounds:
    size = config.model_config.get_vocab_size()
    most = config.model_config.max_logprobs
    return SamplerBounds(size, size if most < 0 else most)


def _check_output(output: Any, step: Step) -> None:
    """A step that drew nothing measured nothing."""
    output = output.get_output() if hasattr(output, "get_output") else output
    rows = len(step.rows)
    if len(output.req_ids) != rows or not all(map(len, output.sampled_token_ids)):
        raise DeviceError(f"{step.shape.title}: vLLM drew tokens for {len(output.req_ids)} of {rows} rows")
    scored = [row for row in step.rows if row.scored]
    given = [one for one in output.prompt_logprobs_dict.values() if one is not None]
    counts = [(row.new - 1, row.past + row.new - 1) for row in scored]  # of the last chunk (V2), of the prompt (V1)
    if len(given) != len(scored) or any(
        len(one.logprobs) not in count for one, count in zip(given, counts, strict=True)
    ):
        raise DeviceError(f"{step.shape.title}: vLLM did not score the prompt")
