"""Grammars compiled for one tokenizer, by llguidance: in go grammars, out come constraints on tokens.

The tokenizer's vocabulary is read once, which takes about a second for a large one: `prepare` does it before the first
request. Compiling may be done in any thread and leaves the interpreter to others; what was compiled is kept for later
requests, each of which gets a copy.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from brim.engine.requests.grammar import Constraint, Grammar, GrammarKind
from brim.engine.weights.builtin import ByteTokenizer
from brim.errors import InvalidRequest, first_line

_KEPT = 64  # compiled grammars
_JSON_OPTIONS = {"whitespace_pattern": r"[ \n\t]{0,16}"}  # a model could write spaces for ever
_SAMPLE = '{"a": ["b'  # a text that a grammar may force


class Grammars:
    """All grammars of one model."""

    def __init__(self, tokenizer: Any, vocab: int, eos_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab = vocab
        self._eos_ids = list(eos_ids)
        self._compiled = lru_cache(maxsize=_KEPT)(self._compile)

    def prepare(self) -> None:
        """Read the vocabulary, where a grammar could be followed at all."""
        if _library() is not None and self._tokenizer is not None and self._eos_ids:
            _ = self._tokens

    def check(self, grammar: Grammar) -> None:
        """Refuse a grammar that cannot be followed; a later request finds it compiled."""
        self._compiled(grammar)

    def start(self, grammar: Grammar) -> Constraint:
        """A constraint on one answer."""
        return _Matched(self._compiled(grammar).deep_copy())

    def _compile(self, grammar: Grammar) -> Any:
        library = _library()
        if library is None:
            raise InvalidRequest("grammar: answers that follow one need llguidance: pip install 'brim[serve]'")
        if self._tokenizer is None:
            raise InvalidRequest("grammar: the model has no tokenizer; leave it out, or give the engine one")
        if not self._eos_ids:
            raise InvalidRequest("grammar: the model has no token that ends a text; leave it out")
        matcher = library.LLMatcher(self._tokens, _written(library, grammar), log_level=0)
        if matcher.is_error():
            raise InvalidRequest(f"grammar: it cannot be followed ({first_line(matcher.get_error())}); mend it")
        return matcher

    @cached_property
    def _tokens(self) -> Any:
        """The vocabulary as the library takes it."""
        library = _library()
        assert library is not None
        if isinstance(self._tokenizer, ByteTokenizer):
            return library.LLTokenizer(library.TokenizerWrapper(_Bytes(self._tokenizer, self._eos_ids[0])))
        backend = getattr(self._tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise InvalidRequest("grammar: this kind of tokenizer is not supported (it has no tokenizer.json)")
        from tokenizers import Tokenizer

        plain = Tokenizer.from_str(backend.to_str())
        plain.no_padding()
        plain.no_truncation()
        vocab = max(self._vocab, plain.get_vocab_size())
        found = library.LLTokenizer(plain.to_str(), n_vocab=vocab, eos_token=self._eos_ids)
        if found.decode_bytes(found.tokenize_str(_SAMPLE)) == _SAMPLE.encode():
            return found
        # It puts a space before a text: what a grammar forces is cut into tokens without it.
        return library.LLTokenizer(library.TokenizerWrapper(_Greedy(found)), eos_token=self._eos_ids)


class _Matched:
    """A constraint that llguidance follows. The bits are computed as soon as a token is known: launches only copy."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._allowed = self._bits()

    @property
    def allowed(self) -> np.ndarray:
        return self._allowed

    def take(self, token: int) -> str | None:
        if self._matcher.consume_token(token):
            self._allowed = self._bits()
        if not self._matcher.is_error():
            return None
        return f"grammar: it could not be followed any further ({first_line(self._matcher.get_error())})"

    def _bits(self) -> np.ndarray:
        return np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)


class _Greedy:
    """The vocabulary of another one; texts are cut into the longest tokens."""

    def __init__(self, tokens: Any) -> None:
        self._tokens = tokens
        self.eos_token_id = tokens.eos_token
        self.bos_token_id = None
        self.tokens = [tokens.decode_bytes([token]) for token in range(tokens.vocab_size)]
        self.special_token_ids = [token for token in range(tokens.vocab_size) if tokens.is_special_token(token)]

    def __call__(self, text: bytes | str) -> list[int]:
        found: list[int] = self._tokens.greedy_tokenize(text if isinstance(text, str) else text.decode())
        return found


class _Bytes:
    """Every byte is a token."""

    def __init__(self, tokenizer: ByteTokenizer, eos_id: int) -> None:
        self.eos_token_id = eos_id
        self.bos_token_id = None
        first = tokenizer("\x00")["input_ids"][-1]  # those before it are special
        self.special_token_ids = list(range(first))
        self.tokens = [f"<|{token}|>".encode() for token in range(first)] + [bytes([byte]) for byte in range(256)]
        self._first = first

    def __call__(self, text: bytes | str) -> list[int]:
        return [byte + self._first for byte in (text.encode() if isinstance(text, str) else text)]


def _written(library: Any, grammar: Grammar) -> str:
    """The grammar in the library's own form."""
    make = library.LLMatcher
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            schema = json.loads(grammar.text)
            return str(make.grammar_from_json_schema(json.dumps(schema), overrides=_JSON_OPTIONS))
        case GrammarKind.REGEX:
            return str(make.grammar_from_regex(grammar.text))
        case GrammarKind.LARK:
            return str(make.grammar_from_lark(grammar.text))


def _library() -> Any:
    """llguidance, None where it is not installed."""
    try:
        import llguidance
    except ImportError:
        return None
    return llguidance
