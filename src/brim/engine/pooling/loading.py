"""From what the user wrote to a model that embeds or scores (`PoolingModel`).

In: a folder with config.json and safetensors, an id of the hub, or, with random weights, anything a config can be had
from. Out: the model on its device. How hidden states become an embedding is what the files of `sentence-transformers`
say; where there are none, the mean over an encoder's tokens or a decoder's last token, normalised.

Whether a decoder is causal is not read anywhere: a text is run with and without more text behind it, and compared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brim.engine.device.cpu_kernels import keep_few_kernels
from brim.engine.device.segments import let_segments_grow
from brim.engine.front.validation import find_tokenizer
from brim.engine.pooling.heads import ClassifierHead, EmbeddingHead, Head, held_by, load_dense, words_head
from brim.engine.pooling.model import PoolingModel
from brim.engine.weights.from_hub import on_this_machine
from brim.engine.weights.load import (
    NOT_FOR_DUMMIES,
    check_options,
    drawn_on,
    foreign_errors,
    from_files,
    locate,
    max_positions,
    quietly,
    tensor_bytes,
    type_of_weights,
)
from brim.engine.weights.quantised import refuse_quantised
from brim.errors import InvalidRequest, UnsupportedModel
from brim.model.sentence_files import PoolingKind, SentenceFiles, is_sentence_folder, read_sentence_files
from brim.model.tasks import ModelTask, PairFormat, answers_yes_or_no, find_task, is_qwen3_reranker
from brim.model.transformers_classes import check_sizes, config_object, find_class, is_encoder, named_class
from brim.records.progress import Stage, Told

_UNUSED = "pooler."  # of encoders: embeddings are made of hidden states
_YES, _NO = "yes", "no"
_CUT_BY_CARD = re.compile(  # models whose cards say that embeddings may be cut, and whose configs do not
    r"qwen3-embedding|embeddinggemma|mxbai-embed-large|nomic-embed-text-v1\.5|arctic-embed-\w+-v(1\.5|2)", re.IGNORECASE
)
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 5e-2}
_TRIED_TOKENS = 6  # with as many more behind them


@dataclass(frozen=True, slots=True)
class PoolingSource:
    """What was asked for."""

    model: str
    task: ModelTask | None = None  # None: what its files say
    load_format: str = "auto"
    dtype: str = "auto"
    device: str = "cpu"
    max_length: int | None = None
    matryoshka: bool = False  # embeddings may be cut, whatever the files say
    seed: int = 0


def task_of(source: str, load_format: str, told: Told) -> ModelTask:
    """What a model would be served for, by its files; one of the hub is downloaded for it."""
    folder, raw = locate(on_this_machine(source, load_format, told), "dummy")  # weights are checked as they are loaded
    return find_task(raw, source, folder)


def load_pooling(asked: PoolingSource, told: Told) -> PoolingModel:
    check_options(asked.load_format, asked.dtype, asked.device)
    (let_segments_grow if torch.device(asked.device).type == "cuda" else keep_few_kernels)()
    where = on_this_machine(asked.model, asked.load_format, told)
    folder, raw = locate(where, asked.load_format)
    if asked.load_format != "dummy":
        assert folder is not None
        refuse_quantised(asked.model, raw, folder)
    check_sizes(raw)
    task = asked.task or find_task(raw, asked.model, folder)
    files = read_sentence_files(folder) if is_sentence_folder(folder) and folder is not None else None
    return _Loading(asked, task, folder, raw, files, told).model()


@dataclass(frozen=True, slots=True)
class _Loading:
    """A model while it is loaded."""

    asked: PoolingSource
    task: ModelTask
    folder: Path | None
    raw: Mapping[str, Any]
    files: SentenceFiles | None  # None: there are none
    told: Told

    @property
    def kind(self) -> str:
        return str(self.raw.get("model_type", ""))

    def model(self) -> PoolingModel:
        tokenizer = find_tokenizer(self.folder)
        cls, by_words = self._class()
        with (
            foreign_errors(self.kind, "sdpa"),
            quietly(lambda done, total: self.told(Stage("load", "weights", done, total))),
        ):
            config = config_object(self.raw, NOT_FOR_DUMMIES if self.asked.load_format == "dummy" else ())
            if config.is_encoder_decoder:
                raise UnsupportedModel(
                    f"'{self.kind}' is an encoder-decoder; encoders and decoders embed and score here"
                )
            whole = self._loaded(cls, config).eval().requires_grad_(False)
        encoder = is_encoder(self.kind, config)
        run, head = self._head(whole, encoder, by_words, tokenizer)
        if head is not None and getattr(run, "pooler", None) is not None:
            run.pooler = None
        causal = not encoder and is_causal(run, config.get_text_config(decoder=True).vocab_size)
        return self._record(whole, run, head, causal, tokenizer)

    def _class(self) -> tuple[Any, bool]:
        """The class to load, and whether a language head is asked for two words."""
        from transformers import AutoModel

        if self.task is ModelTask.EMBED:
            with foreign_errors(self.kind, "sdpa"):
                config = config_object(self.raw, NOT_FOR_DUMMIES)
                mapping: Any = AutoModel._model_mapping
                return mapping[type(config)], False
        if answers_yes_or_no(self.raw, self.asked.model, self.folder):
            if not is_qwen3_reranker(self.raw, self.asked.model):
                raise UnsupportedModel(
                    f"{self.asked.model}: a reranker that is asked for words, in a template of its own; only that of "
                    "Qwen3-Reranker is known here (a folder of it has that in its name)"
                )
            return find_class(self.kind, self.raw), True
        named = named_class(self.kind, self.raw)
        if named is None or not named.__name__.endswith("ForSequenceClassification"):
            raise UnsupportedModel(
                f"task: '{self.asked.model[:80]}' has no class that scores pairs (…ForSequenceClassification), and is "
                "not asked for words as Qwen3-Reranker is; serve it with --task embed, which scores by similarity"
            )
        return named, False

    def _loaded(self, cls: Any, config: Any) -> Any:
        asked = self.asked
        attention = "sdpa" if getattr(cls, "_supports_sdpa", False) else "eager"
        if asked.load_format != "dummy":
            assert self.folder is not None
            unused = _UNUSED if self.task is ModelTask.EMBED else None
            return from_files(cls, config, self.folder, asked.dtype, asked.device, attention, unused)
        with drawn_on(asked.device, asked.seed):
            return cls._from_config(config, dtype=type_of_weights(asked.dtype, config), attn_implementation=attention)

    def _head(self, whole: Any, encoder: bool, by_words: bool, tokenizer: Any) -> tuple[Any, Head | None]:
        """What is run, and what is made of its hidden states; None: the class does that itself."""
        if by_words:
            true, false = self._words(tokenizer)
            return whole.base_model, words_head(whole.get_output_embeddings(), true, false)
        if self.task is ModelTask.SCORE:
            self._check_labels(whole.config)
            return (whole, None) if encoder else (whole.base_model, ClassifierHead(whole.score))
        files = self.files or SentenceFiles(pooling=(PoolingKind.MEAN if encoder else PoolingKind.LAST,))
        dense = [load_dense(one, whole.device, whole.dtype) for one in files.dense]
        return whole, EmbeddingHead(files.pooling or (PoolingKind.MEAN,), dense)

    def _words(self, tokenizer: Any) -> tuple[int, int | None]:
        if self.files is not None and self.files.logit_score is not None:
            return self.files.logit_score.true_token, self.files.logit_score.false_token
        if tokenizer is None:
            raise InvalidRequest(f"{self.asked.model}: a reranker that is asked for words needs its tokenizer")
        no, yes = self.raw.get("classifier_from_token") or (_NO, _YES)
        return tuple(_one_token(tokenizer, word) for word in (yes, no))  # type: ignore[return-value]

    def _check_labels(self, config: Any) -> None:
        if config.num_labels != 1:
            raise UnsupportedModel(
                f"{self.asked.model}: it tells {config.num_labels} labels apart; a model that scores pairs has one"
            )

    def _record(self, whole: Any, run: Any, head: Head | None, causal: bool, tokenizer: Any) -> PoolingModel:
        files, config = self.files or SentenceFiles(normalise=True), whole.config
        text = config.get_text_config(decoder=True)
        pad = getattr(config, "pad_token_id", None)
        if pad is None:
            pad = getattr(tokenizer, "pad_token_id", None)
        with torch.inference_mode():
            width = _width(run, head)
        return PoolingModel(
            task=self.task,
            model=run,
            head=head,
            causal=causal,
            takes_segments="token_type_ids" in signature(run.forward).parameters
            and (getattr(config, "type_vocab_size", 0) or 0) > 1,
            pad_token=int(pad or 0),
            vocab=text.vocab_size,
            max_length=self._max_length(run, text, tokenizer),
            width=width,
            normalise=files.normalise,
            matryoshka=self.asked.matryoshka or _may_be_cut(self.raw, self.asked.model, self.folder),
            prompts=dict(files.prompts),
            default_prompt=files.default_prompt,
            lower_case=files.lower_case,
            pairs=PairFormat.QWEN3_RERANKER if is_qwen3_reranker(self.raw, self.asked.model) else PairFormat.PAIR,
            sigmoid=_is_sigmoid(self.raw),
            config=config,
            tokenizer=tokenizer,
            folder=self.folder,
            weight_bytes=tensor_bytes([*run.parameters(), *run.buffers(), *held_by(head)]),
            device=whole.device,
            warnings=self._warnings(causal),
        )

    def _warnings(self, causal: bool) -> tuple[str, ...]:
        found = []
        if self.files is None and self.task is ModelTask.EMBED:
            how = "the last token" if causal else "the mean over all tokens"
            found.append(f"there is no modules.json beside the model: its embedding is {how}, normalised")
        if self.files is not None and self.files.prompts and not self.files.include_prompt:
            found.append("prompts are not left out of the pooling (include_prompt is false): send texts without them")
        return tuple(found)

    def _max_length(self, run: Any, text: Any, tokenizer: Any) -> int:
        """The longest input: what was asked for, or what the files say; positions are the limit of both."""
        positions = _positions(run, text)
        said = self.files.max_length if self.files is not None else None
        if said is None:
            said = getattr(tokenizer, "model_max_length", None)
        wanted = self.asked.max_length
        if wanted is None:
            return min(positions, said or positions)
        if wanted > positions:
            raise InvalidRequest(f"max-len is {wanted:,}; the model has positions for {positions:,} tokens")
        return wanted


def is_causal(model: Any, vocab: int) -> bool:
    """Whether what is behind a token changes nothing of it."""
    ids = (torch.arange(2 * _TRIED_TOKENS, device=model.device) * 7 + 3)[None] % vocab
    with torch.inference_mode():
        short = model(input_ids=ids[:, :_TRIED_TOKENS], use_cache=False).last_hidden_state.float()
        long = model(input_ids=ids, use_cache=False).last_hidden_state.float()[:, :_TRIED_TOKENS]
    scale = short.abs().max().clamp(min=1e-6)
    return bool((short - long).abs().max() / scale < _TOLERANCE.get(model.dtype, 1e-3))


def _positions(run: Any, text: Any) -> int:
    """Tokens that there are positions for; tables of the RoBERTa kind begin behind the padding's."""
    table = getattr(getattr(getattr(run, "base_model", run), "embeddings", None), "position_embeddings", None)
    if isinstance(table, torch.nn.Embedding):
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    return max_positions(text)


def _width(run: Any, head: Head | None) -> int:
    if head is None:
        return int(run.config.num_labels)
    hidden = run.config.get_text_config(decoder=True).hidden_size
    blank = torch.zeros(1, 1, hidden, device=run.device, dtype=run.dtype)
    return head(blank, torch.ones(1, dtype=torch.long, device=run.device)).shape[-1]


def _one_token(tokenizer: Any, word: str) -> int:
    found = tokenizer.convert_tokens_to_ids(str(word))
    if not isinstance(found, int) or found == getattr(tokenizer, "unk_token_id", None):
        raise InvalidRequest(f"'{word}' is no token of the model's tokenizer, and its score is asked for")
    return found


def _may_be_cut(raw: Mapping[str, Any], name: str, folder: Path | None) -> bool:
    if raw.get("is_matryoshka") or raw.get("matryoshka_dimensions"):
        return True
    return bool(_CUT_BY_CARD.search(name) or (folder is not None and _CUT_BY_CARD.search(folder.name)))


def _is_sigmoid(raw: Mapping[str, Any]) -> bool:
    """Scores are probabilities, unless the config names another activation, as `sentence-transformers` writes it."""
    own = raw.get("sentence_transformers")
    named = own.get("activation_fn") if isinstance(own, dict) else raw.get("sbert_ce_default_activation_function")
    if not isinstance(named, str) or not named:
        return True
    kind = named.rpartition(".")[2]
    if kind not in ("Sigmoid", "Identity"):
        raise UnsupportedModel(f"scores have the activation {kind[:40]}; Sigmoid and Identity are known here")
    return kind == "Sigmoid"


def blank_tokens(length: int, vocab: int, pad_token: int) -> np.ndarray:
    """Token ids of a text that says nothing, none of them padding."""
    return np.full(length, (pad_token + 1) % vocab, np.int32)
