"""One engine of vLLM with Brim's worker and scheduler, a mixed load through it again and again, faults in its steps.

python -m tests.vllm.rescues '{"asynchronous": true, "every": 3}'

In: how it is started, and which faults, as JSON. Out: as JSON, every run whose answers differ from those of an
undisturbed one or that left something behind (`wrong`), and what was seen. Prompts are long (cut into chunks), short,
alike at their beginnings, scored, drawn by a seed; and the KV cache is too small for all of them.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

from tests.vllm.faults import PLACES, Chosen, Faults, always_with, larger_than, never, once
from tests.vllm.starts import MARK, MODEL, with_audio

STARTED = {
    "model": str(MODEL),
    "max_model_len": 256,
    "max_num_batched_tokens": 96,
    "max_num_seqs": 6,
    "block_size": 32,
    "num_gpu_blocks_override": 16,
    "dtype": "float32",
    "seed": 0,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.2,
    "worker_cls": "brim.vllm.BrimWorker",
    "scheduler_cls": "brim.vllm.BrimScheduler",
    "additional_config": {"brim": {"budget": "256MiB", "canary": "4MiB", "store": False}},
}


def main() -> None:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    given: dict[str, Any] = json.loads(sys.argv[1])
    if given.get("asynchronous"):
        _schedule_ahead()
    from vllm import LLM

    llm = LLM(**{**STARTED, **given.get("engine", {})})
    (report,) = llm.collective_rpc("brim_report")
    found = _Runs(llm, *_load(given), same=_same if given.get("compared", True) else _as_long).all(given)
    scheduler = type(llm.llm_engine.engine_core.engine_core.scheduler).__name__
    sys.stdout.write(MARK + json.dumps({**found, "rescue": report["rescue"], "scheduler": scheduler}) + "\n")


def _schedule_ahead() -> None:
    """vLLM plans no step ahead on the CPU, for want of a use; its code for it runs there as well."""
    from vllm.platforms.cpu import CpuPlatform

    real = CpuPlatform.check_and_update_config.__func__  # type: ignore[attr-defined]

    def updated(cls: Any, vllm_config: Any) -> None:
        real(cls, vllm_config)
        vllm_config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(updated)  # type: ignore[method-assign,assignment]


class _Runs:
    def __init__(self, llm: Any, prompts: list[Any], draws: list[Any], same: Callable[[Any, Any], bool]) -> None:
        self._llm = llm
        self._same = same
        self._faults = Faults(llm)
        self._prompts, self._draws = prompts, draws
        self._run(never)  # what is compiled at a first call
        self._undisturbed()
        self._steps, self._preempted = self._faults.steps, self._faults.preempted
        self._wrong: list[Any] = []
        self._raised = self._rescues = 0

    def all(self, given: dict[str, Any]) -> dict[str, Any]:
        """The faults that were asked for."""
        for step in range(1, self._steps + 1, given.get("every", 1)):
            for place in given.get("places", PLACES[:6]):
                self._expect(once(step, place), f"{place} at step {step}")
        self._draws = [self._draws[-1], *self._draws[1:]]  # several faults may cut the one that is drawn by a seed
        unstable = sorted(self._unstable)
        self._undisturbed()
        chance = random.Random(given.get("seed", 0))
        for number in range(given.get("random", 0)):
            self._expect(*_random(chance, number, self._steps))
        seen = {"steps": self._steps, "raised": self._raised, "rescues": self._rescues, "preempted": self._preempted}
        self._expect(larger_than(40), "more than 40 tokens")
        lowered = self._faults.scheduler._brim_retry.condition.step_tokens
        ended = self._ended()
        return {**seen, "lowered": lowered, "ended": ended, "unstable": unstable, "wrong": self._wrong}

    def _undisturbed(self) -> None:
        again, self._expected = self._run(never), self._run(never)
        pairs = enumerate(zip(again, self._expected, strict=True))
        self._unstable = {index for index, (one, two) in pairs if not self._same(one, two)}  # in vLLM itself

    def _expect(self, chosen: Chosen, name: str) -> None:
        answers = self._run(chosen)
        self._raised += self._faults.raised
        self._rescues += self._faults.scheduler._brim_retry.condition.rescues
        left = {what: count for what, count in self._faults.left().items() if count}
        wrong = self._different(answers)
        if wrong or left:
            self._wrong.append({"fault": name, "answers": wrong, "left": left})

    def _different(self, answers: list[Any]) -> list[int]:
        pairs = enumerate(zip(answers, self._expected, strict=True))
        return [index for index, (one, two) in pairs if index not in self._unstable and not self._same(one, two)]

    def _ended(self) -> dict[str, Any]:
        """A request that never fits; it is told so, and the others are as ever."""
        victim = 1
        first = int(self._llm.request_counter.counter)
        answers = self._run(always_with(first + victim))
        left = {what: count for what, count in self._faults.left().items() if count}
        others = [index for index in self._different(answers) if index != victim]
        (answer,) = self._last[victim].outputs
        return {"wrong": others, "left": left, "reason": answer.finish_reason, "words": str(answer.stop_reason)}

    def _run(self, chosen: Chosen) -> list[Any]:
        self._llm.reset_prefix_cache()
        self._faults.begin(chosen)
        self._last = self._llm.generate(self._prompts, self._draws, use_tqdm=False)
        self._faults.chosen = never
        return [_answer(one) for one in self._last]


def _load(given: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """Prompts, and what is asked of each; those of `prompts` are only answered."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    shared = {"max_tokens": 14, "ignore_eos": True, "detokenize": False, "temperature": 0}
    if "prompts" in given:
        prompts = [with_audio(one) for one in given["prompts"]]
        return prompts, [SamplingParams(**shared) for _ in prompts]
    asked: list[dict[str, Any]] = [
        {"temperature": 0.9, "seed": 7},  # first, so that it is never cut: on the CPU vLLM cannot draw by a seed then
        {"logprobs": 2},
        {},
        {},
        {"logprobs": 3},
        {"prompt_logprobs": 3},
        {"prompt_logprobs": 2, "logprobs": 1},
        {},
    ]
    if not given.get("seeded", True):
        asked[0] = {}
    if "grammar" in given:
        asked[2] = asked[4] = {"structured_outputs": StructuredOutputsParams(regex=given["grammar"])}
    return [{"prompt_token_ids": one} for one in _ids()], [SamplingParams(**{**shared, **one}) for one in asked]


def _ids() -> list[list[int]]:
    chance = random.Random(1)

    def ids(count: int) -> list[int]:
        return [chance.randrange(20, 400) for _ in range(count)]

    alike = ids(64)
    return [ids(5), ids(20), ids(150), alike + ids(10), alike + ids(30), ids(120), ids(33), alike + ids(1)]


def _random(chance: random.Random, number: int, steps: int) -> tuple[Chosen, str]:
    """Some steps at random, each at a place of its own."""
    chosen = [once(chance.randint(1, steps), chance.choice(PLACES)) for _ in range(chance.randint(1, 5))]
    return (lambda *given: any(one(*given) for one in chosen)), f"random {number}"


def _answer(output: Any) -> Any:
    (one,) = output.outputs
    return {
        "tokens": list(one.token_ids),
        "reason": one.finish_reason,
        "logprobs": _scores(one.logprobs or []),
        "scores": _scores((output.prompt_logprobs or [])[1:]),
    }


def _scores(places: Any) -> list[list[tuple[int, float]]]:
    return [sorted((token, one.logprob) for token, one in place.items()) for place in places]


def _as_long(one: Any, two: Any) -> bool:
    """Where vLLM's own tokens depend on what else is in a step."""
    return (len(one["tokens"]), one["reason"]) == (len(two["tokens"]), two["reason"])


def _same(one: Any, two: Any) -> bool:
    """Scores may differ by the order in which rows of other batches are added."""
    flat = [[row for place in answer["logprobs"] + answer["scores"] for row in place] for answer in (one, two)]
    return (
        (one["tokens"], one["reason"]) == (two["tokens"], two["reason"])
        and [row[0] for row in flat[0]] == [row[0] for row in flat[1]]
        and all(abs(ours[1] - theirs[1]) < 1e-3 for ours, theirs in zip(*flat, strict=True))
    )


if __name__ == "__main__":
    main()
