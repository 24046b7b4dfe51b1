"""Images from files, and the processor in a model folder."""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from os import PathLike
from typing import Any

from brim.errors import InvalidRequest, UnsupportedModel, first_line
from brim.install import install_command


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
        raise InvalidRequest("the model has no folder with a processor; give token ids and the processor's output")
    from transformers import AutoProcessor

    processor: Any = AutoProcessor
    try:
        return processor.from_pretrained(str(folder), **_LOCAL)
    except ImportError as error:
        return _without_videos(str(folder), error)
    except (OSError, ValueError) as error:
        raise UnsupportedModel(f"the processor in {folder} cannot be loaded: {first_line(error)}") from error


_ASKS_FOR_VIDEOS = ("Qwen2_5Omni", "Qwen3Omni")  # their processors look at that part whatever the prompt brings
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def _without_videos(folder: str, missing: ImportError) -> Any:
    """The processor without its part for videos, which needs a library that is not installed here."""
    import transformers
    from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

    config: Any = transformers.AutoConfig
    sources: dict[str, Any] = {
        "tokenizer": transformers.AutoTokenizer,
        "image_processor": transformers.AutoImageProcessor,
        "feature_extractor": transformers.AutoFeatureExtractor,
    }
    parts: dict[str, Any] = {}
    try:
        kind: Any = PROCESSOR_MAPPING[type(config.from_pretrained(folder, **_LOCAL))]
        for name in kind.get_attributes():
            source = sources.get(name)
            parts[name] = None if source is None else source.from_pretrained(folder, **_LOCAL)
        if kind.__name__.startswith(_ASKS_FOR_VIDEOS):  # for no more than how many patches become a token, as of images
            parts["video_processor"] = parts["image_processor"]

        def check(self: Any, name: str, part: Any) -> Any:
            return kind.check_argument_for_proper_class(self, name, part) if name in sources else type(part)

        partial: Any = type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})
        return partial(**parts)
    except (OSError, ValueError, KeyError, AttributeError, TypeError, ImportError):
        raise InvalidRequest(
            f"images: the model's processor needs a library that is not installed ({first_line(missing)}); "
            f"install it with {install_command('vision')}"
        ) from missing
