"""Single tokens as text, for log-probabilities."""

from __future__ import annotations

from functools import lru_cache
from typing import Any


class TokenTexts:
    """A token's text as the tokenizer shows it alone; a part of a character is a replacement character."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.of = lru_cache(maxsize=65_536)(self._of)

    def _of(self, token: int) -> str:
        if self._tokenizer is None:
            return f"token_id:{token}"
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is not None:
            return self._with_space(token)
        return str(self._tokenizer.decode([token], skip_special_tokens=False))

    def _with_space(self, token: int) -> str:
        """Decoders take the space off the first token of a text, so it is decoded behind another one."""
        twice = str(self._tokenizer.decode([token, token], skip_special_tokens=False))
        once = str(self._tokenizer.decode([token], skip_special_tokens=False))
        rest = twice[len(once) :] if twice.startswith(once) else once
        return rest if rest.endswith(once) else once

    def whole(self, tokens: tuple[int, ...]) -> str:
        """The text of a prompt that was given as tokens."""
        if self._tokenizer is None:
            return ""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))
