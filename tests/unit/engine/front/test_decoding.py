"""Text out of single tokens, beside what the same tokenizers make of all tokens at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from brim.engine.front.decoding import MOST_PENDING, StreamingDecoder, WindowDecoder, text_decoder

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers")

from tokenizers import decoders, models, pre_tokenizers  # noqa: E402

UNFINISHED = "\N{REPLACEMENT CHARACTER}"
SPECIAL = ("<s>", "</s>")
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
PIECES = [b"a", b" the", b".", b"\xe2\x82", b"\xac b", "é€".encode(), b"\xf0\x9f", b"\x98\x80", UNFINISHED.encode()]


@cache
def byte_letters() -> list[str]:
    """The letters that byte-level tokenizers write for bytes, in the order of the bytes."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = iter(range(256, 512))
    letters = [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]
    assert sorted(letters) == sorted(pre_tokenizers.ByteLevel.alphabet())
    return letters


def tokenizer_of(vocab: Sequence[str], decoder: Any, model: Any = models.BPE, **options: Any) -> Any:
    entries = {token: number for number, token in enumerate([*SPECIAL, *vocab])}
    made = model(entries, []) if model is models.BPE else model(entries)
    backend = tokenizers.Tokenizer(made)
    backend.decoder = decoder
    backend.add_special_tokens(list(SPECIAL))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **options)


@cache
def byte_level() -> Any:
    letters = byte_letters()
    pieces = ["".join(letters[byte] for byte in piece) for piece in PIECES]
    return tokenizer_of(list(dict.fromkeys([*pieces, *letters])), decoders.ByteLevel())


WORDS = ["▁the", "▁a", "b", "▁", "▁▁", "▁€", "é", ".", "▁" + UNFINISHED, UNFINISHED]


@cache
def byte_fallback() -> Any:
    """As Llama 2 and its like write it."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return tokenizer_of([*WORDS, *BYTES], decoders.Sequence(steps))


@cache
def byte_fallback_unstripped() -> Any:
    """As Gemma writes it."""
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return tokenizer_of([*WORDS, *BYTES], decoders.Sequence(steps))


@cache
def metaspace() -> Any:
    return tokenizer_of(WORDS, decoders.Metaspace())


@cache
def word_piece() -> Any:
    words = ["the", "a", "##b", "##ing", ".", "n't", "do", "##" + UNFINISHED]
    return tokenizer_of(words, decoders.WordPiece(), models.WordLevel)


@cache
def word_piece_cleaned() -> Any:
    """Cleaned up by transformers instead of the decoder, which takes spaces away that lie before the last token."""
    words = ["the", "a", "##b", "##ing", ".", "n", "##'t", "do", "'", "s"]
    decoder = decoders.WordPiece(cleanup=False)
    return tokenizer_of(words, decoder, models.WordLevel, clean_up_tokenization_spaces=True)


MADE: list[Callable[[], Any]] = [byte_level, byte_fallback, byte_fallback_unstripped, metaspace, word_piece]
STRANGE = 5000  # an id that the tokenizer does not have: vocabularies of models are padded


def tokens_of(make: Callable[[], Any], numbers: list[int]) -> list[int]:
    """Numbers as ids: special ones, some words, and often the same few bytes."""
    size = len(make())
    return [STRANGE if number < 0 else number % size for number in numbers]


def whole(tokenizer: Any, tokens: list[int]) -> str:
    return str(tokenizer.decode(tokens, skip_special_tokens=True))


def only_grows(tokenizer: Any, tokens: list[int]) -> bool:
    """No token changes complete characters of those before it, so that a stream can say what all of them say."""
    text = whole(tokenizer, tokens)
    return all(
        text.startswith(whole(tokenizer, tokens[:count]).rstrip(UNFINISHED)) for count in range(1, len(tokens) + 1)
    )


def streamed(decoder: Any, tokens: Sequence[int]) -> str:
    return "".join(decoder.push(token) for token in tokens) + decoder.close()


words = st.integers(-1, 12)
numbers = st.lists(
    st.one_of(
        st.lists(words, max_size=6),
        st.lists(st.integers(0, 300), max_size=8),
        st.lists(st.sampled_from([140, 141, 200, 220, 240, 255]), max_size=3 * MOST_PENDING),
        st.lists(st.sampled_from([0, 1, -1]), max_size=2 * MOST_PENDING),  # nothing of it is text
    ),
    max_size=6,
).map(lambda lists: [number for each in lists for number in each])


@pytest.mark.parametrize("make", MADE, ids=lambda make: make.__name__)
@given(numbers=numbers)
@settings(max_examples=150, deadline=None)
def test_the_text_is_that_of_all_tokens_at_once(make: Callable[[], Any], numbers: list[int]) -> None:
    tokenizer, tokens = make(), tokens_of(make, numbers)
    text = whole(tokenizer, tokens)
    backend = tokenizer.backend_tokenizer
    fast = streamed(text_decoder(tokenizer), tokens)
    window = streamed(WindowDecoder(lambda ids: backend.decode(ids, skip_special_tokens=True)), tokens)
    if make in (byte_fallback, byte_fallback_unstripped) and text.count(UNFINISHED) >= MOST_PENDING:
        return  # settled in parts, and bytes that are wrong only together are right again
    if only_grows(tokenizer, tokens):
        assert (fast, window) == (text, text)


@given(content=st.binary(max_size=4 * MOST_PENDING), places=st.lists(st.integers(0, 80), max_size=60))
@example(content=b"\xe2\x82" * 30, places=list(range(60)))
@example(content=b"\xf0\x9f\x98\x80" * 10 + b"\x80" * 20 + b"\xe2\x82\xac", places=list(range(80)))
@settings(max_examples=300, deadline=None)
def test_any_bytes_come_out_as_python_shows_them(content: bytes, places: list[int]) -> None:
    tokenizer = byte_level()
    vocab = tokenizer.get_vocab()
    tokens = []
    for place, byte in enumerate(content):
        tokens.append(vocab[byte_letters()[byte]])
        if place in places:
            tokens.append(place % 2)  # special tokens between the bytes of a character
    assert streamed(text_decoder(tokenizer), tokens) == content.decode("utf-8", errors="replace")


def ids(tokenizer: Any, *tokens: str) -> list[int]:
    return [tokenizer.convert_tokens_to_ids(token) for token in tokens]


def test_a_wrong_byte_leaves_the_characters_before_it_and_ends_nothing() -> None:
    """The library's stream raises at the token behind it, and at every one after that."""
    tokenizer = byte_fallback()
    tokens = ids(tokenizer, "▁a", "<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "▁the", "b", "<0xC3>", "<0xA9>")
    stream = tokenizers.decoders.DecodeStream(skip_special_tokens=True)
    for token in tokens[:5]:
        stream.step(tokenizer.backend_tokenizer, token)
    with pytest.raises(Exception, match="Invalid prefix"):
        stream.step(tokenizer.backend_tokenizer, tokens[5])
    decoder = text_decoder(tokenizer)
    assert [decoder.push(token) for token in tokens] == ["a", "", "", "€", "", UNFINISHED + " the", "b", "", "é"]
    assert decoder.close() == ""


def test_tokens_without_text_do_not_come_between_the_bytes_of_a_character() -> None:
    tokenizer = byte_level()
    first, second, third = ids(tokenizer, *(byte_letters()[byte] for byte in "€".encode()))
    for nothing in (0, STRANGE):
        tokens = [first, *[nothing] * 3 * MOST_PENDING, second, *[nothing] * 3 * MOST_PENDING, third]
        assert streamed(text_decoder(tokenizer), tokens) == "€"


def test_a_character_behind_any_number_of_lone_bytes_is_whole() -> None:
    tokenizer = byte_level()
    for count in range(3 * MOST_PENDING):
        for character in ("😀", "€", "é"):
            content = b"\x80" * count + character.encode() + b"!"
            tokens = ids(tokenizer, *(byte_letters()[byte] for byte in content))
            assert streamed(text_decoder(tokenizer), tokens) == UNFINISHED * count + character + "!"


def test_any_number_of_wrong_bytes_leaves_the_character_before_them() -> None:
    tokenizer = byte_fallback()
    for count in range(3 * MOST_PENDING):
        tokens = ids(tokenizer, "<0xE2>", "<0x82>", "<0xAC>", *["<0xFF>"] * count, "▁a")
        assert streamed(text_decoder(tokenizer), tokens) == "€" + UNFINISHED * count + " a"


def test_the_first_space_of_a_text_is_dropped_once_however_late_it_comes() -> None:
    tokenizer = byte_fallback()
    for count in range(3 * MOST_PENDING):
        tokens = [0] * count + ids(tokenizer, "▁", "▁the")
        assert streamed(text_decoder(tokenizer), tokens) == " the"


@given(
    st.sampled_from([byte_level, byte_fallback, byte_fallback_unstripped, metaspace]),
    st.lists(st.sampled_from(["the", "a", "b", "é", "€"]), min_size=1, max_size=12),
    st.data(),
)
def test_a_text_that_goes_on_from_a_prompt_keeps_its_first_space(
    make: Callable[[], Any], words: list[str], data: st.DataObject
) -> None:
    tokenizer = make()
    vocab = tokenizer.get_vocab()
    spaced = [token for word in words for token in (f"▁{word}", f"Ġ{word}", word) if token in vocab]
    tokens = ids(tokenizer, *spaced) or [2]
    cut = data.draw(st.integers(1, len(tokens)))
    whole, prompt = (str(tokenizer.decode(some, skip_special_tokens=True)) for some in (tokens, tokens[:cut]))
    assert prompt + streamed(text_decoder(tokenizer, tokens[:cut]), tokens[cut:]) == whole


def test_special_tokens_are_spelled_out_where_they_are_shown() -> None:
    for tokenizer in (byte_level(), byte_fallback()):
        start, end = ids(tokenizer, *SPECIAL)
        word = next(token for token in range(2, 20) if tokenizer.decode([token]).strip())
        text = tokenizer.decode([word])
        tokens = [start, word, end, word, start]
        assert streamed(text_decoder(tokenizer), tokens) == tokenizer.decode([word, word])
        assert streamed(text_decoder(tokenizer, shown=[end]), tokens) == f"{text}</s>{text}"
        assert streamed(text_decoder(tokenizer, shown=[start, end]), tokens) == f"<s>{text}</s>{text}<s>"
        everything = tokenizer.decode(tokens, skip_special_tokens=False)
        assert streamed(text_decoder(tokenizer, shown=None), tokens) == everything


def test_unfinished_text_that_cannot_be_split_is_settled_whole() -> None:
    """A tokenizer may show one replacement character for any number of bytes."""
    decoder = WindowDecoder(lambda tokens: UNFINISHED if tokens else "")
    pieces = [decoder.push(7) for _ in range(MOST_PENDING)]
    assert pieces == [""] * (MOST_PENDING - 1) + [UNFINISHED]
    assert not decoder.pending
    assert not decoder.settled  # the library's stream would show that character again


def test_what_is_incomplete_comes_at_the_end() -> None:
    tokenizer = byte_fallback()
    decoder = text_decoder(tokenizer)
    assert [decoder.push(token) for token in ids(tokenizer, "▁a", "<0xE2>", "<0x82>")] == ["a", "", ""]
    assert decoder.close() == UNFINISHED * 2
    assert text_decoder(tokenizer).close() == ""


@pytest.mark.parametrize("make", [byte_level, byte_fallback], ids=lambda make: make.__name__)
@pytest.mark.parametrize("plain", [False, True], ids=["streaming", "window"])
@pytest.mark.parametrize("byte", [0x80, 0xE2, None], ids=["continuation", "beginning", "special"])
def test_a_run_that_is_no_text_looks_at_few_tokens_at_a_time(
    make: Callable[[], Any], plain: bool, byte: int | None
) -> None:
    """Counted, not timed: tokens that are decoded for each token, however long the run is."""
    tokenizer = make()
    backend = tokenizer.backend_tokenizer
    letter = byte_letters()[byte or 0] if make is byte_level else BYTES[byte or 0]
    token = 0 if byte is None else tokenizer.get_vocab()[letter]
    looked_at: list[int] = []

    def decode(tokens: list[int]) -> str:
        looked_at.append(len(tokens))
        return str(backend.decode(tokens, skip_special_tokens=True))

    decoder: Any = WindowDecoder(decode) if plain else StreamingDecoder(backend)
    decoder._decode = decode
    text = ""
    for count in range(1, 1001):
        text += decoder.push(token)
        if byte is not None:  # some is always handed out
            assert len(text) > count - MOST_PENDING
    assert text + decoder.close() == ("" if byte is None else UNFINISHED * 1000)
    assert max(looked_at) <= 2 * MOST_PENDING
    assert sum(looked_at) < 1000 * 4 * MOST_PENDING


def test_which_tokenizers_the_library_streams_for() -> None:
    class Overridden(transformers.PreTrainedTokenizerFast):  # type: ignore[misc]
        def _decode(self, *args: Any, **kwargs: Any) -> str:
            return str(super()._decode(*args, **kwargs)).upper()

    class Foreign:
        def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
            return "x" * len(tokens)

    overridden = Overridden(tokenizer_object=metaspace().backend_tokenizer)
    assert all(isinstance(text_decoder(make()), StreamingDecoder) for make in MADE)
    for tokenizer in (word_piece_cleaned(), overridden, Foreign()):
        assert isinstance(text_decoder(tokenizer), WindowDecoder)
    assert streamed(text_decoder(overridden), ids(overridden, "▁the", "▁a")) == "THE A"


def test_spaces_that_transformers_cleans_up_are_cleaned_up_where_they_still_can_be() -> None:
    tokenizer = word_piece_cleaned()
    assert streamed(text_decoder(tokenizer), ids(tokenizer, "the", ".", "a", "##b")) == "the. ab"
    # the space before "n" was handed out before it was known that "n't" would come
    assert streamed(text_decoder(tokenizer), ids(tokenizer, "do", "n", "##'t", "a")) == "do n't a"


class Failing:
    """A tokenizer that cannot decode one of its tokens."""

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool) -> str:
        if 13 in tokens:
            raise ValueError("13 is no token")
        return bytes(tokens).decode(errors="replace")


def test_an_error_of_the_tokenizer_passes_and_takes_nothing_with_it() -> None:
    decoder = text_decoder(Failing())
    assert [decoder.push(token) for token in b"ab\xe2"] == ["a", "b", ""]
    for _ in range(2):
        with pytest.raises(ValueError, match="13 is no token"):
            decoder.push(13)
    assert [decoder.push(token) for token in b"\x82\xacc"] == ["", "€", "c"]
    assert decoder.close() == ""


def test_an_id_that_the_library_cannot_take_is_refused_and_leaves_the_stream_as_it_was() -> None:
    decoder = text_decoder(metaspace())
    first, second = ids(metaspace(), "▁the", "▁a")
    assert decoder.push(first) == "the"
    with pytest.raises((OverflowError, TypeError)):
        decoder.push(-1)
    assert decoder.push(second) == " a"
