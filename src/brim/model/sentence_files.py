"""The files that `sentence-transformers` writes beside a model: how its hidden states become an embedding.

In: a model's folder. Out: a `SentenceFiles`, or an error that names the file and what is wrong. Read are `modules.json`
with the configs it names, `sentence_bert_config.json` and `config_sentence_transformers.json`. Weights of dense layers
are not opened here. Modules that are none of these (convolutions, word weights) are refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from brim.errors import InvalidConfig, InvalidRequest, UnsupportedModel, first_line
from brim.model.jsonfile import read_object

MODULES = "modules.json"
_LENGTH = ("sentence_bert_config.json", "sentence_roberta_config.json", "sentence_xlm-roberta_config.json")
_PROMPTS = "config_sentence_transformers.json"


class PoolingKind(StrEnum):
    """How hidden states of all tokens become one vector. The values are those of `1_Pooling/config.json`."""

    CLS = "cls"
    MAX = "max"
    MEAN = "mean"
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    WEIGHTED_MEAN = "weightedmean"
    LAST = "lasttoken"


_FLAGS = {  # older files have a flag for each kind, in the order in which several are put side by side
    "pooling_mode_cls_token": PoolingKind.CLS,
    "pooling_mode_max_tokens": PoolingKind.MAX,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": PoolingKind.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": PoolingKind.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": PoolingKind.LAST,
}


@dataclass(frozen=True, slots=True)
class DenseFile:
    """A linear layer behind the pooling."""

    folder: Path
    in_features: int
    out_features: int
    bias: bool
    activation: str  # a class of torch, by its name


@dataclass(frozen=True, slots=True)
class LogitScoreFile:
    """A score from the logits of the last token."""

    true_token: int
    false_token: int | None


@dataclass(frozen=True, slots=True)
class SentenceFiles:
    """What is said of a model."""

    pooling: tuple[PoolingKind, ...] = ()  # several: side by side
    include_prompt: bool = True  # False: the tokens of a prompt are left out of the pooling
    dense: tuple[DenseFile, ...] = ()
    normalise: bool = False
    logit_score: LogitScoreFile | None = None
    max_length: int | None = None
    lower_case: bool = False
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str = ""


def is_sentence_folder(folder: Path | None) -> bool:
    return folder is not None and (folder / MODULES).is_file()


def read_sentence_files(folder: Path) -> SentenceFiles:
    """All of them; there is a `modules.json`."""
    found: dict[str, Any] = {}
    for kind, path in _modules(folder / MODULES):
        where = _inside(folder, path)
        if found.get("normalise") and kind != "Normalize":
            raise UnsupportedModel(f"{folder / MODULES}: {kind} comes after Normalize; only the end is normalised here")
        match kind:
            case "Transformer":
                if path:
                    raise UnsupportedModel(f"{folder / MODULES}: the model is in {path}; give that folder's files here")
            case "Pooling":
                found |= _pooling(where / "config.json")
            case "Dense":
                found["dense"] = (*found.get("dense", ()), _dense(where))
            case "Normalize":
                found["normalise"] = True
            case "LogitScore":
                found["logit_score"] = _logit_score(where / "config.json")
            case "Dropout":
                pass  # nothing where nothing is trained
            case _:
                raise UnsupportedModel(f"{folder / MODULES}: modules of the kind {kind[:60]} are not run here")
    return SentenceFiles(**found, **_lengths(folder), **_prompts(folder))


def _modules(path: Path) -> list[tuple[str, str]]:
    """(class without its package, folder) of each module."""
    try:
        listed = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise InvalidRequest(f"{path}: cannot be read ({first_line(error)}); download it again") from None
    if not isinstance(listed, list) or not all(isinstance(one, dict) for one in listed):
        raise InvalidRequest(f"{path}: it must be a list of modules; download it again")
    return [(str(one.get("type", "")).rpartition(".")[2], str(one.get("path", ""))) for one in listed]


def _inside(folder: Path, path: str) -> Path:
    if Path(path).is_absolute() or ".." in Path(path).parts:
        raise InvalidRequest(f"{folder / MODULES}: names a folder outside of it ({path[:80]})")
    return folder / path


def _pooling(path: Path) -> dict[str, Any]:
    config = read_object(path)
    written = config.get("pooling_mode")
    if written is None:
        kinds = tuple(kind for name, kind in _FLAGS.items() if config.get(name)) or (PoolingKind.MEAN,)
    else:
        kinds = tuple(_kind(one, path) for one in (written if isinstance(written, list) else [written]))
    return {"pooling": kinds, "include_prompt": bool(config.get("include_prompt", True))}


def _kind(written: Any, path: Path) -> PoolingKind:
    try:
        return PoolingKind(written)
    except ValueError:
        raise UnsupportedModel(f"{path}: pooling_mode {written!r:.40} is not one of {', '.join(PoolingKind)}") from None


def _dense(folder: Path) -> DenseFile:
    path = folder / "config.json"
    config = read_object(path)
    sizes = config.get("in_features"), config.get("out_features")
    if not all(isinstance(size, int) and 0 < size < 1 << 20 for size in sizes):
        raise InvalidConfig("in_features", f"is missing in {path}, or no size", "download the model again")
    if config.get("use_residual"):
        raise UnsupportedModel(f"{path}: a dense layer with a residual is not run here")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh"))
    return DenseFile(folder, *sizes, bool(config.get("bias", True)), activation.rpartition(".")[2])  # type: ignore[arg-type]


def _logit_score(path: Path) -> LogitScoreFile:
    config = read_object(path)
    true, false = config.get("true_token_id"), config.get("false_token_id")
    if not isinstance(true, int) or not isinstance(false, int | None):
        raise InvalidConfig("true_token_id", f"is no token in {path}", "download the model again")
    return LogitScoreFile(true, false)


def _lengths(folder: Path) -> dict[str, Any]:
    path = next((folder / name for name in _LENGTH if (folder / name).is_file()), None)
    config = {} if path is None else read_object(path)
    length = config.get("max_seq_length")
    known = isinstance(length, int) and not isinstance(length, bool) and length > 0
    return {"max_length": length if known else None, "lower_case": bool(config.get("do_lower_case", False))}


def _prompts(folder: Path) -> dict[str, Any]:
    path = folder / _PROMPTS
    config = read_object(path) if path.is_file() else {}
    written, name = config.get("prompts"), config.get("default_prompt_name")
    prompts = {str(key): str(value) for key, value in written.items()} if isinstance(written, dict) else {}
    return {"prompts": prompts, "default_prompt": prompts.get(name, "") if isinstance(name, str) else ""}
