"""A processor whose tokenizer reads only those control tokens that a chat template or the processor itself has written.

A processor writes the tokens of media into the text of a prompt and tokenises that itself: private characters that
stand for plain text (`requests/control_tokens.py`) are still in it then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from brim.engine.requests.control_tokens import ChatText, ControlTokens


def with_plain_contents(processor: Any, prompt: ChatText) -> Any:
    """The processor for this prompt; itself, where nothing in it looks like a control token and is none."""
    if not prompt.plain:
        return processor
    found = copy(processor)
    found.tokenizer = _PlainContents(processor.tokenizer, prompt.plain)
    return found


class _PlainContents:
    """A tokenizer for the texts of a processor."""

    def __init__(self, tokenizer: Any, plain: Mapping[str, str]) -> None:
        self._tokenizer = tokenizer
        self._plain = plain
        self._controls = ControlTokens(tokenizer)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(
        self, text: Sequence[str], *, return_tensors: str | None = None, add_special_tokens: bool = True, **_: Any
    ) -> Any:
        """Options for padding and lengths are left out: there is one text, and it is taken as it is."""
        from transformers import BatchEncoding

        before = list(self._tokenizer("")["input_ids"]) if add_special_tokens else []
        ids = [before + self._controls.tokens(ChatText(one, self._plain), self._encode) for one in text]
        masks = [[1] * len(one) for one in ids]
        return BatchEncoding({"input_ids": ids, "attention_mask": masks}, tensor_type=return_tensors)

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])
