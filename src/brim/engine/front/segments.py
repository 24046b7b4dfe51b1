"""A text as tokens when most of it was tokenised before: conversations grow at their end and lose their beginning.

A tokenizer cuts a text at its special tokens before it does anything else, so that the text between two of them has
the same tokens in every text. Those segments are kept, up to a number of tokens, the last used ones; the result is that
of the whole text. Where a tokenizer could do otherwise (special tokens that reach into the text around them, one that
is not built on `tokenizers`), or does with the first text, every text is tokenised as a whole.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


class SegmentTokenizer:
    """Texts as tokens, without what a tokenizer puts around them."""

    def __init__(self, tokenizer: Any, most_tokens: int) -> None:
        self._tokenizer = tokenizer
        self._borders = _borders(tokenizer)
        self._trusted = False
        self._most = most_tokens
        self._kept_tokens = 0
        self._kept: OrderedDict[str, list[int]] = OrderedDict()

    def tokens(self, text: str) -> list[int]:
        if self._borders is None:
            return self._whole(text)
        segments = self._borders.cut(text)
        found = [token for segment in segments for token in self._tokens_of(segment)]
        if not self._trusted and len(segments) > 1:
            whole = self._whole(text)
            self._trusted = found == whole
            if not self._trusted:
                self._borders = None
                self._kept.clear()
                return whole
        return found

    def _tokens_of(self, segment: str) -> list[int]:
        found = self._kept.get(segment)
        if found is None:
            found = self._kept[segment] = self._whole(segment)
            self._kept_tokens += len(found)
            while self._kept_tokens > self._most:
                self._kept_tokens -= len(self._kept.popitem(last=False)[1])
        else:
            self._kept.move_to_end(segment)
        return found

    def _whole(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])


@dataclass(frozen=True, slots=True)
class _Borders:
    """Where a text is cut."""

    added: re.Pattern[str]  # as the tokenizer finds them: the leftmost, of those the longest
    plain: frozenset[str]  # those that take nothing of the text around them

    def cut(self, text: str) -> list[str]:
        """What is before the first special token, then each with what follows it."""
        starts = [match.start() for match in self.added.finditer(text) if match.group() in self.plain]
        places = [0, *(start for start in starts if start), len(text)]
        return [text[start:end] for start, end in pairwise(places)]


def _borders(tokenizer: Any) -> _Borders | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or getattr(tokenizer, "split_special_tokens", False):
        return None
    added = [one for one in tokenizer.added_tokens_decoder.values() if one.content and not one.normalized]
    plain = [one.content for one in added if one.content.strip() == one.content and not (one.lstrip or one.rstrip)]
    if not plain or any(one.single_word for one in added):
        return None
    longest_first = sorted((one.content for one in added), key=len, reverse=True)
    return _Borders(re.compile("|".join(map(re.escape, longest_first))), frozenset(plain))
