"""From what the user wrote to a `transformers` model that is ready to run.

In: a directory with config.json and safetensors, or the name of a model of Brim's own; or, for random weights, anything
a config can be had from. Out: a `LoadedModel`. Weights come from local files, and only from safetensors; remote code is
never run. What `transformers` raises is translated here. A checkpoint that lacks tensors of the model is refused:
`transformers` would make them up. So is one in a quantised format.

Random weights are drawn by the class's own rules, on the device itself; a quantised model is then not quantised.
`transformers` loads straight to a GPU only where `accelerate` is installed; elsewhere weights pass through host memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from brim.engine.weights.files import few, weight_files
from brim.engine.weights.parts import ModelPart, class_of_part, keep_part, random_towers
from brim.engine.weights.quantised import refuse_quantised
from brim.errors import BrimError, DeviceError, InvalidRequest, UnsupportedModel, first_line
from brim.model.fields import LARGEST_CONTEXT
from brim.model.jsonfile import read_object
from brim.model.packaged import packaged_folder
from brim.model.source import load_config
from brim.model.transformers_classes import (
    check_libraries,
    check_sizes,
    config_object,
    find_class,
    is_encoder,
)
from brim.probes.translate import translated

Progress = Callable[[int, int], None]  # tensors loaded, tensors in all

_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
NOT_FOR_DUMMIES = ("quantization_config", "auto_map")
_LONGEST = ("max_position_embeddings", "max_seq_len", "seq_length")


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model in evaluation mode, without gradients, and what an engine asks of its files."""

    model: Any
    config: Any  # of the language model, inside `full_config` where there are towers
    full_config: Any
    vocab: int
    max_positions: int
    eos_ids: tuple[int, ...]
    weight_bytes: int  # parameters and buffers, each storage once
    folder: Path | None  # where a tokenizer may lie
    seconds: float


def load(
    source: str | Path | Mapping[str, Any],
    *,
    load_format: str = "auto",
    dtype: str = "bf16",
    device: str = "cpu",
    attention: str | dict[str, str] | None = "sdpa",
    seed: int = 0,
    progress: Progress | None = None,
    part: ModelPart = ModelPart.WHOLE,
) -> LoadedModel:
    """Load a model, or make one with random weights (`load_format="dummy"`); or a part of it alone."""
    started = time.perf_counter()
    check_options(load_format, dtype, device)
    folder, raw = locate(source, load_format)
    if load_format != "dummy":
        assert folder is not None
        refuse_quantised(str(source), raw, folder)
    kind = str(raw.get("model_type", ""))
    check_sizes(raw)
    cls = find_class(kind, raw)
    told = progress or (lambda done, total: None)
    with foreign_errors(kind, attention), quietly(told):
        config = config_object(raw, NOT_FOR_DUMMIES if load_format == "dummy" else ())
        _check_generates(kind, config)
        if load_format == "dummy":
            model = _random(cls, config, dtype, device, attention, seed, part)
            told(1, 1)
        else:
            assert folder is not None
            model = from_files(class_of_part(cls, part), config, folder, dtype, device, attention)
    return _record(model.eval().requires_grad_(False), folder, time.perf_counter() - started)


def read_model(source: str | Path | Mapping[str, Any], load_format: str) -> tuple[Path | None, Any]:
    """(directory of a model's files where it has one, its config as an object), without its weights."""
    check_libraries()
    folder, raw = locate(source, load_format)
    check_sizes(raw)
    kind = str(raw.get("model_type", ""))
    with foreign_errors(kind, ""):
        return folder, config_object(raw, NOT_FOR_DUMMIES if load_format == "dummy" else ())


def check_options(load_format: str, dtype: str, device: str) -> None:
    if load_format not in ("auto", "dummy"):
        raise InvalidRequest(f"load format '{load_format[:40]}' is not known; choose auto or dummy")
    if dtype not in (*_NAMES, "auto"):
        raise InvalidRequest(f"dtype '{dtype[:40]}' is not known; choose {', '.join(_NAMES)} or auto")
    check_libraries()
    import torch

    try:
        kind = torch.device(device).type
    except RuntimeError:
        raise InvalidRequest(f"device '{device[:40]}' is not one; write cpu, cuda or cuda:1") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise DeviceError(f"device '{device}': torch sees no CUDA device; check the driver, or use cpu")


def locate(source: str | Path | Mapping[str, Any], load_format: str) -> tuple[Path | None, dict[str, Any]]:
    """(directory of the model's files where it has one, its config); weights, where they are wanted, are checked."""
    if not isinstance(source, Mapping) and str(source).lower().endswith(".gguf"):
        raise UnsupportedModel(
            f"{source}: is a GGUF file, which Brim's engine does not run; run it with llama.cpp, by the command that "
            "`brim plan` prints for it"
        )
    folder = None if isinstance(source, Mapping) else _folder(str(source))
    if load_format != "dummy":
        if folder is None:
            what = "a config alone" if isinstance(source, Mapping) else f"'{str(source)[:80]}'"
            raise InvalidRequest(
                f"{what} has no weights here; give a directory with config.json and safetensors, or run it with "
                "random weights: --load-format dummy"
            )
        weight_files(folder)
    return folder, _that_writes(dict(source) if isinstance(source, Mapping) else load_config(str(source))[1])


def _that_writes(raw: dict[str, Any]) -> dict[str, Any]:
    """The config of the model that writes text: that of the thinker in a model that speaks too (Qwen's Omni)."""
    thinker = raw.get("thinker_config")
    if not isinstance(thinker, dict):
        return raw
    kept = {name: raw[name] for name in ("quantization_config",) if name in raw}
    return {"model_type": f"{raw.get('model_type', '')}_thinker", **kept, **thinker}


def _folder(source: str) -> Path | None:
    try:
        path = Path(source).expanduser()
        inside = path.parent if path.name == "config.json" else path
        return inside if inside.is_dir() else packaged_folder(source)
    except (OSError, ValueError, RuntimeError):  # not even a path
        return None


def _check_generates(kind: str, config: Any) -> None:
    text = config.get_text_config(decoder=True)
    if config.is_encoder_decoder or getattr(text, "is_encoder_decoder", False):
        raise UnsupportedModel(f"'{kind}' is an encoder-decoder; the engine runs decoder-only language models")
    if is_encoder(kind, config):
        raise UnsupportedModel(f"'{kind}' is an encoder; the engine runs decoder-only language models")


def _random(
    cls: Any, config: Any, dtype: str, device: str, attention: str | dict[str, str] | None, seed: int, part: ModelPart
) -> Any:
    """The class's own initialisation, drawn on the device."""
    wanted = type_of_weights(dtype, config)
    with drawn_on(device, seed) as place:
        if part is ModelPart.TOWERS:
            return random_towers(cls, config, wanted, attention, place)
        return keep_part(cls._from_config(config, dtype=wanted, attn_implementation=attention), part)


@contextmanager
def drawn_on(device: str, seed: int) -> Iterator[Any]:
    """Random weights are drawn on a device, by this seed. The caller's random numbers are left as they were."""
    import torch

    place = torch.device(device)
    with torch.random.fork_rng(devices=[place] if place.type == "cuda" else []), place:
        torch.manual_seed(seed)
        yield place


def type_of_weights(dtype: str, config: Any) -> Any:
    """The type that was asked for, as torch has it; `auto` is what the config says."""
    import torch

    if dtype != "auto":
        return getattr(torch, _NAMES[dtype])
    found = config.dtype or config.get_text_config(decoder=True).dtype or torch.bfloat16
    return getattr(torch, found) if isinstance(found, str) else found


def from_files(
    cls: Any,
    config: Any,
    folder: Path,
    dtype: str,
    device: str,
    attention: str | dict[str, str] | None,
    unused: str | None = None,
) -> Any:
    """A model with its weights; `unused` begins the names of tensors that nobody will ask for, and may be missing."""
    from transformers.utils.import_utils import is_accelerate_available

    model, info = cls.from_pretrained(
        str(folder),
        config=config,
        dtype=_NAMES.get(dtype, "auto"),
        attn_implementation=attention,
        device_map={"": device} if device != "cpu" and is_accelerate_available() else None,
        local_files_only=True,
        use_safetensors=True,
        trust_remote_code=False,
        ignore_mismatched_sizes=True,  # they are refused below, by name
        output_loading_info=True,
    )
    _check_complete(cls.__name__, folder, info, unused)
    return model.to(device)


def _check_complete(name: str, folder: Path, info: dict[str, Any], unused: str | None) -> None:
    missing = sorted(key for key in info["missing_keys"] if unused is None or not key.startswith(unused))
    if missing:
        raise InvalidRequest(
            f"{folder}: {len(missing)} tensors of {name} are in no weight file ({few(missing)}); "
            "download the weights again, or check that config.json belongs to them"
        )
    unlike = sorted(f"{key}: {tuple(found)} and not {tuple(wanted)}" for key, found, wanted in info["mismatched_keys"])
    if unlike:
        raise InvalidRequest(
            f"{folder}: {len(unlike)} tensors have other shapes than config.json says ({few(unlike)}); "
            "check that config.json belongs to the weights"
        )


def _record(model: Any, folder: Path | None, seconds: float) -> LoadedModel:
    text = model.config.get_text_config(decoder=True)
    return LoadedModel(
        model=model,
        config=text,
        full_config=model.config,
        vocab=text.vocab_size,
        max_positions=max_positions(text),
        eos_ids=_eos_ids(folder, model.config, text),
        weight_bytes=tensor_bytes([*model.parameters(), *model.buffers()]),
        folder=folder,
        seconds=seconds,
    )


def max_positions(text: Any) -> int:
    """The longest request that a language model was made for, by its config."""
    return next((value for name in _LONGEST if (value := getattr(text, name, None))), LARGEST_CONTEXT)


def tensor_bytes(tensors: Iterable[Any]) -> int:
    """Of all of them, each storage once."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages.values())


def _eos_ids(folder: Path | None, full: Any, text: Any) -> tuple[int, ...]:
    """Tokens that end a text: those of generation_config.json first, then those of the config, each once."""
    path = folder / "generation_config.json" if folder is not None else None
    generation = read_object(path).get("eos_token_id") if path is not None and path.is_file() else None
    said = (generation, getattr(full, "eos_token_id", None), getattr(text, "eos_token_id", None))
    ids = [one for ids in said for one in (ids if isinstance(ids, list | tuple) else [ids])]
    return tuple(dict.fromkeys(one for one in ids if isinstance(one, int) and not isinstance(one, bool)))


@contextmanager
def foreign_errors(kind: str, attention: str | dict[str, str] | None) -> Iterator[None]:
    """What `transformers` raises, in one line of Brim's."""
    try:
        with translated():
            yield
    except BrimError:
        raise
    except Exception as error:
        if isinstance(error, KeyError) and error.args == (attention,):  # it has classes of its own for a few names
            raise UnsupportedModel(
                f"the attention of '{kind[:60]}' does not go through transformers' attention interface"
            ) from error
        raise UnsupportedModel(f"transformers cannot load this '{kind[:60]}': {first_line(error)}") from error


@contextmanager
def quietly(progress: Progress) -> Iterator[None]:
    """No bars and no warnings of `transformers`; its bar over tensors, which has a public hook, tells the progress."""
    from transformers.utils import logging

    def counted(items: Iterable[Any], total: int) -> Iterator[Any]:
        progress(0, total)
        for done, item in enumerate(items, 1):
            yield item
            progress(done, total)

    def bar(factory: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("desc") == "Loading weights" and args:
            return counted(args[0], len(args[0]))
        return factory(*args, **{**kwargs, "disable": True})

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    before = logging.set_tqdm_hook(bar)
    try:
        yield
    finally:
        logging.set_tqdm_hook(before)
        logging.set_verbosity(verbosity)
