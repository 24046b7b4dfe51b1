"""From a prompt with images to what a request carries: token ids, pixels, positions, spans and a salt.

A prompt in text goes through the model's own processor (from the model's folder), which writes as many image tokens
as each image takes. Token ids must hold them already; `images` is then the processor's output (`pixel_values`, ...).
Everything stays on the host, and nothing here touches the device. All refusals of images are made here.

Knows nothing of chat templates, addresses (a string is a path: never pass on what a client wrote), videos or sounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from importlib import import_module
from io import BytesIO
from os import PathLike
from typing import Any

import numpy as np
import torch

from brim.engine.load import LoadedModel
from brim.engine.media import ImagePart, Media
from brim.engine.requests import MediaSpan
from brim.engine.worst_image import ImageLimits
from brim.errors import InvalidRequest, UnsupportedModel, first_line

Images = Sequence[Any] | Mapping[str, Any]  # paths, bytes or PIL images; or the output of a processor
Prepared = tuple[tuple[int, ...], Media, tuple[MediaSpan, ...], bytes]

_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Family:
    """How the vision-language models of one kind take images."""

    split: Callable[[Mapping[str, Any], Any], tuple[ImagePart, ...]]  # the processor's output, the config
    together: bool = False  # tokens of an image see each other in both directions
    placeholder: str = "image_token"  # the processor's attribute with what a prompt has for an image
    tiled: bool = False  # the parts of a run of image tokens are tiles of one image


def find_vision(loaded: LoadedModel) -> Vision | None:
    """What prepares images for this model; None if it takes none here."""
    family = _family(loaded.full_config)
    if family is None or getattr(loaded.full_config, "vision_config", None) is None:
        return None
    if not hasattr(loaded.model.base_model, "get_image_features"):
        return None  # the text model of such a family
    return Vision(loaded, family)


def ahead_in_windows_only(config: Any) -> bool:
    """Whether full attention stays causal inside images that sliding attention sees both ways."""
    return getattr(config, "model_type", None) == "gemma4"


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
            self._processor = _load_processor(self._folder)
        return self._processor

    @property
    def together(self) -> bool:
        """Whether the tokens of an image must be computed in one step."""
        return self._family.together

    def prepare(self, prompt: str | Sequence[int], images: Images, limits: ImageLimits | None = None) -> Prepared:
        """(tokens, media, spans, salt) of a prompt with images."""
        if isinstance(prompt, str):
            if isinstance(images, Mapping):
                raise InvalidRequest("images: a processor's output goes with its token ids; give these as the prompt")
            tokens, inputs = self._process(prompt, images)
        else:
            if not isinstance(images, Mapping):
                raise InvalidRequest(
                    "images: beside token ids the processor's output is needed, as a mapping with pixel_values; "
                    "or give the prompt as text"
                )
            if not all(isinstance(token, int) and 0 <= token < 2**63 for token in prompt):
                raise InvalidRequest("prompt: token ids are whole numbers from 0 on")
            tokens, inputs = list(prompt), images
        if any(str(name).startswith(("pixel_values_videos", "input_features")) for name in inputs):
            raise InvalidRequest("images: videos and sounds are not taken; send images only")
        parts = self._family.split(inputs, self._config)
        places = np.flatnonzero(np.array(tokens, dtype=object) == self._config.image_token_id)
        runs = _runs(places)
        _check_counts(parts, places, runs, by_run=self._mrope)
        if limits is not None:
            _check_sizes(parts, runs if self._family.tiled else None, limits)
        positions, shift = self._positions(tokens, places, parts)
        digest = _digest(parts)
        if self._config.image_token_id >= self._vocab:  # the decoder has no such token, and sees features there anyway
            digest += places.tobytes()
            for place in places.tolist():
                tokens[place] = self._pad
        spans = tuple(MediaSpan(start, end, self._family.together) for start, end in runs)
        return tuple(tokens), Media(parts, places, positions, shift), spans, digest

    @property
    def _mrope(self) -> bool:
        return hasattr(self._base, "get_rope_index")

    def _process(self, prompt: str, images: Sequence[Any]) -> tuple[list[int], Mapping[str, Any]]:
        """Run the processor."""
        read = [_read(image, number) for number, image in enumerate(images)]
        processor = self.processor
        placeholder = str(getattr(processor, self._family.placeholder))
        if prompt.count(placeholder) != len(read):
            raise InvalidRequest(
                f"images: {len(read)} for {prompt.count(placeholder)} places in the prompt; "
                f"write {placeholder} once for each image"
            )
        bos = getattr(processor.tokenizer, "bos_token", None)
        has_bos = bos is not None and prompt.startswith(str(bos))  # a chat template has written it
        try:
            output = processor(text=[prompt], images=[read], return_tensors="pt", add_special_tokens=not has_bos)
        except Exception as error:
            raise InvalidRequest(f"images: the model's processor refuses them: {first_line(error)}") from error
        return output["input_ids"][0].tolist(), output

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


# -- what the processor's output must be ---------------------------------------------------------------------------


def _grids(inputs: Mapping[str, Any], config: Any) -> tuple[ImagePart, ...]:
    """Patches of all images in one row, and a grid for each image (Qwen)."""
    vision = config.vision_config
    patch = vision.patch_size**2 * vision.temporal_patch_size * vision.in_channels
    pixels = _tensor(inputs, "pixel_values", (None, patch))
    grids = _tensor(inputs, "image_grid_thw", (None, 3), integer=True)
    merge = vision.spatial_merge_size
    if bool((grids < 1).any()) or bool((grids[:, 1:] % merge).any()):
        raise InvalidRequest(f"images: image_grid_thw has sides that are no positive multiples of {merge}")
    sizes = grids.prod(-1).tolist()
    if sum(sizes) != pixels.shape[0]:
        raise InvalidRequest(
            f"images: pixel_values has {pixels.shape[0]} patches where image_grid_thw says {sum(sizes)}"
        )
    return tuple(
        ImagePart({"pixel_values": some, "image_grid_thw": grids[number : number + 1]}, len(some) // merge**2)
        for number, some in enumerate(torch.split(pixels, sizes))
    )


def _squares(inputs: Mapping[str, Any], config: Any) -> tuple[ImagePart, ...]:
    """Images of the one size the tower takes (Gemma 3)."""
    side = config.vision_config.image_size
    pixels = _tensor(inputs, "pixel_values", (None, config.vision_config.num_channels, side, side))
    return tuple(ImagePart({"pixel_values": one}, config.mm_tokens_per_image) for one in torch.split(pixels, 1))


def _tiles(inputs: Mapping[str, Any], config: Any) -> tuple[ImagePart, ...]:
    """Square tiles, a number of them for an image (InternVL)."""
    vision = config.vision_config
    pixels = _tensor(inputs, "pixel_values", (None, vision.num_channels, None, None))
    patch = vision.patch_size if isinstance(vision.patch_size, int) else vision.patch_size[0]
    side = pixels.shape[-1]
    tokens_a_side = side / patch * config.downsample_ratio
    if pixels.shape[-2] != side or tokens_a_side != int(tokens_a_side) or tokens_a_side == 0:
        raise InvalidRequest(
            f"images: tiles of {pixels.shape[-2]} by {side} pixels; squares with sides that are multiples of "
            f"{int(patch / config.downsample_ratio)} are needed"
        )
    return tuple(ImagePart({"pixel_values": one}, int(tokens_a_side) ** 2) for one in torch.split(pixels, 1))


def _placed_patches(inputs: Mapping[str, Any], config: Any) -> tuple[ImagePart, ...]:
    """Patches of each image and where in it they are, padded to one length (Gemma 4)."""
    vision = config.vision_config
    pixels = _tensor(inputs, "pixel_values", (None, None, 3 * vision.patch_size**2))
    places = _tensor(inputs, "image_position_ids", (pixels.shape[0], pixels.shape[1], 2), integer=True)
    cell = vision.pooling_kernel_size
    for number, one in enumerate(places):
        _check_patches(one, cell, vision.position_embedding_size, number)
    return tuple(
        ImagePart({"pixel_values": some, "image_position_ids": where}, int((where >= 0).all(-1).sum()) // cell**2)
        for some, where in zip(torch.split(pixels, 1), torch.split(places, 1), strict=True)
    )


def _check_patches(places: torch.Tensor, cell: int, most: int, number: int) -> None:
    """A whole grid of patches: what is not would index outside of the tower's tables, on the device."""
    real = places[(places != -1).all(-1)]
    width, height = (real.max(0).values + 1).tolist() if real.numel() else (0, 0)
    whole = len(set(map(tuple, real.tolist()))) == width * height == real.shape[0] and bool((real >= 0).all())
    if not whole or not real.numel() or width % cell or height % cell or max(width, height) > most:
        raise InvalidRequest(
            f"images: image_position_ids of image {number} are no whole grid with sides that are multiples of {cell}"
        )
    if places.shape[0] % cell**2:
        raise InvalidRequest(f"images: {places.shape[0]} patches for image {number} are no multiple of {cell**2}")


def _tensor(
    inputs: Mapping[str, Any], name: str, shape: tuple[int | None, ...], *, integer: bool = False
) -> torch.Tensor:
    """One of the processor's tensors, on the host, checked."""
    if inputs.get(name) is None:
        raise InvalidRequest(f"images: the processor's output has no {name}")
    try:
        tensor = torch.as_tensor(inputs[name]).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidRequest(f"images: {name} is no tensor: {first_line(error)}") from error
    sizes = tuple(tensor.shape)
    fits = len(shape) == len(sizes) and all(want in (None, have) for want, have in zip(shape, sizes, strict=True))
    if not fits or tensor.shape[0] == 0:
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        raise InvalidRequest(f"images: {name} has the shape {sizes}; ({wanted}) is needed")
    if integer == (tensor.is_floating_point() or tensor.is_complex()):
        raise InvalidRequest(f"images: {name} holds {tensor.dtype}; {'integers' if integer else 'floats'} are needed")
    return tensor.long() if integer else tensor


def _check_counts(
    parts: tuple[ImagePart, ...], places: np.ndarray, runs: list[tuple[int, int]], *, by_run: bool
) -> None:
    """As many image tokens as the tower will make, and with M-RoPE a run of them for each image."""
    tokens = sum(part.tokens for part in parts)
    if places.size != tokens:
        raise InvalidRequest(f"images: they take {tokens} image tokens where the prompt has {places.size}")
    if by_run and [end - start for start, end in runs] != [part.tokens for part in parts]:
        raise InvalidRequest(
            f"images: the prompt has image tokens in runs of {_few([end - start for start, end in runs])} where the "
            f"images take {_few([part.tokens for part in parts])}; keep a text token between images"
        )


def _check_sizes(parts: tuple[ImagePart, ...], runs: list[tuple[int, int]] | None, limits: ImageLimits) -> None:
    """No call of the tower larger than the one that was stressed, and no image larger than the user allows."""
    for number, part in enumerate(parts):
        patches = limits.patches(part)
        if patches > limits.call_patches:
            raise InvalidRequest(
                f"images: image {number} is {patches} patches of {limits.pixels_per_patch} pixels after processing, "
                f"more than the {limits.call_patches} of {limits.source}; send a smaller one"
            )
    if limits.max_pixels is None:
        return
    sizes = [limits.pixels(part) for part in parts]
    for number, pixels in enumerate(sizes if runs is None else _by_run(sizes, parts, runs)):
        if pixels > limits.max_pixels:
            raise InvalidRequest(
                f"images: image {number} has {pixels} pixels after processing ({pixels // limits.pixels_per_patch} "
                f"patches of {limits.pixels_per_patch}), more than max_image_pixels {limits.max_pixels}; "
                "send a smaller one, or raise the limit"
            )


def _by_run(sizes: list[int], parts: tuple[ImagePart, ...], runs: list[tuple[int, int]]) -> list[int]:
    """What the parts that begin in each run of image tokens have together."""
    ends = np.cumsum([end - start for start, end in runs])
    starts = np.cumsum([0, *(part.tokens for part in parts[:-1])])
    sums = [0] * len(runs)
    for run, size in zip(np.searchsorted(ends, starts, side="right").tolist(), sizes, strict=True):
        sums[run] += size
    return sums


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "")


def _runs(places: np.ndarray) -> list[tuple[int, int]]:
    """[start, end) of neighbouring places."""
    if not places.size:
        return []
    breaks = np.flatnonzero(np.diff(places) != 1) + 1
    return [(int(run[0]), int(run[-1]) + 1) for run in np.split(places, breaks)]


def _digest(parts: tuple[ImagePart, ...]) -> bytes:
    """Differs where any pixel does."""
    digest = blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        for name, tensor in sorted(part.inputs.items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()


# -- reading -------------------------------------------------------------------------------------------------------


def _read(image: Any, number: int) -> Any:
    """An image in memory from a path, the bytes of a file, or a PIL image."""
    try:
        pillow, operations = import_module("PIL.Image"), import_module("PIL.ImageOps")
    except ImportError:
        raise InvalidRequest("images: reading them needs Pillow: pip install pillow") from None
    if not isinstance(image, (str, PathLike, bytes, pillow.Image)):
        raise InvalidRequest(f"images: image {number} is a {type(image).__name__}; give a path, bytes or a PIL image")
    try:
        opened = image
        if not isinstance(opened, pillow.Image):
            opened = pillow.open(BytesIO(opened) if isinstance(opened, bytes) else opened)
        return operations.exif_transpose(opened).convert("RGB")
    except Exception as error:
        raise InvalidRequest(f"images: image {number} cannot be read: {first_line(error)}") from error


def _load_processor(folder: Any) -> Any:
    if folder is None:
        raise InvalidRequest(
            "images: the model has no folder with a processor; give token ids and the processor's output"
        )
    from transformers import AutoProcessor

    try:
        processor: Any = AutoProcessor
        return processor.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, ImportError) as error:
        raise UnsupportedModel(f"the processor in {folder} cannot be loaded: {first_line(error)}") from error


def _family(config: Any) -> Family | None:
    match getattr(config, "model_type", None):
        case "qwen2_vl" | "qwen2_5_vl" | "qwen3_vl" | "qwen3_vl_moe" | "qwen3_5" | "qwen3_5_moe":
            return Family(_grids)
        case "internvl":
            return Family(_tiles, tiled=True)
        case "gemma3":
            return Family(_squares, together=True, placeholder="boi_token")
        case "gemma4":
            both_ways = config.get_text_config().use_bidirectional_attention == "vision"
            return Family(_placed_patches, together=both_ways)
    return None
