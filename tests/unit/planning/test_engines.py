"""The command of an engine says everything that the plan counts on: turn any setting, and the command turns with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

import brim
from brim.errors import InvalidRequest
from brim.model.kv import kv_footprint
from brim.model.quantisers.quantisation import NAMED_FORMATS
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from brim.planning.activation import AttentionKind
from brim.planning.engines import (
    ENGINES,
    Algorithm,
    EngineCommand,
    PlannedDraft,
    Sizes,
    checkpoint_format,
    device_specs,
    draft_algorithm,
    limits_pixels,
)
from brim.planning.engines.split import layers_by_device
from brim.records.model import Dtype, MediaType
from brim.units import GIB

DRAFT = PlannedDraft(model="org/small", algorithm=Algorithm.DRAFT_MODEL, tokens=3, weights_bytes=GIB)
SIZES = Sizes(
    model="org/model",
    dtype=Dtype.BF16,
    checkpoint="bf16",
    max_len=8192,
    max_seqs=64,
    concurrency=16,
    batch_tokens=2048,
    block_tokens=16,
    kv_tokens=131072,
    kv_dtype=Dtype.BF16,
    kv_bytes=16 * GIB,
    usable_bytes=80 * GIB,
    free_bytes=79 * GIB,
    spare_bytes=2 * GIB,
    weights_bytes=40 * GIB,
    media=frozenset({MediaType.IMAGE, MediaType.AUDIO}),
    image_pixels=1 << 20,
    image_tokens=1338,
    images_per_prompt=2,
    processor_limits_pixels=True,
    audio_seconds=30,
)
TURNED: dict[str, dict[str, Any]] = {
    "model": {"model": "org/other"},
    "kv type": {"kv_dtype": Dtype.FP8},
    "another kv type": {"kv_dtype": Dtype.INT8},
    "16-bit kv type": {"kv_dtype": Dtype.FP16},
    "plain weights": {"weights": "fp16", "dtype": Dtype.FP16, "kv_dtype": Dtype.FP16},
    "full weights": {"checkpoint": "fp32", "dtype": Dtype.FP32},
    **{f"{name} weights": {"weights": name} for name in NAMED_FORMATS},
    "no images": {"images_per_prompt": 0},
    "more images": {"images_per_prompt": 3},
    "smaller images": {"image_pixels": 1 << 18, "image_tokens": 335},
    "shorter audio": {"audio_seconds": 10},
    "draft": {"draft": DRAFT},
    "step": {"batch_tokens": 4096},
    "requests": {"max_seqs": 32, "concurrency": 8},
    "context": {"max_len": 16384},
    "cache": {"kv_tokens": 65536, "kv_bytes": 8 * GIB, "concurrency": 8},
    "ranks": {"ranks": 2},
    "graphs": {"graphs": False},
    "attention": {"attention": AttentionKind.EAGER},
}


def sizes_for(engine: str, **turned: Any) -> Sizes:
    return replace(SIZES, block_tokens=ENGINES[engine].block_tokens, **turned)


def told(command: EngineCommand) -> tuple[object, ...]:
    return command.args, command.files, command.notes


def attempt(engine: str, **turned: Any) -> tuple[EngineCommand | None, str]:
    """A command, or the words it is refused with."""
    try:
        return ENGINES[engine].command(sizes_for(engine, **turned)), ""
    except InvalidRequest as refusal:
        return None, str(refusal)


def value(command: EngineCommand, name: str) -> str:
    return command.args[command.args.index(name) + 1]


@pytest.mark.parametrize("setting", TURNED)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_setting_is_lost(engine: str, setting: str) -> None:
    """It is in the command, or in a note beside it, or refused with the option named."""
    before = ENGINES[engine].command(sizes_for(engine))
    after, refusal = attempt(engine, **TURNED[setting])
    if after:
        assert told(after) != told(before)
    else:
        assert re.search(r"; (leave out|plan with|weights may be|kv-dtype may be|it drafts with) \S", refusal)
        assert "\n" not in refusal


@pytest.mark.parametrize("algorithm", list(Algorithm))
@pytest.mark.parametrize("engine", ENGINES)
def test_a_draft_is_named_with_its_tokens_and_algorithm(engine: str, algorithm: Algorithm) -> None:
    draft = replace(DRAFT, algorithm=algorithm)
    if algorithm not in ENGINES[engine].drafts:
        with pytest.raises(InvalidRequest, match=f"engine {re.escape(engine)} has no {algorithm} drafts"):
            ENGINES[engine].command(sizes_for(engine, draft=draft))
        return
    command = ENGINES[engine].command(sizes_for(engine, draft=draft))
    more = ENGINES[engine].command(sizes_for(engine, draft=replace(draft, tokens=5)))
    text = command.shell
    assert "org/small" in text
    assert ENGINES[engine].drafts[algorithm] in text
    assert text != more.shell


@pytest.mark.parametrize("engine", [name for name, engine in ENGINES.items() if Dtype.FP8 in engine.kv_dtypes])
def test_fp8_kv_is_said_even_where_the_checkpoint_asks_for_it(engine: str) -> None:
    for own in (None, Dtype.FP8):
        command = ENGINES[engine].command(sizes_for(engine, kv_dtype=Dtype.FP8, checkpoint_kv=own))
        assert "fp8" in command.shell or "float8" in command.shell


@pytest.mark.parametrize(
    ("engine", "flag", "expected"),
    [
        ("vllm", "--kv-cache-memory-bytes", 16 * GIB + 3 * GIB),  # states live in its cache
        ("sglang", "--max-total-tokens", 131072),
        ("lightllm", "--max_total_token_num", 131072),
        ("tgi", "--max-batch-total-tokens", 131072),
        ("max", "--max-batch-total-tokens", 131072),
        ("brim", "--kv-tokens", 131072),
        ("llama.cpp", "--ctx-size", 8192 * 16),
    ],
)
def test_the_cache_is_given_exactly(engine: str, flag: str, expected: int) -> None:
    command = ENGINES[engine].command(sizes_for(engine, state_bytes=3 * GIB))
    assert value(command, flag) == str(expected)


def test_tensorrt_llm_reads_its_cache_from_a_file() -> None:
    command = ENGINES["trtllm"].command(sizes_for("trtllm", kv_dtype=Dtype.FP8, draft=DRAFT, graphs=False))
    ((name, text),) = command.files
    assert value(command, "--config") == name
    assert json.loads(text) == {
        "kv_cache_config": {"max_tokens": 131072, "free_gpu_memory_fraction": 0.9999, "dtype": "fp8"},
        "cuda_graph_config": None,
        "speculative_config": {
            "decoding_type": "Draft_Target",
            "speculative_model": "org/small",
            "max_draft_len": 3,
        },
    }
    assert command.shell.startswith(f"cat > {name} <<'EOF'\n{{")
    assert command.shell.endswith(f"--config {name}")


def test_vllm_is_told_of_less_free_memory_only_where_it_would_refuse_to_start() -> None:
    assert "--gpu-memory-utilization" not in ENGINES["vllm"].command(SIZES).args
    shared = ENGINES["vllm"].command(replace(SIZES, free_bytes=60 * GIB))
    assert value(shared, "--gpu-memory-utilization") == "0.75"


def test_sglangs_static_part_holds_states_and_draft_weights() -> None:
    command = ENGINES["sglang"].command(sizes_for("sglang", state_bytes=3 * GIB, draft=DRAFT))
    share = float(value(command, "--mem-fraction-static"))
    assert 0 <= share - (40 + 16 + 3 + 1) / 79 <= 0.001


def test_llama_cpp_takes_a_step_as_micro_batch_and_divides_by_layers() -> None:
    engine = ENGINES["llama.cpp"]
    assert (engine.default_step, engine.slots_divide_context, engine.split) == (512, True, "layer")
    command = engine.command(sizes_for("llama.cpp", ranks=3, batch_tokens=512, kv_dtype=Dtype.INT8))
    assert value(command, "--ubatch-size") == "512"
    assert int(value(command, "--batch-size")) >= 512
    assert value(command, "--split-mode") == "layer"
    assert value(command, "--tensor-split") == "1,1,1"
    assert value(command, "--cache-type-k") == value(command, "--cache-type-v") == "q8_0"
    assert value(command, "--hf-repo") == "org/model:BF16"
    assert value(engine.command(replace(SIZES, model="/models/a.gguf")), "--model") == "/models/a.gguf"


@pytest.mark.parametrize("engine", ["vllm", "sglang", "lightllm", "llama.cpp"])
def test_no_images_is_a_limit_too(engine: str) -> None:
    command = ENGINES[engine].command(sizes_for(engine, images_per_prompt=0))
    assert any(flag in ('{"image": 0}', "--disable_vision", "--no-mmproj") for flag in command.flags)
    assert not any("images-per-prompt" in note for note in command.notes)
    text_only = ENGINES[engine].command(sizes_for(engine, images_per_prompt=0, media=frozenset()))
    assert not any("image" in flag or "vision" in flag or "mmproj" in flag for flag in text_only.flags)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "lightllm", "tgi"])
def test_fp8_weights_are_made_at_load(engine: str) -> None:
    command = ENGINES[engine].command(sizes_for(engine, weights="fp8"))
    assert any("fp8" in flag for flag in command.flags)
    assert not any("checkpoint stored in" in note for note in command.notes)


def test_a_format_that_needs_another_checkpoint_is_a_note() -> None:
    command = ENGINES["vllm"].command(replace(SIZES, weights="awq"))
    assert command.flags == ENGINES["vllm"].command(SIZES).flags
    assert "put a checkpoint stored in awq in its place" in command.notes[0]
    stored = ENGINES["vllm"].command(replace(SIZES, weights="fp8", checkpoint="awq"))
    assert "put a checkpoint stored in fp8 in its place" in stored.notes[0]
    assert "--quantization" not in stored.args


def test_the_checkpoints_own_format_needs_no_words() -> None:
    same = ENGINES["vllm"].command(replace(SIZES, weights="fp8-block", checkpoint="fp8-block"))
    assert told(same) == told(ENGINES["vllm"].command(replace(SIZES, checkpoint="fp8-block")))


def test_formats_that_an_engine_lacks_are_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"llama\.cpp runs no fp8 weights; weights may be bf16, .*q8_0"):
        ENGINES["llama.cpp"].command(replace(SIZES, weights="fp8"))
    with pytest.raises(InvalidRequest, match=r"vllm runs no q8_0 weights"):
        ENGINES["vllm"].command(replace(SIZES, weights="q8_0"))


@pytest.mark.parametrize("engine", ["vllm", "sglang", "trtllm", "max", "tgi", "lightllm"])
def test_ranks_that_an_engine_refuses_are_refused(engine: str) -> None:
    """Phi-4 has 40 heads and 10 KV heads: 4 divides the heads, and neither divides the KV heads nor is divided."""
    with pytest.raises(InvalidRequest, match=r"tp 4 does not divide the 10 KV heads of phi-4.*use 1, 2, 5, 10"):
        ENGINES[engine].check_ranks(load_model("phi-4"), 4)
    ENGINES[engine].check_ranks(load_model("phi-4"), 2)


def test_kv_heads_are_replicated_by_some() -> None:
    spec = load_model("qwen2.5-7b")  # 28 heads, 4 KV heads
    ENGINES["vllm"].check_ranks(load_model("llama-3.1-8b"), 16)  # 32 and 8
    with pytest.raises(InvalidRequest, match="8 KV heads"):
        ENGINES["tgi"].check_ranks(load_model("llama-3.1-8b"), 16)
    ENGINES["llama.cpp"].check_ranks(spec, 3)
    with pytest.raises(InvalidRequest, match="28 layers"):
        ENGINES["llama.cpp"].check_ranks(spec, 29)


@pytest.mark.parametrize(("layers", "devices"), [(32, 1), (32, 2), (32, 3), (80, 8), (4, 4)])
def test_layers_are_dealt_out_once_and_evenly(layers: int, devices: int) -> None:
    parts = layers_by_device(layers, devices)
    assert [index for part in parts for index in part] == list(range(layers))
    shares = [len(part) for part in parts]
    shares[-1] += 1  # the output
    assert max(shares) - min(shares) <= 1


def test_a_device_of_a_layer_split_has_all_kv_heads_of_its_layers() -> None:
    spec = load_model("llama-3.1-8b")
    parts = device_specs(spec, 2)
    whole = kv_footprint(spec, Dtype.BF16).bytes_per_token
    assert [kv_footprint(part, Dtype.BF16).bytes_per_token for part in parts] == [whole * 17 // 32, whole * 15 // 32]
    embeddings = 128256 * 4096 * 2
    assert sum(weight_bytes(part).total_bytes for part in parts) == weight_bytes(spec).total_bytes - embeddings


def test_tied_embeddings_are_on_the_device_as_the_output() -> None:
    spec = load_model("qwen3-0.6b")
    assert sum(weight_bytes(part).total_bytes for part in device_specs(spec, 3)) == weight_bytes(spec).total_bytes


def test_models_and_formats_have_their_public_names() -> None:
    assert load_model("llama-3.1-8b").source == "meta-llama/Llama-3.1-8B-Instruct"
    assert checkpoint_format(load_model("llama-3.1-8b")) == "bf16"
    assert checkpoint_format(load_model("deepseek-v3")) == "fp8-block"
    assert draft_algorithm(load_model("qwen3-0.6b")) is Algorithm.DRAFT_MODEL
    assert limits_pixels(load_model("qwen2.5-vl-7b"))
    assert not limits_pixels(load_model("gemma-3-27b"))


def test_a_plan_carries_its_settings_into_the_flags() -> None:
    plan = brim.plan(
        "qwen2.5-vl-7b",
        gpu="h200",
        engine="vllm",
        max_len=16384,
        max_seqs=32,
        batch_tokens=4096,
        kv_dtype="fp8",
        weights="fp8",
        images_per_prompt=0,
        draft="qwen3-0.6b",
    )
    flags = dict(zip(plan.flags[::2], plan.flags[1::2], strict=True))
    assert int(flags.pop("--kv-cache-memory-bytes")) >= plan.kv_tokens * plan.kv_bytes_per_token
    assert flags == {
        "--max-model-len": "16384",
        "--max-num-seqs": "32",
        "--max-num-batched-tokens": "4096",
        "--long-prefill-token-threshold": "1024",
        "--kv-cache-dtype": "fp8_e4m3",
        "--quantization": "fp8",
        "--limit-mm-per-prompt": '{"image": 0}',
        "--speculative-config": json.dumps(
            {"method": "draft_model", "model": "Qwen/Qwen3-0.6B", "num_speculative_tokens": 3}
        ),
    }


def test_tokens_that_were_asked_for_are_given_and_no_more() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", engine="vllm", max_len=8192, kv_tokens=100_000)
    given = int(plan.flags[plan.flags.index("--kv-cache-memory-bytes") + 1])
    assert given == (100_000 + 16) * plan.kv_bytes_per_token  # in blocks of 16, one of which is nobody's


@pytest.mark.parametrize("model", ["qwen2.5-vl-72b", "llama-3.1-8b", "qwen3-0.6b"])
@pytest.mark.parametrize(
    ("engine", "flag"), [("sglang", "--mem-fraction-static"), ("max", "--device-memory-utilization")]
)
def test_a_fraction_of_the_free_memory_holds_the_weights_and_the_tokens(engine: str, flag: str, model: str) -> None:
    plan = brim.plan(model, gpu="h200", engine=engine)
    held = sum(plan.item(name).bytes for name in ("weights", "kv", "state"))
    free = plan.device.total_bytes - plan.item("context").bytes
    share = float(plan.flags[plan.flags.index(flag) + 1])
    assert held / free <= share < 1
    assert (share - held / free) * free < plan.item("canary").bytes


def test_a_fraction_of_the_device_holds_all_that_an_engine_allocates_itself() -> None:
    plan = brim.plan("qwen2.5-vl-72b", gpu="h200", engine="tgi", max_len=2048)
    allocated = sum(plan.item(name).bytes for name in ("weights", "kv", "state", "activation", "encoder"))
    share = float(plan.flags[plan.flags.index("--cuda-memory-fraction") + 1])
    assert allocated <= share * plan.device.usable_bytes


@pytest.mark.parametrize("engine", ["vllm", "sglang", "brim", "llama.cpp"])
def test_images_beyond_the_processors_limit_are_not_allowed_by_the_command(engine: str) -> None:
    """The plan counts no more than the processor makes of them."""
    own = brim.plan("qwen2.5-vl-7b", gpu="h200", engine=engine)
    more = brim.plan("qwen2.5-vl-7b", gpu="h200", engine=engine, image_pixels=25_000_000)
    less = brim.plan("qwen2.5-vl-7b", gpu="h200", engine=engine, image_pixels=1_000_000)
    assert more.item("encoder").bytes == own.item("encoder").bytes
    assert more.command == own.command
    assert less.command != own.command


@pytest.mark.parametrize(
    ("model", "asked", "words"),
    [
        ("qwen3-32b-fp8", {}, r"quantised format \(fp8\), which Brim's engine does not run yet; .*name another"),
        (
            "llama-3.1-8b",
            {"draft": "nemotron-nano-12b-v2"},
            "draft: it has recurrent layers, .*; choose a draft with attention",
        ),
        ("llama-3.1-8b", {"draft": "qwen3-32b-fp8"}, r"quantised format \(fp8\).*; choose another"),
        (
            "llama-3.1-8b",
            {"draft": "qwen3-0.6b", "max_len": 100_000},
            "draft: it was made for 40960 positions and requests may have 100000; .*lower max-len to 40960",
        ),
    ],
)
def test_models_that_brim_would_not_load_are_refused(model: str, asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        brim.plan(model, gpu="h200", engine="brim", **asked)
    brim.plan(model, gpu="h200", engine="vllm", **asked)


def test_brims_context_is_no_longer_than_its_drafts() -> None:
    plan = brim.plan("llama-3.1-8b", gpu="h200", engine="brim", draft="qwen3-0.6b")
    assert plan.max_len == 40960
    assert any("its vocabulary has 151936 tokens and the model's 128256" in text for text in plan.warnings)
    assert brim.plan("llama-3.1-8b", gpu="h200", engine="vllm", draft="qwen3-0.6b").max_len == 131072


def test_ranks_divide_the_draft_too() -> None:
    with pytest.raises(InvalidRequest, match=r"tp 4 does not divide the 14 .*heads of qwen2\.5-0\.5b"):
        brim.plan("qwen2.5-72b", gpu="4xh200", engine="vllm", draft="qwen2.5-0.5b")
    brim.plan("qwen2.5-72b", gpu="2xh200", engine="vllm", draft="qwen2.5-0.5b")


def test_llama_cpp_on_the_cpu_has_everything_in_the_same_memory() -> None:
    """Embeddings stay on the host, which is that memory; no layer goes to a GPU."""
    plan = brim.plan("qwen3-8b", gpu="cpu:64GiB", engine="llama.cpp", max_len=8192)
    whole = weight_bytes(load_model("qwen3-8b")).total_bytes
    assert plan.item("weights").bytes == whole
    assert brim.plan("qwen3-8b", gpu="m4-max", engine="llama.cpp").item("weights").bytes == whole
    assert brim.plan("qwen3-8b", gpu="h100", engine="llama.cpp").item("weights").bytes < whole - GIB
    words = " ".join(plan.command)
    assert "--n-gpu-layers 0" in words
    assert "--device none" in words
    assert "--split-mode" not in words
    assert "999" not in words
    assert not any("GRAPHS" in note for note in plan.warnings)
