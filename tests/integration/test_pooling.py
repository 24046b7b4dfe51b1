"""Models that embed and score: equal to their own forward and to sentence-transformers, sized, rescued, in turns."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("starlette")

import torch

from brim.batch_fit import fit_batches
from brim.cli.fit import fit_wishes
from brim.cli.main import make_parser, run
from brim.cli.serve import EngineStarter
from brim.engine.pooling.engine import PoolingEngine, PoolingSettings
from brim.engine.pooling.loading import PoolingSource, is_causal, task_of
from brim.engine.pooling.requests import PooledInput, PoolingInput, PoolingRequest
from brim.errors import DoesNotFit, InvalidRequest, OutOfMemory, PromptTooLong, UnsupportedModel
from brim.guard.shares import ClientShare
from brim.model.tasks import ModelTask
from brim.probes.cpu import CpuProbe
from brim.records.progress import silent
from brim.serve.responses.pooling import finished, probability
from brim.serve.service import LoadedPooling
from brim.units import KIB, MIB
from tests.integration import tiny_pooling as tiny

TEXTS = ["the cat sat on the mat", "a dog", "deep quiet river bank star !", "star", "the " * 40]
EMBEDDERS = (
    *(tiny.bert, tiny.xlm_roberta, tiny.modern_bert),
    *(tiny.qwen3_embedding, tiny.mistral_embedding, tiny.gemma_embedding),
)


def engine_of(folder: Path, *, tokens: int | None = 128, rows: int = 8, **options: Any) -> PoolingEngine:
    engine = PoolingEngine(PoolingSource(str(folder), **options), settings=PoolingSettings(rows), progress=False)
    if tokens is not None:
        engine.build(max(tokens, engine.max_length))
    return engine


def inputs_of(engine: PoolingEngine, texts: list[Any]) -> list[PoolingInput]:
    return [PoolingInput(np.asarray(engine.tokenizer(one)["input_ids"], np.int32)) for one in texts]


def embedded(engine: PoolingEngine, texts: list[str]) -> np.ndarray:
    found = engine.run_all(inputs_of(engine, texts))
    return np.stack([finished(one, None, engine.model.normalise) for one in found])


# -- equal to the model's own code ---------------------------------------------------------------------------------


def own_forward(folder: Path, text: str) -> torch.Tensor:
    """Hidden states of a text alone, as the class computes them."""
    from transformers import AutoModel, AutoTokenizer

    model = AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        found: torch.Tensor = model(
            **AutoTokenizer.from_pretrained(folder)(text, return_tensors="pt")
        ).last_hidden_state
    return found[0]


@pytest.mark.parametrize("make", EMBEDDERS)
def test_embeddings_are_those_of_the_class_itself(make: Callable[[Path], Path], tmp_path: Path) -> None:
    folder = make(tmp_path / "model")
    pooling = {"cls": lambda h: h[0], "mean": lambda h: h.mean(0), "lasttoken": lambda h: h[-1]}
    with engine_of(folder) as engine:
        found = embedded(engine, TEXTS)
        (kind,) = engine.model.head.kinds
        assert engine.steps > 1  # in several batches, padded
    for text, vector in zip(TEXTS, found, strict=True):
        wanted = torch.nn.functional.normalize(pooling[kind](own_forward(folder, text)), dim=0)
        np.testing.assert_allclose(vector, wanted.numpy(), atol=1e-5)


@pytest.mark.parametrize("make", EMBEDDERS)
def test_embeddings_are_those_of_sentence_transformers(make: Callable[[Path], Path], tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    folder = make(tmp_path / "model")
    with engine_of(folder) as engine:
        found = embedded(engine, TEXTS)
    wanted = library.SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["max", "mean_sqrt_len_tokens", "weightedmean", ["cls", "lasttoken"]])
def test_other_kinds_of_pooling_and_a_dense_layer(kind: Any, tmp_path: Path) -> None:
    folder = tiny.bert(tmp_path / "model")
    several = isinstance(kind, list)
    tiny.write_sentence_files(folder, {"pooling_mode": kind}, normalise=False, dense=(64 if several else 32, 12))
    with engine_of(folder) as engine:
        found = embedded(engine, TEXTS)
        assert engine.model.width == 12
    from safetensors.torch import load_file

    dense = load_file(folder / "2_Dense/model.safetensors")
    for text, vector in zip(TEXTS, found, strict=True):
        hidden = own_forward(folder, text)
        places = torch.arange(1, len(hidden) + 1)[:, None]
        pooled = {
            "max": lambda h: h.amax(0),
            "mean_sqrt_len_tokens": lambda h: h.sum(0) / len(h) ** 0.5,
            "weightedmean": lambda h, p=places: (h * p).sum(0) / p.sum(),
            "['cls', 'lasttoken']": lambda h: torch.cat([h[0], h[-1]]),
        }[str(kind)](hidden)
        wanted = torch.tanh(dense["linear.weight"] @ pooled + dense["linear.bias"])
        np.testing.assert_allclose(vector, wanted.numpy(), atol=1e-5)


def test_a_decoder_that_sees_ahead_is_not_taken_for_a_causal_one(tmp_path: Path) -> None:
    with (
        engine_of(tiny.qwen3_embedding(tmp_path / "q")) as causal,
        engine_of(tiny.gemma_embedding(tmp_path / "g")) as both,
    ):
        assert is_causal(causal.model.model, causal.model.vocab)
        assert causal.model.causal
        assert not both.model.causal


@pytest.mark.parametrize("make", [tiny.bert_reranker, tiny.xlm_roberta_reranker, tiny.decoder_reranker])
def test_scores_are_those_of_the_class_itself(make: Callable[[Path], Path], tmp_path: Path) -> None:
    from transformers import AutoModelForSequenceClassification

    folder = make(tmp_path / "model")
    pairs = [("the cat", text) for text in TEXTS]
    whole = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with engine_of(folder) as engine:
        assert engine.model.task is ModelTask.SCORE
        given = []
        for pair in pairs:
            written = engine.tokenizer(*pair, return_token_type_ids=True)
            kinds = written["token_type_ids"]
            second = kinds.index(1) if engine.model.takes_segments else None
            given.append(PoolingInput(np.asarray(written["input_ids"], np.int32), second))
        found = [float(one[0]) for one in engine.run_all(given)]
        takes = {"return_token_type_ids": engine.model.takes_segments}
        with torch.inference_mode():
            wanted = [
                float(whole(**engine.tokenizer(*pair, return_tensors="pt", **takes)).logits[0, 0]) for pair in pairs
            ]
    assert found == pytest.approx(wanted, abs=1e-5)


def test_a_reranker_that_is_asked_yes_or_no(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = tiny.qwen3_reranker(tmp_path / "Qwen3-Reranker-tiny")
    whole = AutoModelForCausalLM.from_pretrained(folder).eval()
    with engine_of(folder) as engine:
        assert engine.model.task is ModelTask.SCORE
        yes, no = (engine.tokenizer.convert_tokens_to_ids(word) for word in ("yes", "no"))
        found = [probability(float(one[0])) for one in engine.run_all(inputs_of(engine, TEXTS))]
        with torch.inference_mode():
            logits = [whole(**engine.tokenizer(text, return_tensors="pt")).logits[0, -1] for text in TEXTS]
    wanted = [float(torch.softmax(one[[no, yes]], 0)[1]) for one in logits]
    assert found == pytest.approx(wanted, abs=1e-5)


# -- what is loaded, and what is refused ---------------------------------------------------------------------------


def test_a_language_model_embeds_where_it_is_told_to(tmp_path: Path) -> None:
    folder = tiny.qwen3_reranker(tmp_path / "plain")
    assert task_of(str(folder), "auto", silent) is ModelTask.GENERATE
    with engine_of(folder, task=ModelTask.EMBED) as engine:
        assert engine.model.normalise
        assert "last token" in engine.warnings[0]
        wanted = own_forward(folder, TEXTS[0])[-1]
        vector = embedded(engine, TEXTS[:1])[0]
    np.testing.assert_allclose(vector, torch.nn.functional.normalize(wanted, dim=0).numpy(), atol=1e-5)


def test_lengths_come_from_the_files_and_positions_bound_them(tmp_path: Path) -> None:
    folder = tiny.xlm_roberta(tmp_path / "model", max_length=32)
    with engine_of(folder, tokens=None) as engine:
        assert engine.max_length == 32
    with engine_of(folder, tokens=None, max_length=64) as engine:
        assert engine.max_length == 64  # 65 positions, of which padding has one
    with pytest.raises(InvalidRequest, match="positions for 64"):
        engine_of(folder, tokens=None, max_length=65)


def test_what_cannot_be_served_says_why(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForSequenceClassification

    labels = BertConfig(**tiny.SMALL, num_labels=3)
    tiny.write_model(tmp_path / "labels", labels, BertForSequenceClassification)
    with pytest.raises(UnsupportedModel, match="3 labels"):
        engine_of(tmp_path / "labels")
    with pytest.raises(UnsupportedModel, match="--task embed"):
        engine_of(tiny.bert(tmp_path / "bert"), task=ModelTask.SCORE)


def test_inputs_are_checked(tmp_path: Path) -> None:
    with engine_of(tiny.bert(tmp_path / "model")) as engine:
        with pytest.raises(PromptTooLong, match=r"input\[1\]: it has 65 tokens; this model takes 64"):
            engine.run_all([PoolingInput(np.ones(1, np.int32)), PoolingInput(np.ones(65, np.int32))])
        with pytest.raises(InvalidRequest, match="out of vocabulary"):
            engine.run_all([PoolingInput(np.array([engine.model.vocab], np.int32))])
        with pytest.raises(InvalidRequest, match="no tokens"):
            engine.run_all([PoolingInput(np.array([], np.int32))])
        assert engine.idle


# -- the fit -------------------------------------------------------------------------------------------------------


def test_a_fit_proves_the_largest_batch_that_the_budget_holds(tmp_path: Path) -> None:
    folder = tiny.bert(tmp_path / "model")
    sizes = []
    for budget in (MIB, 2 * MIB):
        probe = CpuProbe(budget)
        engine = PoolingEngine(
            PoolingSource(str(folder)), settings=PoolingSettings(64, 8192), probe=probe, progress=False
        )
        with engine:
            report = fit_batches(engine, probe=probe, canary_bytes=128 * KIB)
            assert report.limited_by == "memory"
            assert report.batch_tokens == engine.batch_tokens
            taken = sum(item.measured_bytes or 0 for item in report.items)
            assert budget - 4 * KIB < taken <= budget  # all of it has a line
            # Larger by a tenth, and a worst batch does not fit beside the canary.
            wider = report.batch_tokens * 11 // 10
            engine.teardown()
            engine.build(wider)
            with pytest.raises(OutOfMemory):
                stress_all(engine)
            sizes.append(report.batch_tokens)
    assert sizes[1] > 1.8 * sizes[0]


def stress_all(engine: PoolingEngine) -> None:
    for shape in engine.stress_shapes():
        engine.stress(shape)


def test_a_fit_asks_for_no_more_than_was_allowed_and_is_stored(tmp_path: Path) -> None:
    folder = tiny.qwen3_embedding(tmp_path / "model")
    for again in (False, True):
        probe = CpuProbe(64 * MIB)
        engine = PoolingEngine(
            PoolingSource(str(folder)), settings=PoolingSettings(8, 400), probe=probe, progress=False
        )
        with engine:
            report = fit_batches(engine, probe=probe, canary_bytes=MIB, store=tmp_path / "fits")
            assert (report.batch_tokens, report.limited_by, report.from_store) == (400, "requests", again)


def test_a_budget_that_holds_no_input_is_refused(tmp_path: Path) -> None:
    folder = tiny.bert(tmp_path / "model")
    probe = CpuProbe(400 * KIB)
    engine = PoolingEngine(PoolingSource(str(folder)), probe=probe, progress=False)
    with engine, pytest.raises(DoesNotFit, match=r"longest input \(64 tokens\) does not fit .* lower --max-len"):
        fit_batches(engine, probe=probe, canary_bytes=256 * KIB)


# -- out of memory, and turns --------------------------------------------------------------------------------------


def drained(engine: PoolingEngine) -> list[PooledInput]:
    found = []
    while not engine.idle:
        found += engine.step()
    return found


def test_an_out_of_memory_costs_the_input_that_cannot_run_alone(tmp_path: Path) -> None:
    folder = tiny.bert(tmp_path / "model")
    texts = ["the " * 30, "a dog " * 10, "a cat " * 10, "star " * 20]
    with engine_of(folder, tokens=256) as engine:
        wanted = embedded(engine, texts)
        engine.fail_long_inputs(32)
        engine.submit_request(PoolingRequest(tuple(inputs_of(engine, texts)), "r"))
        found = {one.index: one for one in drained(engine)}
        health = engine.health
    assert [found[index].vector is None for index in range(4)] == [True, False, False, False]
    assert "32 of the 32 tokens of this request do not fit in a step even alone" in found[0].error
    for index in (1, 2, 3):
        np.testing.assert_allclose(finished(found[index].vector, None, True), wanted[index], atol=1e-5)
    assert (health.rescues, health.ended_requests) == (1, 1)


def test_memory_that_is_short_for_a_moment_costs_nobody(tmp_path: Path) -> None:
    folder = tiny.bert(tmp_path / "model")
    texts = [f"{word} " * 40 for word in tiny.WORDS[:8]]
    probe = CpuProbe(8 * MIB)
    engine = PoolingEngine(PoolingSource(str(folder)), settings=PoolingSettings(8, 512), probe=probe, progress=False)
    with engine:
        fit_batches(engine, probe=probe, canary_bytes=64 * KIB)
        wanted = embedded(engine, texts)
        probe.hold_unused(probe.reading().free_bytes - 160 * KIB)  # a neighbour
        engine.submit_request(PoolingRequest(tuple(inputs_of(engine, texts)), "r"))
        found = sorted(drained(engine), key=lambda one: one.index)
        assert engine.health.rescues
        np.testing.assert_allclose(np.stack([finished(one.vector, None, True) for one in found]), wanted, atol=1e-5)


def test_a_small_request_is_in_the_next_batch_beside_a_huge_one(tmp_path: Path) -> None:
    with engine_of(tiny.bert(tmp_path / "model"), tokens=64, rows=4) as engine:
        one = inputs_of(engine, ["a cat sat on the mat"])[0]
        engine.submit_request(PoolingRequest((one,) * 2048, "huge", share=ClientShare("greedy")))
        engine.step()
        engine.submit_request(PoolingRequest((one,), "small", share=ClientShare("other")))
        assert "small" in {one.request_id for one in engine.step()}
        engine.cancel("huge")
        assert engine.idle


def test_what_is_cancelled_is_not_computed(tmp_path: Path) -> None:
    with engine_of(tiny.bert(tmp_path / "model"), tokens=64, rows=2) as engine:
        given = tuple(inputs_of(engine, TEXTS * 4))
        engine.submit_request(PoolingRequest(given, "r"))
        engine.step()
        engine.cancel("r")
        assert engine.idle
        assert engine.figures.waiting == 0
        engine.submit_request(PoolingRequest(given[:2], "r"))
        assert len(drained(engine)) == 2


# -- the commands --------------------------------------------------------------------------------------------------


def test_brim_fit_proves_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tiny.bert(tmp_path / "model")
    small = ["--canary", "128KiB", "--max-seqs", "8", "--batch-tokens", "300", "--no-store", "--quiet"]
    assert run(["fit", str(folder), "--memory", "8MiB", "--json", *small]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["batch_tokens"], report["kv_tokens"], report["limited_by"]) == (300, 0, "requests")
    assert run(["fit", str(folder), "--memory", "8MiB", *small]) == 0
    assert "batches of 300 tokens proven" in " ".join(capsys.readouterr().out.split())
    assert run(["fit", str(folder), "--memory", "200KiB", *small]) == 1
    assert "the longest input (64 tokens) does not fit" in capsys.readouterr().err
    assert run(["fit", str(folder), "--memory", "8MiB", "--task", "generate", *small]) == 2
    assert "is an encoder" in capsys.readouterr().err
    assert run(["fit", str(folder), "--memory", "8MiB", "--draft", "brim-tiny", *small]) == 2
    assert "draft: the model is served to embed" in capsys.readouterr().err


def test_a_server_is_started_for_what_the_model_is_for(tmp_path: Path) -> None:
    """By the options of `brim serve`, those of a plan's command among them."""
    folder = tiny.qwen3_embedding(tmp_path / "model")
    words = ["serve", str(folder), "--memory", "64MiB", "--canary", "1MiB", "--no-store", "--kv-tokens", "4096"]
    options = make_parser().parse_args([*words, "--inject-out-of-memory", "90", "--max-seqs", "4"])
    said: list[str] = []
    with ExitStack() as leased:
        loaded = EngineStarter(options, fit_wishes(options), leased, said.append).load(silent)
        assert isinstance(loaded, LoadedPooling)
        report = loaded.fit(silent)
        assert report is not None
        assert (report.batch_tokens, report.limited_by) == (4 * 96, "requests")
        with loaded.engine as engine:
            assert engine.model.task is ModelTask.EMBED
            engine.submit_request(PoolingRequest((PoolingInput(np.ones(95, np.int32)),), "long"))
            (ended,) = drained(engine)
    assert "do not fit in a step even alone" in ended.error
    assert said == ["--kv-tokens has no effect: a model that embeds or scores has no KV cache"]
