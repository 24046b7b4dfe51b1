"""Images from files, and the processor in a model folder."""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from os import PathLike
from typing import Any

from brim.errors import InvalidRequest, UnsupportedModel, first_line


def read_image(image: Any, number: int) -> Any:
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


def load_processor(folder: Any) -> Any:
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
