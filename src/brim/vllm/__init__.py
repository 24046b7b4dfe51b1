"""Brim inside vLLM: the KV cache of a vLLM worker, sized by measurement and proven before the first request.

    vllm serve MODEL --worker-cls brim.vllm.BrimWorker --scheduler-cls brim.vllm.BrimScheduler

`BrimWorker` is vLLM's own worker for the platform that it finds, with the fit in it; `BrimScheduler` is vLLM's own
scheduler, which together with that worker rescues steps that run out of memory. Both are made when they are asked for,
because they import vLLM. Nothing else of Brim imports this package, and Brim needs no vLLM.
"""

from typing import Any

WORKER = "brim.vllm.BrimWorker"  # as `--worker-cls` names it
SCHEDULER = "brim.vllm.BrimScheduler"  # as `--scheduler-cls` names it


def __getattr__(name: str) -> Any:
    if name == "BrimWorker":
        from brim.vllm.worker import worker_class

        return worker_class()
    if name == "BrimScheduler":
        from brim.vllm.rescue.scheduler import scheduler_class

        return scheduler_class()
    raise AttributeError(f"module 'brim.vllm' has no attribute '{name}'")
