"""What vLLM was told about its memory, as the fit sees it."""

from __future__ import annotations

from dataclasses import dataclass

from brim.vllm.settings import Settings
from brim.vllm.sizing import is_cap


@dataclass
class CacheConfig:
    """vLLM's, as far as it matters."""

    gpu_memory_utilization: float = 0.92


def test_a_utilization_that_is_not_the_default_is_a_cap() -> None:
    assert is_cap(CacheConfig(0.5), Settings())
    assert not is_cap(CacheConfig(), Settings())


def test_the_default_is_a_cap_where_the_operator_wrote_it() -> None:
    assert is_cap(CacheConfig(), Settings(utilization_given=True))
