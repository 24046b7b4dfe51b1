"""Grammars compiled by llguidance: in go a vocabulary and a grammar, out comes a matcher with its first mask.

What the library's limits do not bound is the work of some schemas: fifty bytes can take minutes. A process that
compiles for strangers tries a grammar first in a process that may be killed (`brim.serve.prepare.trials`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from brim.engine.requests.grammar import Grammar, GrammarKind, json_options
from brim.errors import InvalidRequest, first_line

_LIMITS = {
    "max_lexer_states": 20_000,  # of one answer, 1 to 2 KB each
    "verbose_errors": False,  # errors go to clients, and the state of a parser is long
}
_SAMPLE = '{"a": ["b'  # a text that a grammar may force


@dataclass(frozen=True, slots=True)
class TokenVocabulary:
    """The tokens of a model, as another process can be told them."""

    tokenizer_json: str | None  # None: every byte is a token, behind the special ones
    size: int
    eos_ids: tuple[int, ...]
    special: int = 0

    def tokens(self) -> Any:
        """As the library takes them; this reads all of them, about a second for a large vocabulary."""
        library = need_library()
        if self.tokenizer_json is None:
            return library.LLTokenizer(library.TokenizerWrapper(_ByteTokens(self.special, self.eos_ids[0])))
        found = library.LLTokenizer(self.tokenizer_json, n_vocab=self.size, eos_token=list(self.eos_ids))
        if found.decode_bytes(found.tokenize_str(_SAMPLE)) == _SAMPLE.encode():
            return found
        # It puts a space before a text: what a grammar forces is cut into tokens without it.
        return library.LLTokenizer(library.TokenizerWrapper(_Greedy(found)), eos_token=list(self.eos_ids))


@dataclass(frozen=True, slots=True)
class Compiled:
    """A grammar for one vocabulary; answers begin with copies of its matcher."""

    matcher: Any
    first_mask: bytes


def compile_grammar(tokens: Any, grammar: Grammar) -> Compiled:
    """A matcher that has computed its first mask: a grammar that fails there is refused as one that makes no sense."""
    library = need_library()
    limits = library.LLParserLimits(**_LIMITS)
    matcher = library.LLMatcher(tokens, _written(library, grammar), log_level=0, limits=limits)
    mask = b"" if matcher.is_error() else matcher.compute_bitmask()
    if matcher.is_error():
        raise InvalidRequest(f"grammar: it cannot be followed ({first_line(matcher.get_error())}); mend it")
    return Compiled(matcher, mask)


def need_library() -> Any:
    try:
        import llguidance
    except ImportError:
        raise InvalidRequest("grammar: answers that follow one need llguidance: pip install 'brim[serve]'") from None
    return llguidance


def _written(library: Any, grammar: Grammar) -> str:
    """The grammar in the library's own form."""
    make = library.LLMatcher
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            try:
                schema = json.loads(grammar.text)
                return str(make.grammar_from_json_schema(json.dumps(schema), overrides=json_options(schema)))
            except (ValueError, RecursionError) as error:
                raise InvalidRequest(f"grammar: its schema cannot be read ({first_line(error)}); mend it") from None
        case GrammarKind.REGEX:
            return str(make.grammar_from_regex(grammar.text))
        case GrammarKind.LARK:
            return str(make.grammar_from_lark(grammar.text))
        case GrammarKind.EBNF:
            return _converted(grammar.text)
        case GrammarKind.PARTS:
            found = json.loads(grammar.text)
            named = [_part(library, one) for one in found["others"]]
            return json.dumps({"grammars": [{"name": "answer", "lark_grammar": found["lark"]}, *named]})


def _converted(ebnf: str) -> str:
    """EBNF as Lark."""
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        return str(gbnf_to_lark(ebnf))
    except RecursionError:
        raise InvalidRequest("grammar: its EBNF is nested too deeply; make it flatter") from None
    except Exception as error:  # noqa: BLE001 - the converter raises nothing more precise, and bare exceptions too
        raise InvalidRequest(f"grammar: its EBNF cannot be read ({first_line(error)}); mend it") from None


def _part(library: Any, entry: dict[str, str]) -> dict[str, Any]:
    """A grammar that another one refers to, under its name."""
    grammar = Grammar(GrammarKind(entry["kind"]), entry["text"])
    written = _written(library, grammar)
    if grammar.kind in (GrammarKind.LARK, GrammarKind.EBNF):
        return {"name": entry["name"], "lark_grammar": written}
    return {**json.loads(written)["grammars"][0], "name": entry["name"]}


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


class _ByteTokens:
    """Every byte is a token, behind the special ones."""

    def __init__(self, special: int, eos_id: int) -> None:
        self.eos_token_id = eos_id
        self.bos_token_id = None
        self.special_token_ids = list(range(special))
        self.tokens = [f"<|{token}|>".encode() for token in range(special)] + [bytes([byte]) for byte in range(256)]
        self._special = special

    def __call__(self, text: bytes | str) -> list[int]:
        return [byte + self._special for byte in (text.encode() if isinstance(text, str) else text)]
