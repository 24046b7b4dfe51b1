"""Where a step is not rescued inside vLLM, by name.

In: vLLM's configuration, read by attribute, and the environment. Out: the reason; none: steps are rescued. The worker
and the scheduler ask with the same configuration, so both know whether the other one plays its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brim.vllm import SCHEDULER, WORKER
from brim.vllm.names import RESCUE_NAMES, Where, in_words, missing_names
from brim.vllm.settings import RescueMode, read_settings

_Rule = tuple[Callable[[Any], bool], str]


def rescue_refusal(config: Any, environment: Mapping[str, str]) -> str:
    """Why steps of this configuration are not rescued."""
    settings = read_settings(config.additional_config, environment)
    if not settings.enabled or settings.rescue is RescueMode.OFF:
        return "it is switched off"
    found = [words for applies, words in _RULES if applies(config)]
    if settings.rescue is not RescueMode.ON and config.use_v2_model_runner:
        found.append('vLLM\'s second model runner was not tried; "rescue": "on" in additional_config.brim tries it')
    found += _lacks()
    return "; ".join(found)


def in_report(config: Any, environment: Mapping[str, str]) -> str:
    """`on`, or why not."""
    named = config.scheduler_config.scheduler_cls
    if named is None or _name(named) != SCHEDULER:
        return f"off: the scheduler is not Brim's; start with --scheduler-cls {SCHEDULER}"
    refused = rescue_refusal(config, environment)
    return f"off: {refused}" if refused else "on"


def _lacks() -> list[str]:
    import vllm

    missing = missing_names(Path(vllm.__file__).parent, Where.EVERYWHERE, RESCUE_NAMES)
    return [f"this vLLM lacks {in_words(missing)}"] if missing else []


def _name(of_class: Any) -> str:
    """A class as a configuration names it, which may hold the class itself."""
    return of_class if isinstance(of_class, str) else f"{of_class.__module__}.{of_class.__qualname__}"


def _has_other_worker(config: Any) -> bool:
    """Whose worker it is decides whether it guards its steps; vLLM's own is `auto` or a name in `vllm`."""
    name = _name(config.parallel_config.worker_cls)
    return name == "auto" or name.startswith("vllm.")


def _has_ranks(config: Any) -> bool:
    parallel = config.parallel_config
    return bool(parallel.world_size > 1 or parallel.data_parallel_size > 1)


def _takes_prompts_whole(config: Any) -> bool:
    return not config.scheduler_config.enable_chunked_prefill


def _draws_no_tokens(config: Any) -> bool:
    return bool(config.model_config.runner_type == "pooling" or getattr(config.model_config, "is_diffusion", False))


def _connects(config: Any) -> bool:
    return config.kv_transfer_config is not None or config.ec_transfer_config is not None


_RULES: tuple[_Rule, ...] = (
    (_has_other_worker, f"the worker is not Brim's; start with --worker-cls {WORKER}"),
    (_has_ranks, "several ranks: one that runs out of memory leaves the others waiting in a collective"),
    (_takes_prompts_whole, "prompts are not cut into chunks, so a step cannot be made smaller"),
    (_draws_no_tokens, "this model draws no tokens one after the other"),
    (_connects, "KV and encoder connectors hold what a failed step would take back"),
)
