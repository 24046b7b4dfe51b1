"""Steps as vLLM's own scheduler outputs.

In: a `Step` and the KV cache that stands. Out: what its scheduler would send to a worker in such a step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brim.vllm.runner.media import LargestInput
from brim.vllm.runner.steps import Draw, Row, SchedulerLimits, Step

_ANSWER_TOKENS = 64  # more than any step draws
_SOME_TOKENS = [1, 2, 3]  # to which a restricted row is held
_FEW_WISHES: dict[Draw, dict[str, Any]] = {
    Draw.GREEDY: {"temperature": 0.0},
    Draw.PLAIN: {"temperature": 1.0},
    Draw.TOP_K: {"temperature": 1.0, "top_k": 50},
    Draw.TOP_P: {"temperature": 1.0, "top_p": 0.9},
}


@dataclass(frozen=True, slots=True)
class SamplerBounds:
    """What bounds the sampler of a model."""

    size: int
    most_logprobs: int  # that a request may ask for

    @property
    def score_bytes(self) -> int:
        """Of a token of a prompt that is scored: ids and log-probabilities, its own among them, and its rank."""
        return (self.most_logprobs + 1) * (8 + 4) + 8


class StepMaker:
    """Makes steps for one build; every request has a name of its own."""

    def __init__(
        self, cache: Any, config: Any, vocabulary: SamplerBounds, prefix: str, *, adapters: int = 0, drafts: int = 0
    ) -> None:
        self._blocks = cache.num_blocks
        self._specs = [group.kv_cache_spec for group in cache.kv_cache_groups]
        self._config = config  # vLLM's
        self._vocabulary = vocabulary
        self._prefix = prefix
        self._adapters = adapters  # of LoRA, that a step may use
        self._drafts = drafts  # that every step makes for the next one
        self._made = 0

    def opening(self, step: Step) -> Any:
        """A step whose requests come in with everything before it computed."""
        return self._starting([self._asked(row, step.drafts) for row in step.rows], [row.new for row in step.rows])

    def _starting(self, requests: list[Any], tokens: list[int]) -> Any:
        made = self._scheduled()
        made.scheduled_new_reqs = requests
        made.num_scheduled_tokens = {one.req_id: new for one, new in zip(requests, tokens, strict=True)}
        made.total_num_scheduled_tokens = sum(tokens)
        return made

    def encoding(self, largest: LargestInput, limits: SchedulerLimits) -> Any:
        """A step that encodes as many of the largest inputs as it may, and computes the first tokens that hold them."""
        room = min(limits.tokens(1), limits.longest)
        requests = [self._encoded(largest, room) for _ in range(min(largest.items, limits.most_rows))]
        tokens = shared_out(limits.tokens(len(requests)), [len(one.prompt_token_ids) for one in requests])
        made = self._starting(requests, tokens)
        made.scheduled_encoder_inputs = {one.req_id: [0] for one in requests}
        return made

    def verifying(self, step: Step, opening: Any) -> Any:
        """The step after it, in which every row verifies its draft."""
        from vllm.v1.core.sched.output import CachedRequestData

        names = list(opening.num_scheduled_tokens)
        rows = CachedRequestData.make_empty()
        rows.req_ids = names
        rows.num_computed_tokens = [row.past + row.new for row in step.rows]
        rows.num_output_tokens = [1] * len(names)
        rows.new_block_ids = [None] * len(names)
        made = self._scheduled()
        made.scheduled_cached_reqs = rows
        made.scheduled_spec_decode_tokens = {name: [0] * step.drafts for name in names}
        made.num_scheduled_tokens = dict.fromkeys(names, step.drafts + 1)
        made.total_num_scheduled_tokens = len(names) * (step.drafts + 1)
        return made

    def closing(self, opening: Any) -> Any:
        """A step in which nothing runs and the requests have ended."""
        made = _empty(0)
        made.finished_req_ids = set(opening.num_scheduled_tokens)
        made.free_encoder_mm_hashes = [
            feature.identifier for one in opening.scheduled_new_reqs for feature in one.mm_features
        ]
        return made

    def _scheduled(self) -> Any:
        made = _empty(len(self._specs))
        made.num_spec_tokens_to_schedule = self._drafts
        return made

    def _asked(self, row: Row, drafts: int) -> Any:
        return self._request([1] * (row.past + row.new), self._sampling(row), past=row.past, drafts=drafts)

    def _encoded(self, largest: LargestInput, room: int) -> Any:
        """A request with one of them, or with as much of its prompt as one request may have."""
        from vllm.multimodal.inputs import MultiModalFeatureSpec

        made = self._request(list(largest.prompt[:room]), self._sampling(Row(1, 0)))
        made.mm_features.append(
            MultiModalFeatureSpec(largest.item, largest.modality, f"{made.req_id}-media", largest.position)
        )
        return made

    def _request(self, prompt: list[int], sampling: Any, past: int = 0, drafts: int = 0) -> Any:
        from vllm.v1.core.sched.output import NewRequestData

        self._made += 1
        return NewRequestData(
            req_id=f"{self._prefix}-{self._made}",
            prompt_token_ids=prompt,
            mm_features=[],
            sampling_params=sampling,
            pooling_params=None,
            block_ids=tuple(self._block_ids(spec, len(prompt) + 1 + drafts + self._drafts) for spec in self._specs),
            num_computed_tokens=past,
            lora_request=self._adapter(self._made % (self._adapters + 1)),
            prefill_token_ids=prompt,
        )

    def _adapter(self, number: int) -> Any:
        """One of the dummies that upstream's warm-up registers, by its name; the first request of a round has none."""
        if not number:
            return None
        from vllm.lora.request import LoRARequest

        return LoRARequest(f"warmup_{number}", number, "/not/a/real/path")

    def _block_ids(self, spec: Any, tokens: int) -> list[int]:
        """Blocks of one request in a group of layers, by upstream's own count; never the null block."""
        count = spec.max_num_blocks_per_req(self._config, tokens)
        return [1 + index % (self._blocks - 1) for index in range(count)]

    def _sampling(self, row: Row) -> Any:
        """Everything that a request may ask of the sampler, by upstream's own list."""
        from vllm.sampling_params import SamplingParams

        if row.draw is not Draw.EVERYTHING:
            return SamplingParams(**_FEW_WISHES[row.draw], max_tokens=_ANSWER_TOKENS)
        draw = SamplingParams.for_sampler_warmup()
        draw.max_tokens = _ANSWER_TOKENS
        draw.top_k = self._vocabulary.size - 1
        draw.logprobs = self._vocabulary.most_logprobs
        draw.prompt_logprobs = self._vocabulary.most_logprobs if row.scored else None
        draw.seed = row.seed
        draw.allowed_token_ids = _SOME_TOKENS if row.restricted else None
        return draw


def shared_out(tokens: int, wanted: list[int]) -> list[int]:
    """How many tokens of a step each request gets: the first ones all that they want, every other at least one."""
    left, given = tokens - len(wanted), []
    for one in wanted:
        more = min(one - 1, left)
        given.append(1 + more)
        left -= more
    return given


def _empty(groups: int) -> Any:
    from vllm.v1.core.sched.output import SchedulerOutput

    made = SchedulerOutput.make_empty()
    made.num_common_prefix_blocks = [0] * groups
    return made
