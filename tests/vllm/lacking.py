"""Brim's worker in a vLLM that lacks a private name."""

from __future__ import annotations

import brim.vllm.worker

brim.vllm.worker.missing_names = lambda folder, where: ("v1.worker.gpu_worker.Worker.gone",)
Worker = brim.vllm.worker.worker_class()
