"""What Brim does not size inside vLLM, named at the start with what to do instead.

In: vLLM's configuration, read by attribute, and what its sources lack. Out: the reasons; none: the worker is sized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brim.errors import InvalidRequest
from brim.vllm.names import in_words

_EXECUTORS = (None, "uni", "mp")  # tried


@dataclass(frozen=True, slots=True)
class Refusal:
    """Something that Brim's worker was not made for."""

    what: str
    remedy: str
    stock: bool = False  # there is nothing to size: stock vLLM, with a warning, whatever the operator said

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def refusals(config: Any, missing: tuple[str, ...] = ()) -> tuple[Refusal, ...]:
    """Why this configuration is not sized; `missing` are the private names that this vLLM does not have."""
    found = [refusal for applies, refusal in _RULES if applies(config)]
    if missing:
        found.append(Refusal(f"this vLLM lacks {in_words(missing)}", "`brim vllm serve` sizes it by two starts"))
    return tuple(found)


def check_allowed(found: tuple[Refusal, ...], stock_where_refused: bool) -> None:
    """Raise for what is refused, unless the operator wants stock vLLM there."""
    refused = [one for one in found if not one.stock]
    if refused and not stock_where_refused:
        reasons = "; ".join(map(str, refused))
        raise InvalidRequest(f'{reasons}. For stock vLLM: BRIM=off, or "on_refusal": "stock" in additional_config.brim')


def _sleeps(config: Any) -> bool:
    return bool(_at(config, "model_config.enable_sleep_mode") or _at(config, "model_config.enable_cumem_allocator"))


def _offloads(config: Any) -> bool:
    """vLLM makes a KV connector of it."""
    return _at(config, "cache_config.kv_offloading_size") is not None


def _connects(config: Any) -> bool:
    return _at(config, "kv_transfer_config.kv_connector") is not None and not _offloads(config)


def _sends_features(config: Any) -> bool:
    return _at(config, "ec_transfer_config") is not None


def _elastic(config: Any) -> bool:
    return bool(_at(config, "parallel_config.enable_elastic_ep"))


def _pools(config: Any) -> bool:
    return bool(_at(config, "model_config.runner_type") == "pooling")


def _untried_executor(config: Any) -> bool:
    return _at(config, "parallel_config.distributed_executor_backend") not in _EXECUTORS


def _at(config: Any, path: str) -> Any:
    """The value at a path of attributes; None where one of them is missing or None."""
    for name in path.split("."):
        config = getattr(config, name, None)
    return config


_Rule = tuple[Callable[[Any], bool], Refusal]
_RULES: tuple[_Rule, ...] = (
    (_sleeps, Refusal("sleep mode keeps the size of its KV cache", "start without --enable-sleep-mode")),
    (
        _connects,
        Refusal("KV connectors register memory that a fit would free", "start without --kv-transfer-config"),
    ),
    (
        _offloads,
        Refusal("offloading registers KV memory that a fit would free", "start without --kv-offloading-size"),
    ),
    (
        _sends_features,
        Refusal("encoder connectors register memory that a fit would free", "start without --ec-transfer-config"),
    ),
    (
        _elastic,
        Refusal("elastic expert parallelism changes the ranks after the fit", "start without --enable-elastic-ep"),
    ),
    (
        _pools,
        Refusal("a pooling model makes no tokens, so it has no KV cache to be sized", "nothing to do", stock=True),
    ),
    (_untried_executor, Refusal("this executor was not tried", "use --distributed-executor-backend mp")),
)
