"""Whether a model's class gives the same logits in this engine as by itself; a class that does not is refused.

In: a loaded, whole model. Two short prompts run through an engine of its own, in chunks, beside each other and with a
few tokens drawn, in a pool that is gone afterwards; then through the class's own forward, with the same weights and the
attention that it comes with. Out: nothing, or `UnsupportedModel` with the name of the class. Families that are tested
with every change (`brim.engine.weights.verified`) are not checked again.

What counts as equal is measured: the class's own forward over a whole text differs by rounding from its forward over
the parts of it, and the engine may differ by some times that. Knows nothing of longer texts, nor of images.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.loop import ServingLoop
from brim.engine.model import assemble
from brim.engine.pool.build import build_loop, free
from brim.engine.requests.params import SamplingParams
from brim.engine.requests.request import Request
from brim.engine.requests.sequence import Sequence as RunningSequence
from brim.engine.schedule.events import SequenceEvent, TokenLogprobs
from brim.engine.settings import EngineSettings
from brim.engine.weights.load import LoadedModel
from brim.engine.weights.text_model import TextModel
from brim.engine.weights.verified import is_verified
from brim.errors import BrimError, UnsupportedModel, first_line
from brim.probes.translate import translated
from brim.records.progress import Stage, Told, silent

if TYPE_CHECKING:
    from brim.engine.ranks.ranks import Ranks

PROMPT_TOKENS = (27, 18)
STEP_TOKENS = 16  # the first prompt is cut into 16 and 11, the second into 5 and 13
DRAWN = 4
ALTERNATIVES = 8  # tokens whose logits are compared at a position, beside the one that is there
TIMES_OWN_ERROR = 4.0  # a hundred families in bf16 and fp32 stayed below 2.5
LEAST_ROUNDING, LEAST = 8, 1e-4  # units of rounding of the weights' type: by chance an own error may be 0
MOST = 0.25  # of the spread of the logits: a class whose own error is larger is no measure
_REMEDY = "run it with transformers itself, or with another engine"


@dataclass(frozen=True, slots=True)
class LogitAgreement:
    """How far apart the engine and the class are, in units of the spread of the logits."""

    error: float  # of the engine, in the part of a text where it is largest
    own_error: float  # of the class: whole texts beside texts in parts
    tolerance: float

    @property
    def holds(self) -> bool:
        return self.error <= self.tolerance


@dataclass(frozen=True, slots=True)
class _ScoredText:
    """A text that the engine has run, with its scores by the parts that were computed at once."""

    tokens: tuple[int, ...]
    parts: tuple[tuple[int, tuple[TokenLogprobs, ...]], ...]  # (place of the first token that is scored, scores)


def verify(
    loaded: LoadedModel,
    settings: EngineSettings,
    device: torch.device,
    ranks: Ranks | None = None,
    told: Told = silent,
) -> None:
    """Refuse a model whose class this engine cannot run, or runs otherwise than the class itself.

    Ranks that will share the model hold all of it when they come here: the first checks it for all of them.
    """
    if is_verified(loaded.full_config, loaded.config):
        return
    told(Stage("verify", type(loaded.model).__name__))
    if ranks is None:
        _verify(loaded, settings, device)
        return
    with ranks.ends_alike("the check of the model's class"):
        if ranks.rank == 0:
            _verify(loaded, settings, device)


def _verify(loaded: LoadedModel, settings: EngineSettings, device: torch.device) -> None:
    found = agreement(loaded, settings, device)
    if not found.holds:
        raise UnsupportedModel(
            f"{_name(loaded)} gives other logits in Brim's engine than by itself: they are {found.error:.2g} of their "
            f"spread apart, where rounding explains {found.tolerance:.2g}; {_REMEDY}"
        )


def agreement(loaded: LoadedModel, settings: EngineSettings, device: torch.device) -> LogitAgreement:
    """Run both and compare. The model is left as it was found."""
    with _foreign_errors(loaded), _left_as_found(loaded, device):
        scored, recurrent = _by_engine(loaded, settings, device)
        own = _OwnForward(loaded, device)
        pairs = [pair for text in scored for pair in _errors(text, own, recurrent)]
    error, own_error = (max(column) for column in zip(*pairs, strict=True))
    least = max(own.roundings * torch.finfo(TextModel(loaded.model).dtype).eps, LEAST)
    return LogitAgreement(error, own_error, min(max(TIMES_OWN_ERROR * own_error, least), MOST))


def _name(loaded: LoadedModel) -> str:
    return f"{type(loaded.model).__name__} ('{getattr(loaded.full_config, 'model_type', '')}')"


@contextmanager
def _foreign_errors(loaded: LoadedModel) -> Iterator[None]:
    """What a class raises where it is run as the engine runs it."""
    try:
        with translated():
            yield
    except BrimError:
        raise
    except Exception as error:
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UnsupportedModel(f"{_name(loaded)} does not run in Brim's engine ({what}); {_REMEDY}") from error


@contextmanager
def _left_as_found(loaded: LoadedModel, device: torch.device) -> Iterator[None]:
    """Whatever attention the parts of a model are set to in here, they get back what they had; so does the device."""
    found = [config for module in loaded.model.modules() if (config := getattr(module, "config", None)) is not None]
    before = [(config, getattr(config, "_attn_implementation", None)) for config in found]
    try:
        yield
    finally:
        for config, name in before:
            config._attn_implementation_internal = name
        if device.type == "cuda":
            torch.cuda.empty_cache()


# -- the engine ----------------------------------------------------------------------------------------------------


def _by_engine(loaded: LoadedModel, settings: EngineSettings, device: torch.device) -> tuple[list[_ScoredText], bool]:
    """(texts with their scores, whether anything recurs), by an engine that is gone afterwards."""
    longest = min(max(PROMPT_TOKENS) + DRAWN, loaded.max_positions)
    small = replace(
        settings,
        max_batch=len(PROMPT_TOKENS),
        max_batch_tokens=STEP_TOKENS,
        max_length=longest,
        kv_dtype="auto",
        reuse_prefixes=False,
        compile=False,
        attention=settings.attention if device.type == "cuda" else "auto",  # of ranks, the check is on the host
    )
    model = assemble(loaded, small, device)
    try:
        loop = build_loop(model, len(PROMPT_TOKENS) * (longest + 2 * small.block_size))
        return _run(loop, _prompts(loaded, longest - DRAWN)), model.sizes.state_bytes > 0
    finally:
        free(model)


def _prompts(loaded: LoadedModel, longest: int) -> list[tuple[int, ...]]:
    """Tokens that stand for text: those with a meaning of their own (an image, an end) are left out."""
    numbers = Random(0)
    special = {token for config in (loaded.full_config, loaded.config) for token in _special_tokens(config)}
    allowed = [token for token in range(min(loaded.vocab, 4096)) if token not in special]
    return [tuple(numbers.choices(allowed, k=min(length, longest))) for length in PROMPT_TOKENS]


def _special_tokens(config: Any) -> Iterator[int]:
    for name, value in vars(config).items():
        if "token_id" in name or "token_index" in name:
            yield from (one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int))


def _run(loop: ServingLoop, prompts: list[tuple[int, ...]]) -> list[_ScoredText]:
    """Every prompt to its last token, all of them at once."""
    params = SamplingParams(
        max_tokens=DRAWN, temperature=0.0, ignore_eos=True, logprobs=ALTERNATIVES, prompt_logprobs=ALTERNATIVES
    )
    requests = [
        Request(id=f"check/{number}", prompt=prompt, params=params, seed=0, max_tokens=DRAWN)
        for number, prompt in enumerate(prompts)
    ]
    sequences = [RunningSequence(request, list(request.prompt)) for request in requests]
    events: list[SequenceEvent] = []
    for sequence in sequences:
        loop.submit(sequence)
    while not loop.idle:
        events += loop.step()
    return [_scored(sequence, [event for event in events if event.sequence is sequence]) for sequence in sequences]


def _scored(sequence: RunningSequence, events: list[SequenceEvent]) -> _ScoredText:
    """A chunk of the prompt is a part, and what was drawn is one."""
    chunks = [(event.prompt_start, tuple(event.prompt_logprobs)) for event in events if event.prompt_logprobs]
    drawn = tuple(event.logprobs for event in events if event.logprobs is not None)
    return _ScoredText(tuple(sequence.tokens), (*chunks, (sequence.prompt_length, drawn)))


# -- the class -----------------------------------------------------------------------------------------------------


class _OwnForward:
    """The class as it comes: its own attention, its own cache, one text at a time."""

    def __init__(self, loaded: LoadedModel, device: torch.device) -> None:
        self._loaded = loaded
        self._device = device
        self._backbone: Any = TextModel(loaded.model).backbone
        self._two_ways = bool(self._backbone._supports_sdpa)
        self._takes_positions = "position_ids" in inspect.signature(type(loaded.model).forward).parameters

    @property
    def roundings(self) -> int:
        """What may be rounded otherwise at the least; where all is rounded in one way, its own error says less."""
        return LEAST_ROUNDING if self._two_ways else 2 * LEAST_ROUNDING

    def whole(self, tokens: Sequence[int]) -> torch.Tensor:
        """[tokens, vocabulary] of a text, computed at once."""
        return self._logits(tokens, [len(tokens)], "eager")

    def in_parts(self, tokens: Sequence[int], recurrent: bool) -> torch.Tensor:
        """The same of a prompt in two parts, with single tokens behind it; with another attention, where it has two.

        Mixers with a state take a prompt at once, as in `generate`: not all go on from a state with several tokens.
        """
        prompt = len(tokens) - DRAWN
        first = () if recurrent else (prompt * 2 // 5,)
        return self._logits(
            tokens, [*first, prompt, *range(prompt + 1, len(tokens) + 1)], "sdpa" if self._two_ways else "eager"
        )

    @torch.inference_mode()
    def _logits(self, tokens: Sequence[int], ends: Sequence[int], attention: str) -> torch.Tensor:
        self._backbone.set_attn_implementation(attention)
        ids = torch.tensor([tokens], device=self._device)
        found, cache, start = [], None, 0
        for end in ends:
            # As `generate` does: not every class counts what is in the cache.
            place = torch.arange(start, end, device=self._device)[None]
            told = {"position_ids": place} if self._takes_positions else {}
            output = self._loaded.model(input_ids=ids[:, start:end], past_key_values=cache, use_cache=True, **told)
            found.append(output.logits[0].float())
            cache, start = getattr(output, "past_key_values", None), end
            if cache is None:
                raise UnsupportedModel(f"{_name(self._loaded)} returns no cache (past_key_values) to go on with")
            if bool(found[-1].isnan().any()):
                raise UnsupportedModel(f"{_name(self._loaded)} makes no numbers with these weights")
        return torch.cat(found)


# -- both ----------------------------------------------------------------------------------------------------------


def _errors(text: _ScoredText, own: _OwnForward, recurrent: bool) -> Iterator[tuple[float, float]]:
    """(error of the engine, own error) of each part: the median of its positions.

    Not the largest: near a tie, a router may choose another expert for a token or two whatever rounds otherwise.
    """
    whole, in_parts = own.whole(text.tokens), own.in_parts(text.tokens, recurrent)
    for start, scores in text.parts:
        rows = slice(start - 1, start - 1 + len(scores))
        found = [_apart(*position) for position in zip(scores, whole[rows], in_parts[rows], strict=True)]
        yield median(error for error, _ in found), median(error for _, error in found)


def _apart(scores: TokenLogprobs, whole: torch.Tensor, in_parts: torch.Tensor) -> tuple[float, float]:
    """(error of the engine, own error) at a position; the engine may be close to either of the class's ways."""
    pairs = dict([*scores.top, (scores.token, scores.logprob)])
    tokens, engine = (torch.tensor(list(some), device=whole.device) for some in (pairs, pairs.values()))
    first, second = (logits.log_softmax(-1)[tokens] for logits in (whole, in_parts))
    rounding = 2 * torch.finfo(torch.float32).eps * float(first.abs().max())  # of logarithms that are large, and alike
    spread = max(float(whole[whole.isfinite()].std()), torch.finfo(torch.float32).tiny)
    errors = [
        max(0.0, float((one - other).square().mean().sqrt().nan_to_num(math.inf)) - rounding) / spread
        for one, other in ((engine, first), (engine, second), (first, second))
    ]
    return min(errors[:2]), errors[2]
