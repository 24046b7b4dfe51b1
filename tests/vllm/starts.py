"""One start of vLLM in this process: what it was given as JSON goes in, what it answered comes out as JSON.

python -m tests.vllm.starts '{"worker_cls": "brim.vllm.BrimWorker"}'
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import brim

MODEL = Path(brim.__file__).parent / "models" / "brim-tiny"
MARK = "RESULT "
REFUSED = 13  # answer tokens: `tests.vllm.faulty` refuses a request of so many
PROMPTS = ("The capital of France is", "Two and three is", "Once upon a time there was a")


def main() -> None:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM, SamplingParams

    given: dict[str, Any] = json.loads(sys.argv[1])
    prompts, waits = given.pop("prompts", list(PROMPTS) * 4), given.pop("wait", False)
    shared = {
        "model": str(MODEL),
        "max_model_len": 512,
        "max_num_batched_tokens": 512,
        "max_num_seqs": 8,
        "dtype": "bfloat16",
        "seed": 0,
        "enforce_eager": True,
        "gpu_memory_utilization": 0.2,
    }
    llm = LLM(**{**shared, **given})
    scored = None if given.get("enable_lora") else 3  # on the CPU, vLLM cannot score prompts beside LoRA
    draw = SamplingParams(max_tokens=24, temperature=0, prompt_logprobs=scored, ignore_eos=True, detokenize=False)
    outputs = llm.generate([with_audio(one) for one in prompts], draw, use_tqdm=False)
    brims = "brim" in given.get("additional_config", {})
    result = {
        "tokens": [list(one.outputs[0].token_ids) for one in outputs],
        "scores": [_scores(one.prompt_logprobs) for one in outputs] if scored else [],
        "capacity": _capacity(llm.llm_engine),
        "blocks": llm.llm_engine.vllm_config.cache_config.num_gpu_blocks,
        "adapters": [sorted(one) for one in llm.collective_rpc("list_loras")] if given.get("enable_lora") else [],
        "reports": llm.collective_rpc("brim_report") if brims else [],
    }
    sys.stdout.write(MARK + json.dumps(result) + "\n")
    sys.stdout.flush()
    if waits:
        sys.stdin.read()  # until the process that started this has the answers of all


def with_audio(prompt: Any) -> Any:
    """One that has `hertz` holds a second of that tone."""
    if not isinstance(prompt, dict) or "hertz" not in prompt:
        return prompt
    import numpy

    from tests.vllm.hearing import SAMPLES_A_SECOND

    tone = numpy.sin(numpy.arange(SAMPLES_A_SECOND) * 2 * numpy.pi * prompt["hertz"] / SAMPLES_A_SECOND)
    return {"prompt": prompt["prompt"], "multi_modal_data": {"audio": (tone.astype("float32"), SAMPLES_A_SECOND)}}


def _capacity(engine: Any) -> int | None:
    """Tokens of the KV cache as vLLM says them; None where its core is another process."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_capacity

    core = getattr(engine.engine_core, "engine_core", None)
    if core is None:
        return None
    capacity: int = get_kv_cache_capacity(engine.vllm_config, core.scheduler.kv_cache_config)[0]
    return capacity


def _scores(of_prompt: list[Any]) -> list[list[tuple[int, int, float]]]:
    """Ids, ranks and log-probabilities for every token of a prompt but the first."""
    return [sorted((token, one.rank, one.logprob) for token, one in place.items()) for place in of_prompt[1:]]


if __name__ == "__main__":
    main()
