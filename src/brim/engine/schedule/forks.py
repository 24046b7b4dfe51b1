"""Answers to one prompt: the first computes it, the others fork from its blocks, copy-on-write.

They fork at the last token of the prompt. The window and the recurrent state of that point are gone one token later:
where there are any, the prompt stops there until its other answers have started.
"""

from __future__ import annotations

from collections.abc import Mapping

from brim.engine.kv.ledger import KvLedger
from brim.engine.requests.sequence import Sequence


class PromptForks:
    """Which running request a waiting one may share a prompt with. `requests` are all that wait or run, by key."""

    def __init__(self, requests: Mapping[tuple[str, int], Sequence], *, has_states: bool, has_windows: bool) -> None:
        self.early = has_states or has_windows  # what the last token of a prompt needs is gone one token later
        self._has_states = has_states
        self._requests = requests

    def parent(self, sequence: Sequence) -> Sequence | None:
        """The running request whose prompt a new answer to the same prompt may share."""
        request = sequence.request
        if request.index == 0 or len(sequence.tokens) > sequence.prompt_length:
            return None
        if request.params.prompt_logprobs is not None:
            return None  # every answer reports them, so every one computes its prompt
        parent = self._requests.get((request.id, 0))
        return parent if parent is not None and parent.slot is not None else None

    def comes_first(self, sequence: Sequence) -> bool:
        """Preempted, or an answer to a prompt that is being computed and can be shared when it has been."""
        if sequence.preemptions:
            return True
        parent = self.parent(sequence)
        return parent is not None and parent.computed < parent.prompt_length

    def possible(self, parent: Sequence, ledger: KvLedger) -> bool:
        """Whether all that the prompt's last token attends to is still there: blocks, and the state at that point."""
        last = parent.prompt_length - 1
        if self._has_states:
            return parent.computed == last
        assert parent.blocks is not None
        return ledger.can_fork(parent.blocks, parent.prompt_length) and (self.early or parent.computed > last)
