"""What a model is served for: to generate text, to embed it, or to score pairs of texts.

In: a config.json, the name it was asked for by, and the folder it is in. Out: a `ModelTask`. Reads files only; whether
the class can be run is found out when it is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from brim.model.architectures import head_of
from brim.model.sentence_files import is_sentence_folder, read_sentence_files

_RERANKER = re.compile(r"qwen3-?reranker", re.IGNORECASE)  # a language model that is asked yes or no
_CLASSIFIES = "SequenceClassification"
_MASKED = "ForMaskedLM"


class ModelTask(StrEnum):
    """The values are those of `--task`."""

    GENERATE = "generate"
    EMBED = "embed"
    SCORE = "score"


class PairFormat(StrEnum):
    """How a query and a document are written as one input."""

    PAIR = "pair"  # as the tokenizer writes two texts
    QWEN3_RERANKER = "qwen3-reranker"  # by the template of its model card


def find_task(config: Mapping[str, Any], name: str, folder: Path | None = None) -> ModelTask:
    """What a model was made for, by what its files say; a language model generates."""
    architecture = architecture_of(config)
    if head_of(architecture) == _CLASSIFIES or answers_yes_or_no(config, name, folder):
        return ModelTask.SCORE
    if is_sentence_folder(folder) or head_of(architecture) == "" or architecture.endswith(_MASKED):
        return ModelTask.EMBED
    return ModelTask.GENERATE


def architecture_of(config: Mapping[str, Any]) -> str:
    """The class that a config names first; nothing where it names none."""
    named = config.get("architectures")
    return named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""


def answers_yes_or_no(config: Mapping[str, Any], name: str, folder: Path | None) -> bool:
    """Whether a language model scores a pair by its logits of two words (Qwen3-Reranker)."""
    if head_of(architecture_of(config)) is not None:
        return False
    if is_sentence_folder(folder):
        assert folder is not None
        if read_sentence_files(folder).logit_score is not None:
            return True
    return bool(_RERANKER.search(name) or config.get("classifier_from_token"))


def is_qwen3_reranker(config: Mapping[str, Any], name: str) -> bool:
    """Whether pairs are written by the template of Qwen3-Reranker."""
    return bool(_RERANKER.search(name)) or bool(config.get("is_original_qwen3_reranker"))
