"""The worst steps of one engine: which they are, and how each is run.

In: the parts of an engine, and its limits on images. Out: shapes, and for a shape the function that runs it. Text steps
are constructed in `brim.engine.stress.text`, those with images in `brim.engine.stress.images`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from brim.engine.kv.ledger import KvLedger
from brim.engine.run.running import largest_work
from brim.engine.stress.images import ImagePrompt, image_prompt_tokens, image_shape, run_image_shape
from brim.engine.stress.rehearsal import rehearse
from brim.engine.stress.scaling_steps import equal_chunks, most_scan_tokens, scaling_steps
from brim.engine.stress.text import PLAIN, run_text_shape, text_shapes
from brim.engine.stress.warm_up import warm_up
from brim.records.fit import DRAFT_SHAPE, IMAGE_SHAPE
from brim.records.memory import StressShape
from brim.records.progress import Told
from brim.records.scaling import ScalingSteps

if TYPE_CHECKING:
    from brim.engine.media.features import ImagePart
    from brim.engine.media.limits import ImageLimits
    from brim.engine.parts import EngineParts
    from brim.engine.weights.load import LoadedModel


@dataclass(frozen=True, slots=True)
class WorstSteps:
    """The worst steps of an engine."""

    loaded: LoadedModel
    parts: EngineParts
    image_limits: ImageLimits | None

    def shapes(self) -> tuple[StressShape, ...]:
        shapes = (*self._text(), *self._draft())
        image = self.image()
        if image is None or self.image_limits is None:
            return shapes
        return (*shapes, image_shape(image.tokens, self.image_limits.patches(image)))

    def _text(self) -> tuple[StressShape, ...]:
        """Full steps of text, those of recurrent layers in each of their worst forms."""
        settings, max_length, alike = self.parts.settings, self.parts.max_length, self.parts.fullest_chunk
        shapes = text_shapes(settings, max_length, alike)
        if alike is None:
            return shapes
        forms = equal_chunks(shapes[0].tokens, settings, max_length, alike, self._scan_tokens())
        return (*shapes, *(form for form in forms if form not in shapes))

    def _draft(self) -> tuple[StressShape, ...]:
        """A full step of the draft model: prompts that it catches up with."""
        draft = self.parts.draft
        if draft is None:
            return ()
        tokens = min(draft.settings.max_batch_tokens, draft.settings.max_batch * (draft.max_length - 1))
        return (StressShape(DRAFT_SHAPE, tokens, draft.settings.max_batch, "the draft model"),)

    def _scan_tokens(self) -> int | None:
        return most_scan_tokens(self.parts.runner.text_model.backbone)

    def scaling(self) -> ScalingSteps:
        """Smaller steps, from which it is learned how memory scales."""
        return scaling_steps(self.parts.settings, self.parts.max_length, self.parts.fullest_chunk, self._scan_tokens())

    def image(self) -> ImagePart | None:
        """The largest image that a request may have; None if images are not allowed."""
        from brim.engine.media.limits import worst_part

        if self.parts.vision is None or self.image_limits is None:
            return None
        most_tokens = self.parts.max_length - 1
        if self.parts.vision.together:
            most_tokens = min(most_tokens, self.parts.settings.max_batch_tokens)
        return worst_part(self.loaded.full_config, self.image_limits, most_tokens)

    def warm_up(self, ledger: KvLedger, told: Told) -> None:
        """Warm-up: small steps of every kind."""
        together = self.parts.vision is not None and self.parts.vision.together
        warm_up(self.parts.runner, ledger, self.parts.max_length, together=together, told=told)
        draft = self.parts.draft
        if draft is not None and draft.runner.kv_shape is not None:
            own = KvLedger(draft.groups, draft.runner.kv_shape)
            warm_up(draft.runner, own, draft.max_length, together=False, told=told)

    def rehearse(self, ledger: KvLedger) -> None:
        """With several ranks, learn what a step asks of them, and hold what a rank needs that fails in one."""
        runner, limping = self.parts.runner, self.parts.limping
        if limping is None:
            return
        from brim.engine.ranks.sharding import splits_towers

        known = None
        if not splits_towers(self.loaded.model, runner.text_model.backbone):
            known = rehearse(runner, ledger, self.parts.max_length, limping.group_name)
        shape, scored = runner.shape, runner.scorer.whole_rows
        limping.hold(known, largest_work(shape.most_decode_rows, shape.max_batch_tokens, scored))

    def step(self, shape: StressShape, ledger: KvLedger) -> Callable[[], None]:
        """A function that runs a step of this shape to its end. Images are prepared now, on the host."""
        runner, settings, max_length = self.parts.runner, self.parts.settings, self.parts.max_length
        if shape.name == IMAGE_SHAPE:
            return partial(run_image_shape, self._image_prompt(), runner, ledger, settings, max_length)
        if shape.name == DRAFT_SHAPE:
            return self._draft_step(shape)
        return partial(run_text_shape, shape, runner, ledger, max_length)

    def _draft_step(self, shape: StressShape) -> Callable[[], None]:
        draft = self.parts.draft
        assert draft is not None, "an engine without a draft model has no such shape"
        assert draft.runner.kv_shape is not None, "stress runs in a pool"
        ledger = KvLedger(draft.groups, draft.runner.kv_shape)  # nothing is followed before anything is served
        return partial(run_text_shape, replace(shape, name=PLAIN), draft.runner, ledger, draft.max_length)

    def _image_prompt(self) -> ImagePrompt:
        """The largest images, prepared like those of requests."""
        import torch

        image, vision = self.image(), self.parts.vision
        assert image is not None, "an engine without images has no such shape"
        assert vision is not None
        token = self.loaded.full_config.image_token_id
        tokens = image_prompt_tokens(token, image.tokens, self.parts.settings, self.parts.max_length)
        count = tokens.count(token) // image.tokens
        inputs = {name: torch.cat([one] * count) if count > 1 else one for name, one in image.inputs.items()}
        prepared, media, spans, _ = vision.prepare(tokens, inputs)
        return ImagePrompt(prepared, media, spans)
