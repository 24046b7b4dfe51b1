"""What a model is served for, by what its files say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brim.errors import InvalidRequest, UnsupportedModel
from brim.model.sentence_files import PoolingKind, SentenceFiles, read_sentence_files
from brim.model.tasks import ModelTask, find_task


@pytest.mark.parametrize(
    ("architecture", "name", "task"),
    [
        ("Qwen3ForCausalLM", "Qwen/Qwen3-8B", ModelTask.GENERATE),
        ("Qwen3ForCausalLM", "Qwen/Qwen3-Reranker-0.6B", ModelTask.SCORE),
        ("Qwen3ForSequenceClassification", "x", ModelTask.SCORE),
        ("XLMRobertaForSequenceClassification", "BAAI/bge-reranker-v2-m3", ModelTask.SCORE),
        ("BertModel", "BAAI/bge-base-en-v1.5", ModelTask.EMBED),
        ("MistralModel", "intfloat/e5-mistral-7b-instruct", ModelTask.EMBED),
        ("BertForMaskedLM", "bert-base", ModelTask.EMBED),
        ("Qwen2_5_VLForConditionalGeneration", "x", ModelTask.GENERATE),
        ("GPT2LMHeadModel", "gpt2", ModelTask.GENERATE),
    ],
)
def test_by_class_and_name(architecture: str, name: str, task: ModelTask) -> None:
    assert find_task({"architectures": [architecture]}, name) is task


def test_a_language_model_with_sentence_files_embeds(tmp_path: Path) -> None:
    write(tmp_path, [("", "Transformer"), ("1_Pooling", "Pooling")], {"pooling_mode_lasttoken": True})
    assert find_task({"architectures": ["Qwen3ForCausalLM"]}, "x", tmp_path) is ModelTask.EMBED


def write(folder: Path, modules: list[tuple[str, str]], pooling: dict) -> None:
    listed = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in modules]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))


def test_all_files_are_read(tmp_path: Path) -> None:
    write(
        tmp_path,
        [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")],
        {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True},
    )
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": true}')
    prompts = {"prompts": {"query": "q: ", "document": ""}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    assert read_sentence_files(tmp_path) == SentenceFiles(
        pooling=(PoolingKind.MAX, PoolingKind.MEAN),
        normalise=True,
        max_length=256,
        lower_case=True,
        prompts={"query": "q: ", "document": ""},
        default_prompt="q: ",
    )


def test_the_newer_form_of_a_pooling(tmp_path: Path) -> None:
    write(tmp_path, [("1_Pooling", "Pooling")], {"pooling_mode": "weightedmean", "include_prompt": False})
    found = read_sentence_files(tmp_path)
    assert (found.pooling, found.include_prompt) == ((PoolingKind.WEIGHTED_MEAN,), False)


@pytest.mark.parametrize(
    ("modules", "pooling", "said"),
    [
        ([("", "WordWeights")], {}, "kind WordWeights"),
        ([("0_Transformer", "Transformer")], {}, "0_Transformer"),
        ([("1_Pooling", "Pooling")], {"pooling_mode": "attention"}, "'attention' is not one of cls"),
        ([("../x", "Pooling")], {}, "outside"),
        ([("", "Normalize"), ("1_Pooling", "Pooling")], {}, "after Normalize"),
    ],
)
def test_what_is_not_run_is_refused_by_name(tmp_path: Path, modules: list, pooling: dict, said: str) -> None:
    write(tmp_path, modules, pooling)
    with pytest.raises((UnsupportedModel, InvalidRequest), match=said):
        read_sentence_files(tmp_path)
