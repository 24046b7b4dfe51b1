"""From a prompt with images to the parts of a request: token ids, pixels, positions, spans and marks.

A prompt in text goes through the model's own processor (from the model's folder), which writes as many image tokens
as each image takes. Token ids must hold them already; `images` is then the processor's output (`pixel_values`, ...).
Everything stays on the host. All checks of images are made here.

Knows nothing of chat templates, URLs (a string is a path: never pass on what a client wrote), video or audio.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from brim.engine.media.checks import check_counts, check_sizes
from brim.engine.media.families import Family, family_of
from brim.engine.media.features import ImagePart, Media
from brim.engine.media.limits import ImageLimits
from brim.engine.media.reading import load_processor, read_image
from brim.engine.media.resizing import resized
from brim.engine.requests.request import MediaSpan
from brim.engine.weights.load import LoadedModel
from brim.errors import InvalidRequest, first_line

Images = Sequence[Any] | Mapping[str, Any]  # paths, bytes or PIL images; or the output of a processor
Prepared = tuple[tuple[int, ...], Media, tuple[MediaSpan, ...], tuple[tuple[int, bytes], ...]]

_DIGEST_BYTES = 16


def find_vision(loaded: LoadedModel) -> Vision | None:
    """Prepares images for this model; None if it takes no images."""
    family = family_of(loaded.full_config)
    if family is None or getattr(loaded.full_config, "vision_config", None) is None:
        return None
    if not hasattr(loaded.model.base_model, "get_image_features"):
        return None  # the text model of such a family
    return Vision(loaded, family)


class Vision:
    """Prepares prompts with images."""

    def __init__(self, loaded: LoadedModel, family: Family) -> None:
        self._base = loaded.model.base_model
        self._config = loaded.full_config
        self._family = family
        self._folder = loaded.folder
        self._vocab = loaded.vocab
        self._pad = getattr(loaded.config, "pad_token_id", None) or 0
        self._processor: Any = None

    @property
    def processor(self) -> Any:
        """The model's own processor, loaded when it is first asked for."""
        if self._processor is None:
            self._processor = load_processor(self._folder)
        return self._processor

    @property
    def together(self) -> bool:
        """Whether the tokens of an image must be computed in one step."""
        return self._family.together

    def prepare(self, prompt: str | Sequence[int], images: Images, limits: ImageLimits | None = None) -> Prepared:
        """(tokens, media, spans, marks) of a prompt with images; a mark is where an image begins, and its digest."""
        if isinstance(prompt, str):
            if isinstance(images, Mapping):
                raise InvalidRequest("images: with a processor's output, give its token ids as the prompt")
            tokens, inputs = run_processor(self.processor, self._family, prompt, images, limits)
        else:
            if not isinstance(images, Mapping):
                raise InvalidRequest(
                    "images: with token ids, give the processor's output (a mapping with pixel_values); or give the "
                    "prompt as text"
                )
            if not all(isinstance(token, int) and 0 <= token < 2**63 for token in prompt):
                raise InvalidRequest("prompt: token ids must be integers of at least 0")
            tokens, inputs = list(prompt), images
        if any(str(name).startswith(("pixel_values_videos", "input_features")) for name in inputs):
            raise InvalidRequest("images: video and audio are not supported; send images only")
        parts = self._family.split(inputs, self._config)
        places = np.flatnonzero(np.array(tokens, dtype=object) == self._config.image_token_id)
        runs = _runs(places)
        check_counts(parts, places, runs, by_run=self._mrope)
        if limits is not None:
            check_sizes(parts, runs if self._family.tiled else None, limits)
        positions, shift = self._positions(tokens, places, parts)
        digests = tuple(_digest(part) for part in parts)
        marks = _marks(parts, places, digests)
        if self._config.image_token_id >= self._vocab:  # the decoder has no such token; features replace it anyway
            for place in places.tolist():
                tokens[place] = self._pad
        spans = tuple(MediaSpan(start, end, self._family.together) for start, end in runs)
        return tuple(tokens), Media(parts, places, positions, shift, digests), spans, marks

    def tokens_of(self, image: Any, limits: ImageLimits | None = None) -> int:
        """Tokens that an image takes in a prompt, with what the processor writes around it."""
        return image_tokens(self.processor, self._family, image, limits)

    @property
    def _mrope(self) -> bool:
        return hasattr(self._base, "get_rope_index")

    def _positions(
        self, tokens: list[int], places: np.ndarray, parts: tuple[ImagePart, ...]
    ) -> tuple[np.ndarray | None, int]:
        """M-RoPE positions of the prompt and the shift behind it, as the model's class counts them."""
        if not self._mrope:
            return None, 0
        ids = torch.tensor([tokens])
        kinds = torch.zeros_like(ids, dtype=torch.int)
        kinds[0, torch.from_numpy(places)] = 1
        grids = torch.cat([part.inputs["image_grid_thw"] for part in parts])
        positions, shift = self._base.get_rope_index(
            input_ids=ids, mm_token_type_ids=kinds, image_grid_thw=grids, attention_mask=torch.ones_like(ids)
        )
        return positions[:, 0].numpy().astype(np.int64), int(shift.item())


# -- the model's processor, on the host ----------------------------------------------------------------------------


def run_processor(
    processor: Any, family: Family, prompt: str, images: Sequence[Any], limits: ImageLimits | None = None
) -> tuple[list[int], Mapping[str, Any]]:
    """Tokens of a prompt with its images in it, and the processor's whole output."""
    read = [read_image(image, number) for number, image in enumerate(images)]
    if limits is not None and limits.resizes:
        read = [resized(image, limits) for image in read]
    placeholder = str(getattr(processor, family.placeholder))
    if prompt.count(placeholder) != len(read):
        raise InvalidRequest(
            f"images: {len(read)} given for {prompt.count(placeholder)} placeholders in the prompt; "
            f"write {placeholder} once for each image"
        )
    bos = getattr(processor.tokenizer, "bos_token", None)
    has_bos = bos is not None and prompt.startswith(str(bos))  # a chat template has written it
    try:
        output = processor(text=[prompt], images=[read], return_tensors="pt", add_special_tokens=not has_bos)
    except Exception as error:
        raise InvalidRequest(f"images: the model's processor cannot read them: {first_line(error)}") from error
    return output["input_ids"][0].tolist(), output


def image_tokens(processor: Any, family: Family, image: Any, limits: ImageLimits | None = None) -> int:
    """Tokens that an image takes in a prompt, with what the processor writes around it."""
    placeholder = str(getattr(processor, family.placeholder))
    with_image, _ = run_processor(processor, family, placeholder, [image], limits)
    return len(with_image) - len(processor.tokenizer(placeholder)["input_ids"]) + 1


# -- what the processor's output must be ---------------------------------------------------------------------------


def _runs(places: np.ndarray) -> list[tuple[int, int]]:
    """[start, end) of neighbouring places."""
    if not places.size:
        return []
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(places, breaks)]


def _marks(
    parts: tuple[ImagePart, ...], places: np.ndarray, digests: tuple[bytes, ...]
) -> tuple[tuple[int, bytes], ...]:
    """Where each part begins, its digest, and where its tokens are."""
    ends = np.cumsum([part.tokens for part in parts])
    own = np.split(places, ends[:-1])
    return tuple(
        (int(some[0]), digest + blake2b(some.tobytes(), digest_size=_DIGEST_BYTES).digest())
        for digest, some in zip(digests, own, strict=True)
        if some.size
    )


def _digest(part: ImagePart) -> bytes:
    """Differs where any pixel does."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for name, tensor in sorted(part.inputs.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()
