"""The sampling parameters of a request (`SamplingParams`), checked.

Values that are wrong for any model are refused when the record is created; `check` refuses what is wrong for a
vocabulary. Knows nothing of tensors: `sampler.py` does the sampling.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from itertools import chain

from brim.engine.requests.grammar import Grammar
from brim.errors import InvalidRequest
from brim.surrogates import half_pair_at

GREEDY_BELOW = 1e-5  # temperatures below count as 0: the division would overflow
MAX_ALTERNATIVES = 20
MAX_TOP_LOGITS = 1024  # the sampler's own limit for `torch.topk`
MAX_CHOICES = 64
MAX_STOPS = 16
MAX_STOP_LENGTH = 1024  # characters: as much text may be held back as a possible beginning of a stop string
MAX_IDS = 1024  # entries of logit_bias and of stop_token_ids: they are sent to the device with every token
MAX_ALLOWED_IDS = 1 << 16  # entries of allowed_token_ids: they become bits of the vocabulary, once
MAX_BANNED = 512  # sequences of tokens that may not be completed: each is compared with every new token
MAX_BANNED_LENGTH = 256  # tokens of one
MAX_BIAS = 100.0

INT_RANGES: dict[str, tuple[int, int]] = {
    "max_tokens": (1, 2**31 - 1),
    "top_k": (-1, 2**31 - 1),
    "n": (1, MAX_CHOICES),
    "min_tokens": (0, 2**31 - 1),
    "seed": (-(2**63), 2**63 - 1),
    "logprobs": (0, MAX_ALTERNATIVES),
    "prompt_logprobs": (0, MAX_ALTERNATIVES),
    "top_k_logits": (0, MAX_TOP_LOGITS),
}
FLAGS = ("ignore_eos", "speculate", "continues_prompt", "skip_special_tokens", "include_stop")
OPTIONAL = {"seed", "logprobs", "prompt_logprobs"}
FLOAT_RANGES: dict[str, tuple[float, float]] = {
    "temperature": (0.0, 100.0),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
FLOAT_RANGES_ABOVE: dict[str, tuple[float, float]] = {  # the lower bound itself is outside
    "repetition_penalty": (0.0, 10.0),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. `temperature` 0 and `top_p` 0 are greedy; `top_k` 0 or -1 samples from all tokens."""

    max_tokens: int = 128
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0  # over prompt and output
    presence_penalty: float = 0.0  # over output
    frequency_penalty: float = 0.0  # over output
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None  # alternatives to report; 0: the sampled token only
    logprob_token_ids: tuple[int, ...] = ()  # with `logprobs`: these are the alternatives, and not the likeliest
    prompt_logprobs: int | None = None
    top_k_logits: int = 0  # largest logits to keep of each token, as the model gave them; 0: none
    n: int = 1
    min_tokens: int = 0  # neither end of sequence nor stop ids before, and stop strings are not looked for
    speculate: bool = True  # where the engine does: the answer is the same, only faster
    grammar: Grammar | None = None  # what the answer must follow
    continues_prompt: bool = False  # the text goes on where the prompt ends: a space that it begins with stays
    shown_token_ids: tuple[int, ...] = ()  # special tokens that are spelled out in the text, which leaves them out else
    skip_special_tokens: bool = True  # False: all of them are spelled out
    include_stop: bool = False  # the text ends with the stop string, or with the token that ended it
    allowed_token_ids: tuple[int, ...] | None = None  # no others are drawn
    banned_sequences: tuple[tuple[int, ...], ...] = ()  # of tokens; what would complete one is not drawn

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_number(field.name, getattr(self, field.name))
        for name in FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise _refused(name, getattr(self, name), "true or false")
        if self.min_tokens > self.max_tokens:
            raise _refused("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens}")
        self._check_stops()
        self._check_bias()
        self._check_allowed()
        self._check_grammar()

    @property
    def greedy(self) -> bool:
        """The likeliest token is taken."""
        return self.temperature < GREEDY_BELOW or self.top_k == 1 or self.top_p == 0

    @property
    def needs_history(self) -> bool:
        """Earlier tokens change the logits (penalties)."""
        return self.repetition_penalty != 1 or self.presence_penalty != 0 or self.frequency_penalty != 0

    @property
    def plain_greedy(self) -> bool:
        """The argmax of the model's logits is enough."""
        return (
            self.greedy
            and not self.needs_history
            and not self.logit_bias
            and self.logprobs is None
            and self.min_tokens == 0
            and self.grammar is None
            and not self.limits_tokens
        )

    @property
    def alternatives(self) -> int | None:
        """Tokens that are scored beside the one that was drawn; None: no token is scored."""
        return self.logprobs if self.logprobs is None or not self.logprob_token_ids else len(self.logprob_token_ids)

    @property
    def limits_tokens(self) -> bool:
        """Some tokens are never drawn, or not behind some others."""
        return self.allowed_token_ids is not None or bool(self.banned_sequences)

    def check(self, vocab: int) -> None:
        """Refuse token ids, and more logits, than a vocabulary of this size has."""
        if self.top_k_logits > vocab:
            raise _refused("top_k_logits", self.top_k_logits, f"at most the size of the vocabulary, {vocab}")
        for name, ids in (
            ("stop_token_ids", self.stop_token_ids),
            ("logit_bias", tuple(token for token, _ in self.logit_bias)),
            ("allowed_token_ids", self.allowed_token_ids or ()),
            ("logprob_token_ids", self.logprob_token_ids),
            ("banned_sequences", tuple(chain.from_iterable(self.banned_sequences))),
        ):
            if ids and (token := max(ids)) >= vocab:
                raise _refused(name, token, f"a token id in 0..{vocab - 1}")

    def _check_number(self, name: str, value: object) -> None:
        if name in INT_RANGES:
            if value is None and name in OPTIONAL:
                return
            low, high = INT_RANGES[name]
            if not _is_int(value) or not low <= value <= high:  # type: ignore[operator]
                raise _refused(name, value, f"an integer in {low}..{high}")
        elif name in FLOAT_RANGES:
            least, most = FLOAT_RANGES[name]
            if not _is_number(value) or not least <= value <= most:  # type: ignore[operator]
                raise _refused(name, value, f"a number in [{least:g}, {most:g}]")
        elif name in FLOAT_RANGES_ABOVE:
            least, most = FLOAT_RANGES_ABOVE[name]
            if not _is_number(value) or not least < value <= most:  # type: ignore[operator]
                raise _refused(name, value, f"a number in ({least:g}, {most:g}]")

    def _check_stops(self) -> None:
        if not isinstance(self.stop, tuple) or len(self.stop) > MAX_STOPS:
            raise _refused("stop", self.stop, f"a tuple of at most {MAX_STOPS} strings")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise _refused("stop", text, "a string that is not empty")
            if len(text) > MAX_STOP_LENGTH:
                allowed = f"at most {MAX_STOP_LENGTH} characters long (it has {len(text)}): shorten it"
                raise _refused("stop", text, allowed)
            if (place := half_pair_at(text)) is not None:
                raise _refused("stop", text, f"Unicode text: its character {place} is half of a surrogate pair")
        for name in ("stop_token_ids", "shown_token_ids"):
            _check_ids(name, getattr(self, name), MAX_IDS)

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, tuple) or len(self.logit_bias) > MAX_IDS:
            raise _refused("logit_bias", self.logit_bias, f"a tuple of at most {MAX_IDS} pairs (token id, bias)")
        seen = set()
        for pair in self.logit_bias:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise _refused("logit_bias", pair, "a pair (token id, bias)")
            token, bias = pair
            if not _is_int(token) or token < 0:
                raise _refused("logit_bias", token, "a token id, 0 or above")
            if token in seen:
                raise _refused("logit_bias", token, "each token id once")
            if not _is_number(bias) or not -MAX_BIAS <= bias <= MAX_BIAS:
                raise _refused("logit_bias", bias, f"a number in [{-MAX_BIAS:g}, {MAX_BIAS:g}] (token {token})")
            seen.add(token)

    def _check_allowed(self) -> None:
        _check_ids("logprob_token_ids", self.logprob_token_ids, MAX_ALTERNATIVES)
        if self.logprob_token_ids and self.logprobs is None:
            raise _refused("logprob_token_ids", self.logprob_token_ids, "left out where logprobs is not given")
        if self.allowed_token_ids is not None:
            _check_ids("allowed_token_ids", self.allowed_token_ids, MAX_ALLOWED_IDS)
            if not self.allowed_token_ids:
                raise _refused("allowed_token_ids", (), "at least one token id; leave it out to allow all")
        if not isinstance(self.banned_sequences, tuple) or len(self.banned_sequences) > MAX_BANNED:
            raise _refused("banned_sequences", self.banned_sequences, f"a tuple of at most {MAX_BANNED} sequences")
        for tokens in self.banned_sequences:
            _check_ids("banned_sequences", tokens, MAX_BANNED_LENGTH)
            if not tokens:
                raise _refused("banned_sequences", tokens, "sequences that are not empty")

    def _check_grammar(self) -> None:
        if self.grammar is None:
            return
        if not isinstance(self.grammar, Grammar):
            raise _refused("grammar", self.grammar, "a Grammar, or None")
        if self.ignore_eos or self.min_tokens:
            name = "ignore_eos" if self.ignore_eos else "min_tokens"
            raise InvalidRequest(f"{name} is given, and so is a grammar, which decides where the answer ends; drop one")


def _check_ids(name: str, ids: object, most: int) -> None:
    if not isinstance(ids, tuple) or len(ids) > most:
        raise _refused(name, ids, f"a tuple of at most {most} token ids")
    if not ids or (set(map(type, ids)) == {int} and min(ids) >= 0):
        return  # the usual case, where there may be many
    for token in ids:
        if not _is_int(token) or token < 0:
            raise _refused(name, token, "a token id, 0 or above")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    # NaN and the infinities are floats; they fail every comparison with a finite range
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _refused(name: str, value: object, allowed: str) -> InvalidRequest:
    shown = repr(value)
    if len(shown) > 80:
        shown = shown[:77] + "..."
    return InvalidRequest(f"{name} is {shown}; it must be {allowed}")
