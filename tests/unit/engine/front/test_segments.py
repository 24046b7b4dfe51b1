"""Segments are joined to the tokens of the whole text, whatever the tokenizer does between its special tokens."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers")
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from brim.engine.front.segments import SegmentTokenizer
from brim.model.packaged import packaged_folder

WORDS = ("a", "b", "ab", "▁", "▁a", "▁b", "▁ab", "x", "<", ">", "|", "s", "/", "i", "n", "A", "é", " ", "Ġ", "Ġa")


def made(special: list[AddedToken], pre: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE({word: number for number, word in enumerate(WORDS)}, [], unk_token="x"))
    backend.pre_tokenizer, backend.decoder = pre, decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens(special)
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def plain(text: str) -> AddedToken:
    return AddedToken(text, special=True, normalized=False)


@cache
def tokenizers() -> dict[str, Any]:
    borders = [plain("<s>"), plain("</s>"), plain("<|in|>")]
    return {
        "packaged": AutoTokenizer.from_pretrained(str(packaged_folder("brim-tiny"))),
        "byte level": made(borders, pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "metaspace at the first": made(borders, pre_tokenizers.Metaspace(prepend_scheme="first")),
        "metaspace at each": made(borders, pre_tokenizers.Metaspace(prepend_scheme="always")),
        "prepended": made(borders, pre_tokenizers.Whitespace(), normalizers.Prepend("▁")),
        "greedy strip": made(
            [*borders, AddedToken("<a>", special=True, normalized=False, lstrip=True, rstrip=True)],
            pre_tokenizers.ByteLevel(),
        ),
        "one in another": made([*borders, plain("<s><s>"), plain("a<s>")], pre_tokenizers.ByteLevel()),
        "single words": made(
            [*borders, AddedToken("ab", special=True, normalized=False, single_word=True)], pre_tokenizers.ByteLevel()
        ),
    }


PIECES = st.sampled_from(["<s>", "</s>", "<|in|>", "<a>", "<|im_start|>", "a", "b", "ab", " ", "  ", "é", "A", "x<"])
TEXTS = st.lists(st.lists(PIECES, max_size=12).map("".join), min_size=1, max_size=4)


@pytest.mark.parametrize("name", list(tokenizers()))
@given(texts=TEXTS)
def test_the_tokens_are_those_of_the_whole(name: str, texts: list[str]) -> None:
    tokenizer = tokenizers()[name]
    segments = SegmentTokenizer(tokenizer, most_tokens=8)
    for text in texts * 2:
        assert segments.tokens(text) == tokenizer(text, add_special_tokens=False)["input_ids"]


class Counted:
    """A tokenizer that counts the letters it is given."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer, self.letters = tokenizer, 0
        self.backend_tokenizer = tokenizer.backend_tokenizer
        self.added_tokens_decoder = tokenizer.added_tokens_decoder

    def __call__(self, text: str, **more: Any) -> Any:
        self.letters += len(text)
        return self._tokenizer(text, **more)


def test_only_what_is_new_is_tokenised() -> None:
    counted = Counted(tokenizers()["byte level"])
    segments = SegmentTokenizer(counted, most_tokens=1000)
    segments.tokens("<s>a b</s>" * 2)
    before = counted.letters
    segments.tokens("<s>a b</s>" * 3 + "<s>ab")
    assert counted.letters - before == len("<s>ab")


def test_a_tokenizer_that_looks_across_its_special_tokens_is_given_whole_texts() -> None:
    class Odd(Counted):
        def __call__(self, text: str, **more: Any) -> Any:
            return {"input_ids": [len(text)]}

    segments = SegmentTokenizer(Odd(tokenizers()["byte level"]), most_tokens=1000)
    assert segments.tokens("<s>a<s>b") == [8]
    assert segments.tokens("<s>a<s>bb") == [9]


def test_what_is_kept_is_bounded() -> None:
    segments = SegmentTokenizer(tokenizers()["byte level"], most_tokens=20)
    for number in range(50):
        segments.tokens("<s>" + "a b " * (number % 7) + "</s>" * 3)
        assert segments._kept_tokens == sum(map(len, segments._kept.values())) <= 20
