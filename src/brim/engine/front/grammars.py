"""The grammars of one model: in go grammars, out come constraints on tokens.

The tokenizer's vocabulary is read once, which takes about a second for a large one: `prepare` does it before the first
request. Compiling may be done in any thread and leaves the interpreter to others; what was compiled is kept for later
requests, each of which gets a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from brim.engine.front.compiled import Compiled, TokenVocabulary, compile_grammar, need_library
from brim.engine.requests.grammar import Constraint, Grammar
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import InvalidRequest, first_line

_KEPT = 64  # compiled grammars


class Grammars:
    """All grammars of one model."""

    def __init__(self, tokenizer: Any, vocab: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._eos_ids = tuple(eos_ids)
        self._kept: dict[Grammar, Compiled] = {}  # those used last are at the end
        self._keeping = Lock()

    def prepare(self) -> None:
        """Read the vocabulary; where no grammar can be followed, the first request with one is told why."""
        with suppress(InvalidRequest):
            self.read()

    def read(self) -> None:
        """Read the vocabulary, or refuse grammars with the reason why none can be followed."""
        _ = self._tokens

    def knows(self, grammar: Grammar) -> bool:
        """Whether it is compiled already."""
        return grammar in self._kept

    def check(self, grammar: Grammar) -> None:
        """Refuse a grammar that cannot be followed; a later request finds it compiled."""
        self._compiled(grammar)

    def start(self, grammar: Grammar) -> Constraint:
        """A constraint on one answer."""
        return _Matched(self._compiled(grammar))

    def _compiled(self, grammar: Grammar) -> Compiled:
        with self._keeping:
            found = self._kept.pop(grammar, None)
            if found is not None:
                self._kept[grammar] = found
                return found
        made = compile_grammar(self._tokens, grammar)
        with self._keeping:
            self._kept[grammar] = made
            while len(self._kept) > _KEPT:
                del self._kept[next(iter(self._kept))]
        return made

    @cached_property
    def _tokens(self) -> Any:
        return self.vocabulary.tokens()

    @property
    def vocabulary(self) -> TokenVocabulary:
        need_library()
        if self._tokenizer is None:
            raise InvalidRequest("grammar: the model has no tokenizer; leave it out, or give the engine one")
        if not self._eos_ids:
            raise InvalidRequest("grammar: the model has no token that ends a text; leave it out")
        if isinstance(self._tokenizer, ByteTokenizer):
            special = self._tokenizer("\x00")["input_ids"][-1]  # the first of the bytes; those before it are special
            return TokenVocabulary(None, self._vocab, self._eos_ids, special)
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InvalidRequest("grammar: this kind of tokenizer is not supported (it has no tokenizer.json)")
        from tokenizers import Tokenizer

        plain = Tokenizer.from_str(backend.to_str())
        plain.no_padding()
        plain.no_truncation()
        return TokenVocabulary(plain.to_str(), max(self._vocab, plain.get_vocab_size()), self._eos_ids)


class _Matched:
    """A constraint that llguidance follows. The bits are computed as soon as a token is known: launches only copy."""

    fixed = False

    def __init__(self, compiled: Compiled) -> None:
        self._matcher = compiled.matcher.deep_copy()
        self._allowed = _bits(compiled.first_mask)

    @property
    def allowed(self) -> np.ndarray:
        return self._allowed

    def take(self, token: int) -> str | None:
        if self._matcher.consume_token(token):
            self._allowed = _bits(self._matcher.compute_bitmask())
        if not self._matcher.is_error():
            return None
        said = first_line(self._matcher.get_error())
        return f"grammar: the answer came to a place where it cannot be followed any further ({said}); mend it"


def _bits(mask: bytes) -> np.ndarray:
    return np.frombuffer(mask, dtype=np.uint8)
