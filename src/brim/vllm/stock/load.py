"""The most demanding requests that vLLM's public API allows: long prompts, and everything that a sampler can do."""

from __future__ import annotations

import random
from typing import Any

Request = tuple[dict[str, Any], Any]  # a prompt, and how its answer is drawn
_LEAST_ID, _MARGIN = 3, 8  # ids of prompts: beyond most models' special tokens, below padding at the end


class DemandingRequests:
    """Makes them for the configuration of an engine; no two are alike, so that nothing is found in its prefix cache."""

    def __init__(self, config: Any) -> None:
        from vllm.platforms import current_platform

        model = config.model_config
        self._vocabulary: int = model.get_vocab_size()
        self._most_logprobs: int = model.max_logprobs
        self._seeds = not current_platform.is_cpu()  # there, vLLM's second draw by a seed fails
        drafts = config.speculative_config is not None
        self._without_drafts: dict[str, Any] = {} if drafts else {"min_p": 0.05, "logit_bias": {0: -1.0, 1: 0.5}}
        self._ids = random.Random(0)
        self._made = 0

    def request(self, prompt_tokens: int, answer_tokens: int, *, scored: bool) -> Request:
        """Every third one draws by a seed; a scored one asks for log-probabilities of its prompt."""
        from vllm import SamplingParams

        self._made += 1
        drawn = SamplingParams(
            max_tokens=answer_tokens,
            temperature=0.9,
            top_p=0.9,
            top_k=self._vocabulary - 1,
            frequency_penalty=0.5,
            presence_penalty=0.5,
            repetition_penalty=1.2,
            min_tokens=2,
            **self._without_drafts,
            logprobs=self._most_logprobs,
            prompt_logprobs=self._most_logprobs if scored else None,
            seed=self._made if self._seeds and self._made % 3 == 0 else None,
            ignore_eos=True,
            detokenize=False,
        )
        ids = self._ids.choices(range(_LEAST_ID, self._vocabulary - _MARGIN), k=prompt_tokens)
        return {"prompt_token_ids": ids}, drawn
