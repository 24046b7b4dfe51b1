"""Brim inside vLLM: the KV cache of a vLLM worker, sized by measurement and proven before the first request.

    vllm serve MODEL --worker-cls brim.vllm.BrimWorker

`BrimWorker` is vLLM's own worker for the platform that it finds, with the fit in it; it is made when it is asked for,
because it imports vLLM. Nothing else of Brim imports this package, and Brim needs no vLLM.
"""

from typing import Any

WORKER = "brim.vllm.BrimWorker"  # as `--worker-cls` names it


def __getattr__(name: str) -> Any:
    if name != "BrimWorker":
        raise AttributeError(f"module 'brim.vllm' has no attribute '{name}'")
    from brim.vllm.worker import worker_class

    return worker_class()
