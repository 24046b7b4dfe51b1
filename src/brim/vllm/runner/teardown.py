"""Free what a worker built for one size of its KV cache: caches, graphs, attention groups, workspaces.

The weights stay, and so does compiled code. V1 and newer V2 runners have a teardown of their own, made for profiling;
what those leave, and all of V2 in 0.26, is freed here. What has no name in a version is skipped: the fit's leak check
decides whether enough was freed.
"""

from __future__ import annotations

import gc
from typing import Any

_GRAPH_SETTINGS = ("cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")


class GraphSettings:
    """The settings of graphs as they were before the first build, which resolves them."""

    def __init__(self, compilation: Any) -> None:
        self._compilation = compilation
        self._values = {name: getattr(compilation, name) for name in _GRAPH_SETTINGS if hasattr(compilation, name)}

    def restore(self) -> None:
        for name, value in self._values.items():
            setattr(self._compilation, name, value)


def tear_down(worker: Any, graphs: GraphSettings) -> None:
    """Free a build, whole or abandoned half-way."""
    import torch

    runner = worker.model_runner
    torch.accelerator.synchronize()
    gc.unfreeze()  # the warm-up froze the heap, and frozen cycles are never collected
    runner.execute_model_state = None
    on_gpu = worker.device.type == "cuda"
    if on_gpu:
        _drop_captured()
    if worker.use_v2_model_runner:
        _tear_down_v2(runner, worker.vllm_config)
    else:
        _tear_down_v1(runner)
    graphs.restore()
    if on_gpu:
        _unlock_workspace()
    gc.collect()
    if on_gpu:
        torch._C._cuda_clearCublasWorkspaces()  # those of capture streams live in the pools of the graphs
    torch.accelerator.empty_cache()
    if on_gpu:
        _renew_graph_pool()


def _graph_wrappers() -> tuple[Any, ...]:
    """The classes that keep captured graphs."""
    from vllm.compilation.cuda_graph import CUDAGraphWrapper

    try:
        from vllm.compilation.breakable_cudagraph import BreakableCUDAGraphWrapper
    except ImportError:
        return (CUDAGraphWrapper,)
    return (CUDAGraphWrapper, BreakableCUDAGraphWrapper)


def _drop_captured() -> None:
    for wrapper in _graph_wrappers():
        wrapper.clear_all_graphs()


def _renew_graph_pool() -> None:
    """A pool whose graphs are gone must not be captured into again: torch forbids it."""
    from vllm.platforms import current_platform

    type(current_platform)._global_graph_pool = None
    for wrapper in _graph_wrappers():
        for instance in wrapper._all_instances:
            instance.graph_pool = current_platform.get_global_graph_pool()


def _unlock_workspace() -> None:
    """Capturing locks the workspace at its size."""
    from vllm.v1.worker.workspace import is_workspace_manager_initialized, unlock_workspace

    if is_workspace_manager_initialized():
        unlock_workspace()


def _tear_down_v1(runner: Any) -> None:
    dispatcher = getattr(runner, "cudagraph_dispatcher", None)
    if dispatcher is not None:
        for keys in dispatcher.cudagraph_keys.values():
            keys.clear()
        dispatcher.keys_initialized = False
    runner.encoder_cudagraph_manager = None
    runner._cleanup_profiling_kv_cache()
    runner._init_block_sizes = []  # so that the next build replaces its rows: capturing asks which are prefilling


def _tear_down_v2(runner: Any, config: Any) -> None:
    from vllm.v1.worker.gpu import cudagraph_utils

    own = getattr(cudagraph_utils, "_teardown_profiling_state", None)  # 0.26 has none
    if own is not None:
        own(runner)
    speculator = getattr(runner, "speculator", None)
    if speculator is not None:
        _set_none(speculator, [name for name in vars(speculator) if name.endswith("cudagraph_manager")])
    _set_none(runner.model_state, ("_mamba_ctx", "_mamba_spec"))
    runner.cudagraph_manager = None
    for name in ("kv_caches", "attn_groups"):
        if hasattr(runner, name):
            getattr(runner, name).clear()
    for name in ("block_tables", "kv_cache_config"):
        if hasattr(runner, name):
            delattr(runner, name)
    _set_none(runner, ("pcp_manager", "kv_block_zeroer"))
    config.cache_config.num_gpu_blocks = None
    for layer in config.compilation_config.static_forward_context.values():
        _detach(layer)


def _detach(layer: Any) -> None:
    """A layer's view of the cache, and those of its scales."""
    import torch

    if hasattr(layer, "kv_cache"):
        layer.kv_cache = torch.tensor([]) if isinstance(layer.kv_cache, torch.Tensor) else []
    _set_none(getattr(layer, "impl", None), ("_k_scale_cache", "_v_scale_cache"))


def _set_none(holder: Any, names: Any) -> None:
    for name in names:
        if hasattr(holder, name):
            setattr(holder, name, None)
