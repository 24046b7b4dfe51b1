"""Every private name of vLLM that Brim uses, and whether an installed vLLM has them.

In: the folder of the package `vllm`. Out: the names that it lacks. The sources are read and not imported, so the check
takes a second, needs no torch, and the command can make it before anything starts. What it cannot see: a name whose
meaning has changed. The fit itself would find that (its steps, its leak check and its validation run for real).
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Flag, auto
from functools import cache
from pathlib import Path

_SHOWN = 3  # missing names


class Where(Flag):
    """The workers that need a name."""

    CPU = auto()
    GPU = auto()
    EVERYWHERE = CPU | GPU


@dataclass(frozen=True, slots=True)
class Name:
    """A name in a source file of vLLM: a function, a class, or one of a class (a method, a field, `self.name`)."""

    file: str
    name: str
    where: Where = Where.EVERYWHERE

    def __str__(self) -> str:
        return f"{self.file.removesuffix('.py').replace('/', '.')}.{self.name}"


@dataclass(frozen=True, slots=True)
class Choice:
    """Names that do the same in different versions: one of these sets is enough."""

    sets: tuple[tuple[Name, ...], ...]


def _names(file: str, *names: str, where: Where = Where.EVERYWHERE) -> tuple[Name, ...]:
    return tuple(Name(file, name, where) for name in names)


NAMES: tuple[Name | Choice, ...] = (  # of the fit
    # The worker: the calls of a start that Brim's worker takes over, and what they leave behind.
    *_names(
        "v1/worker/gpu_worker.py",
        "Worker.init_device",
        "Worker.determine_available_memory",
        "Worker.initialize_from_config",
        "Worker.compile_or_warm_up_model",
        "Worker.execute_model",
        "Worker.sample_tokens",
        "Worker.get_kv_cache_spec",
        "Worker.use_v2_model_runner",
    ),
    *_names("v1/worker/gpu_worker.py", "Worker.model_runner", where=Where.GPU),
    *_names("v1/worker/cpu_worker.py", "CPUWorker.requested_cpu_memory", where=Where.CPU),
    *_names("v1/worker/cpu_model_runner.py", "CPUModelRunner.warming_up_model", where=Where.CPU),
    # A KV cache of exactly so many blocks.
    Choice(
        (
            _names(
                "v1/core/kv_cache_utils.py",
                "get_kv_cache_groups",
                "get_kv_cache_config_from_groups",
                "_pool_bytes_per_block",
                "_max_memory_usage_bytes_from_groups",
                "_project_kv_cache_groups_to_worker",
            ),
            (  # from 0.33 on
                *_names(
                    "v1/core/kv_cache_config_builder.py",
                    "get_kv_cache_config_builder",
                    "KVCacheConfigBuilder.get_kv_cache_groups",
                    "KVCacheConfigBuilder.get_kv_cache_config_from_groups",
                ),
                *_names(
                    "v1/core/kv_cache_planning.py",
                    "_pool_bytes_per_block_from_builder",
                    "_max_memory_usage_bytes_from_groups",
                    "_project_kv_cache_groups_to_worker",
                ),
            ),
        )
    ),
    *_names("v1/kv_cache_interface.py", "KVCacheConfig.num_blocks", "KVCacheConfig.kv_cache_tensors", "MambaSpec"),
    *_names("v1/kv_cache_interface.py", "KVCacheSpec.max_num_blocks_per_req"),
    *_names("config/cache.py", "CacheConfig.num_gpu_blocks_override", "CacheConfig.kv_cache_memory_bytes"),
    # The worst steps.
    *_names(
        "v1/core/sched/output.py",
        "SchedulerOutput.make_empty",
        "SchedulerOutput.scheduled_new_reqs",
        "SchedulerOutput.scheduled_cached_reqs",
        "SchedulerOutput.scheduled_spec_decode_tokens",
        "SchedulerOutput.finished_req_ids",
        "CachedRequestData.make_empty",
        "NewRequestData.block_ids",
        "NewRequestData.num_computed_tokens",
        "NewRequestData.prefill_token_ids",
        "SchedulerOutput.scheduled_encoder_inputs",
        "SchedulerOutput.free_encoder_mm_hashes",
        "SchedulerOutput.num_spec_tokens_to_schedule",
    ),
    *_names(
        "config/scheduler.py",
        "SchedulerConfig.max_num_scheduled_tokens",
        "SchedulerConfig.long_prefill_token_threshold",
    ),
    *_names("config/speculative.py", "SpeculativeConfig.max_num_new_slots_for_drafting"),
    *_names("multimodal/encoder_budget.py", "MultiModalBudget.mm_max_items_per_batch", "MultiModalBudget.processor"),
    *_names("multimodal/inputs.py", "MultiModalFeatureSpec.identifier", "MultiModalFeatureSpec.mm_position"),
    *_names("sampling_params.py", "SamplingParams.for_sampler_warmup"),
    *_names("v1/worker/lora_model_runner_mixin.py", "LoRAModelRunnerMixin.maybe_setup_dummy_loras"),
    # Tearing down.
    *_names(
        "v1/worker/gpu_model_runner.py",
        "GPUModelRunner._cleanup_profiling_kv_cache",
        "GPUModelRunner._init_block_sizes",
        "GPUModelRunner.supports_mm_inputs",
        "GPUModelRunner.execute_model_state",
    ),
    # Prompts that are scored in pieces.
    *_names("v1/worker/gpu_model_runner.py", "GPUModelRunner._get_prompt_logprobs_dict"),
    *_names("v1/sample/sampler.py", "Sampler.compute_logprobs", "Sampler.gather_logprobs"),
    *_names(
        "v1/worker/gpu_model_runner.py",
        "GPUModelRunner.profile_run",
        "GPUModelRunner.cudagraph_dispatcher",
        where=Where.GPU,
    ),
    *_names(
        "v1/worker/gpu/model_runner.py",
        "GPUModelRunner.profile_run",
        "GPUModelRunner.cudagraph_manager",
        "GPUModelRunner.kv_caches",
        "GPUModelRunner.supports_mm_inputs",
        "GPUModelRunner.model_state",
        where=Where.GPU,
    ),
    *_names(
        "compilation/cuda_graph.py",
        "CUDAGraphWrapper.clear_all_graphs",
        "CUDAGraphWrapper._all_instances",
        "CUDAGraphWrapper.graph_pool",
        where=Where.GPU,
    ),
    *_names("platforms/interface.py", "Platform._global_graph_pool", "Platform.get_global_graph_pool", where=Where.GPU),
    *_names("v1/worker/workspace.py", "is_workspace_manager_initialized", "unlock_workspace", where=Where.GPU),
    *_names("config/compilation.py", "CompilationConfig.static_forward_context"),
    *_names("config/model.py", "ModelConfig.original_max_model_len"),
    # The report for the front process.
    *_names("config/vllm.py", "VllmConfig.instance_id"),
    *_names("config/parallel.py", "ParallelConfig.data_parallel_index"),
)


RESCUE_NAMES: tuple[Name, ...] = (
    # Planning a step, and reading what came of it.
    *_names(
        "v1/core/sched/scheduler.py",
        "Scheduler.schedule",
        "Scheduler.update_from_output",
        "Scheduler.get_grammar_bitmask",
        "Scheduler.update_draft_token_ids",
        "Scheduler.update_draft_token_ids_in_output",
        "Scheduler.finish_requests",
        "Scheduler.reset_encoder_cache",
        "Scheduler.running",
        "Scheduler.waiting",
        "Scheduler.requests",
        "Scheduler.policy",
        "Scheduler.max_num_scheduled_tokens",
        "Scheduler.prev_step_scheduled_req_ids",
        "Scheduler.kv_cache_config",
        "Scheduler._preempt_request",
        "Scheduler._free_request_blocks",
    ),
    *_names("v1/core/sched/async_scheduler.py", "AsyncScheduler"),
    *_names("v1/core/sched/output.py", "SchedulerOutput.num_scheduled_tokens", "SchedulerOutput.scheduled_new_reqs"),
    *_names(
        "v1/core/sched/request_queue.py",
        "create_request_queue",
        "RequestQueue.add_request",
        "RequestQueue.prepend_request",
        "RequestQueue.remove_request",
    ),
    *_names("v1/core/kv_cache_manager.py", "KVCacheManager.evict_blocks", "KVCacheManager.get_computed_blocks"),
    *_names("v1/core/kv_cache_manager.py", "KVCacheManager.get_blocks", "KVCacheManager.coordinator"),
    *_names("v1/core/kv_cache_coordinator.py", "KVCacheCoordinator.single_type_managers"),
    *_names("v1/core/single_type_kv_cache_manager.py", "SingleTypeKVCacheManager.block_size"),
    *_names("v1/core/kv_cache_utils.py", "KVCacheBlock.block_id"),
    # Requests.
    *_names(
        "v1/request.py",
        "Request.num_in_flight_tokens",
        "Request.num_computed_tokens",
        "Request.num_output_placeholders",
        "Request.spec_token_ids",
        "Request.client_index",
        "Request.take_events",
        "Request.get_finished_reason",
        "RequestStatus.PREEMPTED",
        "RequestStatus.FINISHED_ERROR",
    ),
    *_names("v1/engine/__init__.py", "EngineCoreOutput.stop_reason", "EngineCoreOutputs.outputs"),
    *_names("v1/outputs.py", "ModelRunnerOutput"),
    # The worker: what a runner keeps of a step for the next.
    *_names("v1/worker/gpu_worker.py", "Worker.reset_encoder_cache"),
    *_names("v1/worker/gpu_model_runner.py", "GPUModelRunner.execute_model_state", "GPUModelRunner.requests"),
    *_names("v1/worker/gpu_model_runner.py", "GPUModelRunner.num_prompt_logprobs"),
    *_names(
        "v1/worker/gpu_input_batch.py",
        "InputBatch.generators",
        "InputBatch.prev_sampled_token_ids",
        "InputBatch.prev_req_id_to_index",
    ),
)


def missing_names(folder: Path, where: Where, names: Iterable[Name | Choice] = NAMES) -> tuple[str, ...]:
    """What a worker of this kind needs and this vLLM does not have; of a choice, the set that lacks the least."""
    found: list[str] = []
    for one in names:
        if isinstance(one, Choice):
            fewest = min((missing_names(folder, where, names) for names in one.sets), key=len)
            found += fewest
        elif one.where & where and one.name not in _defined(folder / one.file):
            found.append(str(one))
    return tuple(found)


def source_files(names: Iterable[Name | Choice]) -> frozenset[str]:
    """The files of vLLM that these names are looked up in."""
    sets = [one.sets if isinstance(one, Choice) else ((one,),) for one in names]
    return frozenset(name.file for choice in sets for names in choice for name in names)


def in_words(missing: tuple[str, ...]) -> str:
    """The first of the missing names, and how many more there are."""
    more = len(missing) - _SHOWN
    return ", ".join(missing[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


@cache
def _defined(path: Path) -> frozenset[str]:
    """The functions and classes of a file, and what its classes have, as `Class.name`; nothing if it is not there."""
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found.add(node.name)
            found |= {f"{node.name}.{name}" for name in _members(node)}
    return frozenset(found)


def _members(of_class: ast.ClassDef) -> set[str]:
    """Methods, fields, and attributes that a method sets on `self`."""
    found: set[str] = set()
    for node in ast.walk(of_class):
        if isinstance(node, ast.FunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            found |= {name for target in targets for name in _assigned(target)}
    return found


def _assigned(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Name):
        return {target.id}
    if isinstance(target, ast.Tuple):
        return {name for part in target.elts for name in _assigned(part)}
    on_self = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self"
    return {target.attr} if on_self and isinstance(target, ast.Attribute) else set()
