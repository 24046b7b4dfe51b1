"""Text out of tokens that come one at a time: in goes a token, out come the characters that it completes.

`text_decoder` chooses: the library's own streaming decoder where the tokenizer is one of the library's fast ones, and
a window over the last tokens where it is any other object with a `decode`. Both look at a bounded number of tokens,
whatever the tokens are: lone bytes that never become a character are settled after some, as the tokenizer shows them.

The text is what the tokenizer makes of all tokens at once, wherever that only grows. It does not with byte fallback,
where a byte that is wrong makes wrong bytes of the characters before it: those have been handed out, and stay.

Errors of the tokenizer pass through `push` and `close`. A `push` that raised has not taken the token; a caller that
catches the error may still `close`. Does not know stop strings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

MOST_PENDING = 16  # tokens without a complete character, before some are settled
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a tokenizer shows for the first bytes of a character

Decode = Callable[[list[int]], str]


class TextDecoder(Protocol):
    """Tokens in, whole characters out."""

    def push(self, token: int) -> str:
        """The characters that are complete now that this token is known."""

    def close(self) -> str:
        """What is left when no token follows, complete or not."""


def text_decoder(tokenizer: Any, before: Sequence[int] = (), shown: Sequence[int] | None = ()) -> TextDecoder:
    """What turns the tokens of one answer into text. Special tokens are left out, but for those `shown`; None: all are.

    `before` are tokens whose text this one goes on from, if it does: some tokenizers take the space off the first word.
    """
    if shown is None:
        return _plain_decoder(tokenizer, before, skip_special=False)
    decoder = _plain_decoder(tokenizer, before)
    if not shown:
        return decoder
    spelled = {token: str(tokenizer.decode([token], skip_special_tokens=False)) for token in shown}
    return SpellingDecoder(decoder, spelled, lambda: _plain_decoder(tokenizer))


def _plain_decoder(tokenizer: Any, before: Sequence[int] = (), *, skip_special: bool = True) -> TextDecoder:
    def decode(tokens: list[int]) -> str:
        return str(tokenizer.decode(tokens, skip_special_tokens=skip_special))

    context = list(before[-MOST_PENDING:])
    if context and decode(context).endswith(_UNFINISHED):
        context = []  # the text begins inside of a character
    backend = _backend(tokenizer)
    if backend is None:
        return WindowDecoder(decode, context)
    return StreamingDecoder(backend, context, skip_special=skip_special)


def _backend(tokenizer: Any) -> Any:
    """The library's tokenizer inside one of transformers, None where `decode` does more than to call it."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

    kind = type(tokenizer)
    ordinary = (
        isinstance(backend, Tokenizer)
        and isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.decode is PreTrainedTokenizerBase.decode
        and kind._decode is PreTrainedTokenizerFast._decode
    )
    return backend if ordinary and not _cleans_up(tokenizer, backend) else None


def _cleans_up(tokenizer: Any, backend: Any) -> bool:
    """Spaces before punctuation are taken away. For BPE the library does so only where it is forced to."""
    if type(backend.model).__name__ == "BPE":
        return bool(
            getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
        )
    return bool(getattr(tokenizer, "clean_up_tokenization_spaces", False))


class WindowDecoder:
    """Decodes the tokens that no character came of yet, behind a few that have become text.

    Those few give the tokenizer its context: some take the space off the first word of a text.
    """

    def __init__(self, decode: Decode, context: Sequence[int] = ()) -> None:
        self._decode = decode
        self.context = list(context)
        self._before = decode(self.context) if context else ""
        self.pending: list[int] = []

    @property
    def settled(self) -> bool:
        """All tokens have become text, which ends with a whole character."""
        return not self.pending and not self._before.endswith(_UNFINISHED)

    def push(self, token: int) -> str:
        pending = [*self.pending, token]
        now = self._decode(self.context + pending)
        if now.endswith(_UNFINISHED) or now == self._before:
            if len(pending) < MOST_PENDING:
                self.pending = pending
                return ""
            return self._settle_some(pending, now)
        return self._settle(pending, self._after_context(pending, now))

    def close(self) -> str:
        if not self.pending:
            return ""
        return self._settle(self.pending, self._after_context(self.pending, self._decode(self.context + self.pending)))

    def _settle(self, tokens: list[int], text: str) -> str:
        """These tokens have become this text for good."""
        before = self._decode(tokens)
        self.context, self._before, self.pending = tokens, before, []
        return text

    def _after_context(self, tokens: list[int], now: str) -> str:
        if now.startswith(self._before):
            return now[len(self._before) :]
        return self._decode(tokens)  # they changed what was handed out already: they stand for themselves

    def _settle_some(self, pending: list[int], now: str) -> str:
        """Settle all but the last tokens, which may still become a character."""
        # twice, as the first space of a text spells nothing either
        silent = {token for token in set(pending) if self._decode([*self.context, token, token]) == self._before}
        spelling = [token for token in pending if token not in silent]
        if silent and self._decode(self.context + spelling) == now:  # special, or unknown: they spell nothing
            self.pending = spelling
            return ""
        context, before = self.context, self._before
        if not now.startswith(before):  # as in `_after_context`
            context, before = [], ""
            now = self._decode(pending)
        for count in range(len(pending) - 1, 0, -1):
            first = self._decode(context + pending[:count])
            # a split inside of a character shows: each of its halves has a replacement character of its own
            if first.startswith(before) and now == first + self._decode(context + pending[count:])[len(before) :]:
                self.context, self._before, self.pending = context, before, pending[count:]
                return first[len(before) :]
        return self._settle(pending, now[len(before) :])


class SpellingDecoder:
    """Spells some special tokens out. Text is complete before and after one: each begins a decoder of its own."""

    def __init__(self, first: TextDecoder, spelled: Mapping[int, str], renew: Callable[[], TextDecoder]) -> None:
        self._decoder = first
        self._spelled = spelled
        self._renew = renew

    def push(self, token: int) -> str:
        spelled = self._spelled.get(token)
        if spelled is None:
            return self._decoder.push(token)
        text = self._decoder.close() + spelled
        self._decoder = self._renew()
        return text

    def close(self) -> str:
        return self._decoder.close()


class StreamingDecoder:
    """The library's streaming decoder, which is several times as fast; a window takes over where it cannot go on.

    It raises where text changes that it has given out, and goes on raising; and it decodes all tokens again that did
    not become text yet, however many. The window does neither, and hands back as soon as a character is complete.
    """

    def __init__(self, backend: Any, context: Sequence[int] = (), *, skip_special: bool = True) -> None:
        from tokenizers.decoders import DecodeStream

        self._backend = backend
        self._decode: Decode = partial(backend.decode, skip_special_tokens=skip_special)
        self._new_stream = partial(DecodeStream, skip_special_tokens=skip_special)
        self._context = list(context)
        self._step = self._new_stream(ids=self._context).step
        self._pending: list[int] = []
        self._window: WindowDecoder | None = None

    def push(self, token: int) -> str:
        if self._window is not None:
            return self._push_to_window(self._window, token)
        if len(self._pending) == MOST_PENDING - 1:
            return self._take_over(token)
        try:
            piece: str | None = self._step(self._backend, token)
        except Exception:  # noqa: BLE001  # the library raises nothing more precise; the window raises what is real
            return self._take_over(token)
        if piece is None:
            self._pending.append(token)
            return ""
        if self._pending:
            self._pending.append(token)
            self._context, self._pending = self._pending, []
        else:
            self._context = [token]
        return piece

    def close(self) -> str:
        window = self._window or self._opened_window()
        return window.close()

    def _take_over(self, token: int) -> str:
        """Go on with a window, from the last token that has become text."""
        self._window = self._opened_window()
        return self._push_to_window(self._window, token)

    def _opened_window(self) -> WindowDecoder:
        window = WindowDecoder(self._decode, self._context)
        window.pending = list(self._pending)
        return window

    def _push_to_window(self, window: WindowDecoder, token: int) -> str:
        piece = window.push(token)
        if window.settled:
            self._step = self._new_stream(ids=window.context).step
            self._context, self._pending, self._window = window.context, [], None
        return piece
