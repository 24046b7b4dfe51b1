"""From the names of models to a model that can be served: weights loaded and checked, ranks joined, encoders ready.

In: what was asked for (`Sources`), settings, and a probe that counts what is loaded. Out: `LoadedEngine`, which any
size of the KV pool is built on. If something fails on the way, no encoder stays behind.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.attention.paged import NAME, register
from brim.engine.device.cpu_kernels import keep_few_kernels
from brim.engine.device.segments import let_segments_grow
from brim.engine.drafts.checks import check_draft
from brim.engine.encoders.among_ranks import RankEncoders
from brim.engine.encoders.feature_store import FeatureStore
from brim.engine.encoders.pool import Encoders
from brim.engine.encoders.start import EncoderPlace, cache_rows, start_encoders
from brim.engine.front.validation import find_tokenizer
from brim.engine.media.allowed import AllowedMedia
from brim.engine.model import ServingModel, assemble, assemble_draft
from brim.engine.recurrent.states import recurrent_mixers
from brim.engine.settings import EngineSettings
from brim.engine.verify import verify
from brim.engine.weights.builtin import BUILTIN_CONFIG, BUILTIN_NAME, ByteTokenizer, lacks_weights
from brim.engine.weights.from_hub import on_this_machine
from brim.engine.weights.load import LoadedModel, load
from brim.engine.weights.parts import ModelPart
from brim.probes.translate import translated
from brim.progress import showing
from brim.records.progress import Progress, Stage, Told

if TYPE_CHECKING:
    from brim.engine.ranks.ranks import Ranks

Model = str | Path | dict[str, Any] | LoadedModel  # a name, a folder, a config, or loaded already


@dataclass(frozen=True, slots=True)
class Sources:
    """What an engine is made of, as it was asked for."""

    model: Model
    draft: Model | None
    load_format: str
    dtype: str
    tokenizer: Any
    seed: int


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine without its KV pool."""

    loaded: LoadedModel
    draft: LoadedModel | None  # the model that drafts for it
    tokenizer: Any
    model: ServingModel
    allowed: AllowedMedia
    features: FeatureStore | None  # None: the engine encodes by itself
    encoders: Encoders | None
    ranks: Ranks | None
    seed: int  # of requests that give none; the same on all ranks
    progress: Progress  # only the first rank shows any

    @property
    def rank_errors(self) -> Callable[[], AbstractContextManager[None]]:
        return _errors_among(self.ranks)


def start(
    sources: Sources,
    settings: EngineSettings,
    *,
    device: str | None,
    probe: Any,
    progress: Progress,
    tensor_parallel: bool,
    encoders: Encoders | None,
) -> LoadedEngine:
    """Load everything; `encoders` were started for this model and these settings, or None: as the settings say."""
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if torch.device(place).type == "cuda":
        let_segments_grow()
    else:
        keep_few_kernels()
    register()
    sources = _on_this_machine(sources, progress)
    ranks: Ranks | None = None
    seed = secrets.randbits(63)
    if tensor_parallel:
        with closed_on_errors(encoders):
            ranks = _joined(place)
        seed = ranks.from_first(seed)
        progress = progress if ranks.rank == 0 else False
    if encoders is None and (ranks is None or ranks.rank == 0):  # one rank has them for all
        encoders = start_encoders(
            sources.model,
            settings,
            (EncoderPlace(place if ranks is None else str(ranks.device)),),
            load_format=sources.load_format,
            dtype=sources.dtype,
            seed=sources.seed,
        )
    loader = _Loader(sources, settings, probe)
    with closed_on_errors(encoders), probe, _errors_among(ranks)(), showing(progress) as told:
        apart = encoders is not None
        if ranks is not None:
            apart = bool(ranks.from_first(apart))
            place = "cpu"  # a whole model need not fit on one of several devices
        loaded = loader.target(ModelPart.DECODER if apart else ModelPart.WHOLE, place, told)
        verify(loaded, settings, torch.device(place), ranks, told)  # whole, before it is split
        told(Stage("load", "layers"))
        if ranks is not None:
            loaded, place = ranks.split(loaded), str(ranks.device)
        tokenizer = sources.tokenizer if sources.tokenizer is not None else find_tokenizer(loaded.folder)
        draft, drafting = loader.draft(loaded, tokenizer, place, told)
        made = _ready(encoders, ranks, told) if apart else None
        features = None if made is None else _features(made, settings, loaded, torch.device(place), ranks)
        model = assemble(loaded, settings, torch.device(place), ranks, drafting, features)
        allowed = _allowed(model, loaded, made)
    return LoadedEngine(loaded, draft, tokenizer, model, allowed, features, encoders, ranks, seed, progress)


@contextmanager
def closed_on_errors(encoders: Encoders | None) -> Iterator[None]:
    """No encoder outlives an engine that could not be made."""
    try:
        yield
    except BaseException:
        if encoders is not None:
            encoders.close()
        raise


def _joined(place: str) -> Ranks:
    from brim.engine.ranks.ranks import Ranks  # a second, and one rank does without

    return Ranks.join(place)


def _errors_among(ranks: Ranks | None) -> Callable[[], AbstractContextManager[None]]:
    if ranks is None:
        return nullcontext
    from brim.engine.ranks.ranks import rank_errors

    return rank_errors


def _on_this_machine(sources: Sources, progress: Progress) -> Sources:
    """The same, downloaded where they are names of the hub; the model that Brim makes up has no files at all."""
    if sources.model == BUILTIN_NAME:
        tokenizer = sources.tokenizer or ByteTokenizer()
        sources = replace(sources, model=BUILTIN_CONFIG, load_format="dummy", tokenizer=tokenizer)
    elif lacks_weights(sources.model):
        sources = replace(sources, load_format="dummy")
    with showing(progress) as told:
        model = on_this_machine(sources.model, sources.load_format, told)
        return replace(sources, model=model, draft=on_this_machine(sources.draft, sources.load_format, told))


class _Loader:
    """Loads weights to a place; a probe counts them."""

    def __init__(self, sources: Sources, settings: EngineSettings, probe: Any) -> None:
        self._sources = sources
        self._settings = settings
        self._probe = probe

    def target(self, part: ModelPart, place: str, told: Told) -> LoadedModel:
        told(Stage("load"))
        source = self._sources.model
        if isinstance(source, LoadedModel):
            return source
        return self._load(
            source,
            self._sources.load_format,
            place,
            progress=lambda done, total: told(Stage("load", "weights", done, total)),
            part=part,
        )

    def draft(
        self, target: LoadedModel, tokenizer: Any, place: str, told: Told
    ) -> tuple[LoadedModel | None, ServingModel | None]:
        """Load and assemble the draft model, if there is one and it can be one."""
        source = self._sources.draft
        if source is None:
            return None, None
        told(Stage("load", "draft model"))
        if isinstance(source, LoadedModel):
            loaded = source
        else:
            loaded = self._load(source, "dummy" if lacks_weights(source) else self._sources.load_format, place)
        max_length = self._settings.max_length or target.max_positions
        has_states = bool(recurrent_mixers(loaded.model))
        check_draft(loaded, target, max_length, has_states, (find_tokenizer(loaded.folder), tokenizer))
        return loaded, assemble_draft(loaded, self._settings, max_length, torch.device(place))

    def _load(self, source: str | Path | dict[str, Any], load_format: str, place: str, **options: Any) -> LoadedModel:
        asked = self._sources
        loaded = load(
            source,
            load_format=load_format,
            dtype=asked.dtype,
            device=place,
            attention=NAME,
            seed=asked.seed,
            **options,
        )
        self._count(loaded)
        return loaded

    def _count(self, loaded: LoadedModel) -> None:
        """Files are read in threads of their own, which a budget on the CPU does not see."""
        hold = getattr(self._probe, "hold", None)
        if hold is not None:
            with translated():
                hold([*loaded.model.parameters(), *loaded.model.buffers()])


def _ready(encoders: Encoders | None, ranks: Ranks | None, told: Told) -> Encoders | RankEncoders:
    """The encoders when they hold what they need; of ranks, all wait for those of the first."""
    if encoders is not None:
        encoders.start(told)
        if ranks is None:
            return encoders
    assert ranks is not None, "only other ranks do without encoders of their own"
    return RankEncoders(ranks, encoders)


def _features(
    encoders: Encoders | RankEncoders,
    settings: EngineSettings,
    loaded: LoadedModel,
    device: torch.device,
    ranks: Ranks | None,
) -> FeatureStore:
    """Where features come from."""
    max_length = settings.max_length or loaded.max_positions
    return FeatureStore(encoders, cache_rows(settings, encoders.facts, max_length), device, ranks)


def _allowed(model: ServingModel, loaded: LoadedModel, encoders: Encoders | RankEncoders | None) -> AllowedMedia:
    """How large media may be, for this model, these settings and these encoders."""
    if model.media is None:
        return AllowedMedia()
    allowed = model.media.allowed(loaded, model.settings, model.max_length)
    if encoders is None:
        return allowed
    return allowed.lowered(encoders.facts.call_patches, encoders.facts.audio_frames)
