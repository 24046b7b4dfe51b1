"""vLLM's own plan of a KV cache: layers in groups, and a cache of exactly so many blocks (`CachePlan`).

Up to 0.32 its functions are in `kv_cache_utils`. From 0.33 on a builder that the platform chooses does it, and Brim
asks that builder, as vLLM's core does.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator


class CachePlan(Protocol):
    """For one configuration of vLLM."""

    def groups(self, specs: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        """This rank's layers (`own`) of those of the whole model (`specs`), grouped as vLLM's core groups them."""
        ...

    def planned(self, groups: Any, blocks: int) -> Any:
        """The KVCacheConfig of exactly so many blocks."""
        ...

    def block_bytes(self, groups: Any) -> int:
        """Of a block, as vLLM's core counts."""
        ...

    def request_bytes(self, groups: Any) -> int:
        """Of the longest request."""
        ...


def cache_plan(config: Any) -> CachePlan:
    """As the installed vLLM plans it."""
    if find_spec("vllm.v1.core.kv_cache_config_builder") is None:
        return _PlanByFunctions(config)
    return _PlanByBuilder(config)


class _PlanByFunctions:
    def __init__(self, config: Any) -> None:
        self._config = config

    def groups(self, specs: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        from vllm.v1.core.kv_cache_utils import _project_kv_cache_groups_to_worker, get_kv_cache_groups

        return _project_kv_cache_groups_to_worker(get_kv_cache_groups(self._config, dict(specs)), own)

    def planned(self, groups: Any, blocks: int) -> Any:
        from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups

        with _overridden(self._config, blocks):
            return get_kv_cache_config_from_groups(self._config, groups, available_memory=0)

    def block_bytes(self, groups: Any) -> int:
        from vllm.v1.core.kv_cache_utils import _pool_bytes_per_block

        return int(_pool_bytes_per_block(self._config, groups))

    def request_bytes(self, groups: Any) -> int:
        from vllm.v1.core.kv_cache_utils import _max_memory_usage_bytes_from_groups

        return int(_max_memory_usage_bytes_from_groups(self._config, groups))


class _PlanByBuilder:
    def __init__(self, config: Any) -> None:
        from vllm.v1.core.kv_cache_config_builder import get_kv_cache_config_builder

        self._config = config
        self._builder = get_kv_cache_config_builder(config)

    def groups(self, specs: Mapping[str, Any], own: Mapping[str, Any]) -> Any:
        from vllm.v1.core.kv_cache_planning import _project_kv_cache_groups_to_worker

        return _project_kv_cache_groups_to_worker(self._builder.get_kv_cache_groups(self._config, dict(specs)), own)

    def planned(self, groups: Any, blocks: int) -> Any:
        with _overridden(self._config, blocks):
            return self._builder.get_kv_cache_config_from_groups(self._config, groups, num_blocks=blocks)

    def block_bytes(self, groups: Any) -> int:
        from vllm.v1.core.kv_cache_planning import _pool_bytes_per_block_from_builder

        return int(_pool_bytes_per_block_from_builder(self._builder, self._config, groups))

    def request_bytes(self, groups: Any) -> int:
        from vllm.v1.core.kv_cache_planning import _max_memory_usage_bytes_from_groups

        return int(_max_memory_usage_bytes_from_groups(self._builder, self._config, groups))


@contextmanager
def _overridden(config: Any, blocks: int) -> Iterator[None]:
    """A number of blocks that the operator gave is vLLM's for every plan; this one has its own."""
    cache = config.cache_config
    before, cache.num_gpu_blocks_override = cache.num_gpu_blocks_override, blocks
    try:
        yield
    finally:
        cache.num_gpu_blocks_override = before
