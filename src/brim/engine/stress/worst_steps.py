"""The worst steps of one engine: which they are, and how each is run.

In: the model of an engine, and its limits on media. Out: shapes, and for a shape the function that runs it. Text steps
are constructed in `brim.engine.stress.text`, those with images or audio in `brim.engine.stress.media`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from brim.engine.kv.ledger import KvLedger
from brim.engine.media.parts import MediaKind
from brim.engine.run.running import largest_work
from brim.engine.stress.media import WorstMediaPrompt, audio_shape, image_shape, media_prompt_tokens, run_media_shape
from brim.engine.stress.rehearsal import rehearse
from brim.engine.stress.scaling_steps import equal_chunks, most_scan_tokens, scaling_steps
from brim.engine.stress.text import PLAIN, run_text_shape, steps_before, text_shapes
from brim.engine.stress.unread import UnreadResults
from brim.engine.stress.warm_up import warm_up
from brim.records.memory import StressKind, StressShape
from brim.records.progress import Told
from brim.records.scaling import ScalingSteps

if TYPE_CHECKING:
    from brim.engine.media.allowed import AllowedMedia
    from brim.engine.media.parts import MediaPart
    from brim.engine.model import ServingModel
    from brim.engine.weights.load import LoadedModel


_KINDS: dict[str, MediaKind] = {StressKind.IMAGE: MediaKind.IMAGE, StressKind.AUDIO: MediaKind.AUDIO}


@dataclass(frozen=True, slots=True)
class WorstSteps:
    """The worst steps of an engine."""

    loaded: LoadedModel
    model: ServingModel
    allowed: AllowedMedia
    unread: UnreadResults = field(default_factory=UnreadResults)

    def shapes(self) -> tuple[StressShape, ...]:
        return (*self._text(), *self._draft(), *self._media())

    def _media(self) -> Iterator[StressShape]:
        """Full steps of the largest images, and of the longest audios."""
        image, audio = self.part(MediaKind.IMAGE), self.part(MediaKind.AUDIO)
        if image is not None and self.allowed.images is not None:
            yield image_shape(image.tokens, self.allowed.images.patches(image))
        if audio is not None and self.model.media is not None and self.model.media.audio is not None:
            yield audio_shape(audio.tokens, self.model.media.audio.frames(audio))

    def _text(self) -> tuple[StressShape, ...]:
        """Full steps of text, those of recurrent layers in each of their worst forms."""
        settings, max_length, alike = self.model.settings, self.model.max_length, self.model.fullest_chunk
        shapes = text_shapes(settings, max_length, alike)
        if alike is None:
            return shapes
        forms = equal_chunks(shapes[0].tokens, settings, max_length, alike, self._scan_tokens())
        return (*shapes, *(form for form in forms if form not in shapes))

    def _draft(self) -> tuple[StressShape, ...]:
        """A full step of the draft model: prompts that it catches up with."""
        draft = self.model.draft
        if draft is None:
            return ()
        tokens = min(draft.settings.max_batch_tokens, draft.settings.max_batch * (draft.max_length - 1))
        return (StressShape(StressKind.DRAFT, tokens, draft.settings.max_batch, "the draft model"),)

    def _scan_tokens(self) -> int | None:
        return most_scan_tokens(self.model.runner.text_model.backbone)

    def scaling(self) -> ScalingSteps:
        """Smaller steps, from which it is learned how memory scales."""
        return scaling_steps(self.model.settings, self.model.max_length, self.model.fullest_chunk, self._scan_tokens())

    def part(self, kind: MediaKind) -> MediaPart | None:
        """The largest image or the longest audio that a request may have; None if it may have none."""
        media = self.model.media
        if media is None:
            return None
        most_tokens = self.model.max_length - 1
        if kind is MediaKind.IMAGE and media.together:
            most_tokens = min(most_tokens, self.model.settings.max_batch_tokens)
        return media.worst_part(kind, self.allowed, most_tokens)

    def warm_up(self, ledger: KvLedger, told: Told) -> None:
        """Warm-up: small steps of every kind."""
        together = self.model.media is not None and self.model.media.together
        warm_up(self.model.runner, ledger, self.model.max_length, together=together, told=told)
        draft = self.model.draft
        if draft is not None and draft.runner.kv_shape is not None:
            own = KvLedger(draft.sizes.groups, draft.runner.kv_shape)
            warm_up(draft.runner, own, draft.max_length, together=False, told=told)

    def rehearse(self, ledger: KvLedger) -> None:
        """With several ranks, learn what a step asks of them, and hold what a rank needs that fails in one."""
        runner, failed_rank = self.model.runner, self.model.failed_rank
        if failed_rank is None:
            return
        from brim.engine.ranks.sharding import splits_towers

        known = None
        if not splits_towers(self.loaded.model, runner.text_model.backbone):
            known = rehearse(runner, ledger, self.model.max_length, failed_rank.group_name)
        shape, scored = runner.shape, runner.scorer.whole_rows
        failed_rank.hold(known, largest_work(shape.most_decode_rows, shape.max_batch_tokens, scored))

    def step(self, shape: StressShape, ledger: KvLedger) -> Callable[[], None]:
        """A function that runs a step of this shape to its end. Media are prepared now, on the host."""
        runner, settings, max_length = self.model.runner, self.model.settings, self.model.max_length
        if shape.name in _KINDS:
            prompts = self._media_prompts(_KINDS[shape.name])
            return partial(run_media_shape, prompts, runner, ledger, settings, max_length)
        if shape.name == StressKind.DRAFT:
            return self._draft_step(shape)
        before = steps_before(shape, self._text()) if settings.overlap else ()
        if before:
            return partial(self._run_beside_results, before, shape, ledger)
        return partial(run_text_shape, shape, runner, ledger, max_length)

    def _run_beside_results(self, before: tuple[StressShape, ...], shape: StressShape, ledger: KvLedger) -> None:
        """As in serving, where a step is launched before the last one has been read."""
        runner, max_length = self.model.runner, self.model.max_length
        for one in before:
            self.unread.learn(one, runner, ledger, max_length)
        results = self.unread.blank(runner.shape.device)
        run_text_shape(shape, runner, ledger, max_length)
        del results

    def _draft_step(self, shape: StressShape) -> Callable[[], None]:
        draft = self.model.draft
        assert draft is not None, "an engine without a draft model has no such shape"
        assert draft.runner.kv_shape is not None, "stress runs in a pool"
        ledger = KvLedger(draft.sizes.groups, draft.runner.kv_shape)  # nothing is followed before anything is served
        return partial(run_text_shape, replace(shape, name=PLAIN), draft.runner, ledger, draft.max_length)

    def _media_prompts(self, kind: MediaKind) -> tuple[WorstMediaPrompt, ...]:
        """The largest media of this kind, and those of the other after them if the model takes both."""
        kinds = (kind, *(other for other in _KINDS.values() if other is not kind))
        found = [(one, part) for one in kinds if (part := self.part(one)) is not None]
        assert found, "an engine without media has no such shape"
        return tuple(self._media_prompt(one, part) for one, part in found)

    def _media_prompt(self, kind: MediaKind, part: MediaPart) -> WorstMediaPrompt:
        """Prepared like a request's."""
        import torch

        from brim.engine.media.prepare import GivenMedia

        media = self.model.media
        assert media is not None
        token = media.token_id(kind)
        tokens = media_prompt_tokens(token, part.tokens, self.model.settings, self.model.max_length)
        count = tokens.count(token) // part.tokens
        inputs = {name: torch.cat([one] * count) if count > 1 else one for name, one in part.inputs.items()}
        given = GivenMedia(images=inputs) if kind is MediaKind.IMAGE else GivenMedia(audios=inputs)
        prepared, made, spans, _ = media.prepare(tokens, given)
        return WorstMediaPrompt(prepared, made, spans)
