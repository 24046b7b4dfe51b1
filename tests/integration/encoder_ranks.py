"""What the ranks of `test_encoder_ranks` do in processes of their own."""

from __future__ import annotations

import os
import signal
from typing import Any

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings
from tests.integration.test_engine_vision import prompts_of

KIND = "qwen2_5_vl"  # transformers has a plan to split it
GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
SETTINGS: dict[str, Any] = {"max_length": 256, "max_batch": 3, "max_batch_tokens": 32, "block_size": 8}


def answers(rank: int, folder: str, encoder: str, tensor_parallel: bool) -> dict[str, Any]:
    """Of images and text, before and after the encoder is killed; and who has encoders."""
    settings = EngineSettings(encoder=encoder, reuse_prefixes=False, feature_cache=1 << 16, **SETTINGS)
    engine = Engine(
        folder, kv_tokens=512, device="cpu", dtype="fp32", settings=settings, tensor_parallel=tensor_parallel
    )
    with engine:
        before = _answered(engine, slice(0, 3))
        if engine.encoders is not None:
            os.kill(engine.encoders.pids[0], signal.SIGKILL)
        after = _answered(engine, slice(2, 6))
        parts = 0 if engine.encoders is None else engine.encoders.figures.parts
        return {"tokens": [before, after], "parts": parts, "features": engine.feature_bytes}


def _answered(engine: Engine, some: slice) -> list[tuple[int, ...]]:
    seen = prompts_of(KIND)[some]
    done = engine.generate([list(one.tokens) for one in seen], GREEDY, images=[one.inputs or None for one in seen])
    return [one.tokens for one in done]
