"""Loading models: what comes out is what was saved, and every way a checkpoint is broken has its own error."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from brim.api import plan
from brim.errors import DeviceError, InputError, InvalidConfig, InvalidRequest, OutOfMemory, UnsupportedModel
from brim.planning.devices import of_size
from brim.probes.cpu import CpuProbe
from brim.records.plan import Device

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file  # noqa: E402

from brim.engine.weights.load import LoadedModel, load  # noqa: E402

TINY = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 160,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 1024,
    "eos_token_id": 7,
}
EXPERTS = {
    **TINY,
    "model_type": "qwen3_moe",
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
TOWERS = {
    "model_type": "gemma3",
    "text_config": {
        **{name: value for name, value in TINY.items() if name != "model_type"},
        "model_type": "gemma3_text",
        "head_dim": 16,
    },
    "vision_config": {
        "model_type": "siglip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 28,
        "patch_size": 14,
    },
    "mm_tokens_per_image": 4,
    "image_token_index": 499,
    "boi_token_index": 498,
    "eoi_token_index": 497,
}
IDS = torch.arange(10)[None]


def saved(path: Path, config: dict[str, Any] = TINY, shards: str = "150KB") -> Path:
    model = load(config, load_format="dummy", dtype="fp32", seed=3).model
    model.generation_config.eos_token_id = [9, 7]
    model.save_pretrained(path, max_shard_size=shards)
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy to break."""
    for file in whole.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def shard_of(folder: Path, tensor: str) -> Path:
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    return folder / index["weight_map"][tensor]


def tensor_bytes(loaded: LoadedModel) -> int:
    found = {t.data_ptr(): t.numel() * t.element_size() for t in (*loaded.model.parameters(), *loaded.model.buffers())}
    return sum(found.values())


def test_several_shards_give_the_saved_model(whole: Path) -> None:
    assert len(list(whole.glob("*.safetensors"))) > 2
    seen: list[tuple[int, int]] = []
    loaded = load(whole, dtype="fp32", progress=lambda done, total: seen.append((done, total)))
    original = transformers.LlamaForCausalLM.from_pretrained(whole, dtype=torch.float32)
    with torch.no_grad():
        assert torch.equal(loaded.model(IDS).logits, original(IDS).logits)
        assert torch.equal(
            loaded.model(IDS).logits, load(TINY, load_format="dummy", dtype="fp32", seed=3).model(IDS).logits
        )
    tensors = len(list(original.parameters()))
    assert seen == [(done, tensors) for done in range(tensors + 1)]
    assert not loaded.model.training
    assert not any(parameter.requires_grad for parameter in loaded.model.parameters())
    assert (loaded.vocab, loaded.max_positions, loaded.eos_ids, loaded.folder) == (500, 1024, (9, 7), whole)
    assert loaded.weight_bytes == tensor_bytes(loaded)
    assert loaded.config is loaded.full_config is loaded.model.config
    assert loaded.seconds > 0


@pytest.mark.parametrize("config", [EXPERTS, TOWERS, {**TINY, "tie_word_embeddings": True}], ids=["moe", "vlm", "tied"])
@pytest.mark.parametrize("shards", ["1GB", "60KB"])
def test_other_kinds_of_model(config: dict[str, Any], shards: str, tmp_path: Path) -> None:
    loaded = load(saved(tmp_path, config, shards), dtype="fp32")
    with torch.no_grad():
        expected = load(config, load_format="dummy", dtype="fp32", seed=3).model(IDS).logits
        assert torch.equal(loaded.model(IDS).logits, expected)
    assert loaded.weight_bytes == tensor_bytes(loaded)
    assert loaded.vocab == 500


@pytest.mark.parametrize(("dtype", "expected"), [("bf16", "bfloat16"), ("fp16", "float16"), ("auto", "float32")])
def test_types(whole: Path, dtype: str, expected: str) -> None:
    for loaded in (load(whole, dtype=dtype), load(whole, dtype=dtype, load_format="dummy")):
        assert {parameter.dtype for parameter in loaded.model.parameters()} == {getattr(torch, expected)}


def test_attention_by_name_and_by_part(tmp_path: Path) -> None:
    parts = {"": "eager", "text_config": "eager", "vision_config": "sdpa"}
    for loaded in (
        load(TOWERS, load_format="dummy", attention=parts),
        load(saved(tmp_path, TOWERS), attention=parts),
    ):
        assert loaded.config._attn_implementation == "eager"
        assert loaded.full_config.vision_config._attn_implementation == "sdpa"


def test_dummy_weights_follow_the_seed_and_keep_the_callers_random_state(whole: Path) -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    one, same, other = (load(TINY, load_format="dummy", seed=seed).model.lm_head.weight for seed in (1, 1, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    assert one.dtype == torch.bfloat16
    assert 0.015 < float(one.float().std()) < 0.025
    for source in (str(whole), whole / "config.json"):
        loaded = load(source, load_format="dummy")
        assert (loaded.folder, loaded.eos_ids) == (whole, (9, 7))
        assert bool((loaded.model.model.norm.weight == 1).all())
    quantised = {**TINY, "quantization_config": {"quant_method": "fp8"}, "torch_dtype": "float16"}
    assert load(quantised, load_format="dummy", dtype="auto").model.lm_head.weight.dtype == torch.float16


def test_a_catalogue_name_is_found() -> None:
    probe = CpuProbe(1 << 20)
    with probe, pytest.raises(OutOfMemory):  # the name is known, and its first tensor is larger than a MiB
        load("llama-3.2-1b", load_format="dummy")


def cut_off(folder: Path) -> None:
    file = shard_of(folder, "model.layers.1.mlp.up_proj.weight")
    file.write_bytes(file.read_bytes()[:-1000])


def cut_in_header(folder: Path) -> None:
    file = shard_of(folder, "model.norm.weight")
    file.write_bytes(file.read_bytes()[:100])


def lengthen(folder: Path) -> None:
    file = shard_of(folder, "model.norm.weight")
    file.write_bytes(file.read_bytes() + b"0" * 1234)


def garble(folder: Path) -> None:
    file = shard_of(folder, "model.norm.weight")
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    file.write_bytes(raw[:8] + b"\x80garbage{" * (length // 9) + b" " * (length % 9) + raw[8 + length :])


def empty(folder: Path) -> None:
    shard_of(folder, "model.norm.weight").write_bytes(b"")


def point(folder: Path) -> None:
    shard_of(folder, "model.norm.weight").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )


def drop_shard(folder: Path) -> None:
    shard_of(folder, "model.norm.weight").unlink()


def drop_tensor(folder: Path) -> None:
    file = shard_of(folder, "model.layers.1.mlp.up_proj.weight")
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, file, metadata={"format": "pt"})


def reshape(folder: Path) -> None:
    file = shard_of(folder, "model.norm.weight")
    save_file({**load_file(file), "model.norm.weight": torch.ones(65)}, file, metadata={"format": "pt"})


def drop_weights(folder: Path) -> None:
    for file in folder.glob("*.safetensors*"):
        file.unlink()


def wander(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "../x.safetensors"}}))


def no_map(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": []}))


def change(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))


BROKEN = {
    cut_off: r"model-0000\d-of-0000\d.safetensors: is truncated: 1,000 bytes of tensors are missing.*download it again",
    cut_in_header: "is truncated or not a safetensors file; it has 100 bytes; download it again",
    lengthen: "has 1,234 bytes behind its last tensor; download it again",
    garble: "not a safetensors file",
    empty: "it has 0 bytes; download it again",
    point: "git lfs pull",
    drop_shard: r"1 of \d weight files are missing \(model-0000\d-of-0000\d.safetensors: .* of tensors\).*download",
    drop_tensor: r"1 tensors of LlamaForCausalLM are in no weight file \(model.layers.1.mlp.up_proj.weight\)",
    reshape: r"1 tensors have other shapes .*model.norm.weight: \(65,\) and not \(64,\)",
    drop_weights: "--load-format dummy",
    wander: "outside its directory",
    no_map: "has no weight_map",
}


@pytest.mark.parametrize("breaking", BROKEN, ids=lambda one: one.__name__)
def test_broken_checkpoints_have_their_own_errors(
    breaking: Any, folder: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    breaking(folder)
    with pytest.raises(InputError, match=BROKEN[breaking]) as caught:
        load(folder, dtype="fp32")
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    assert capfd.readouterr() == ("", "")
    assert not caplog.records


def test_configs_that_cannot_run(folder: Path) -> None:
    change(folder, model_type="llama_next")
    with pytest.raises(UnsupportedModel, match="does not know the model type 'llama_next'"):
        load(folder)
    change(folder, auto_map={"AutoModel": "modeling.Model"})
    with pytest.raises(UnsupportedModel, match="never run"):
        load(folder)
    for fields, words in (
        ({"model_type": "bert"}, "'bert' is an encoder;"),
        ({"model_type": "t5", "d_model": 32}, "encoder-decoder"),
        ({"model_type": "bart"}, "encoder-decoder"),
        ({"model_type": "whisper"}, "encoder-decoder"),
        ({"model_type": "modernbert"}, "no class that generates text"),
        ({**TINY, "hidden_size": "wide"}, "transformers cannot load this 'llama'"),
        ({**TINY, "num_attention_heads": 5}, "transformers cannot load this 'llama'"),
        ({}, "does not know the model type ''"),
    ):
        with pytest.raises(UnsupportedModel, match=words) as caught:
            load(fields, load_format="dummy")
        assert "\n" not in str(caught.value)
    with pytest.raises(InvalidConfig, match="num_hidden_layers"):
        load({**TINY, "num_hidden_layers": 10**9}, load_format="dummy")


def test_options_that_cannot_be() -> None:
    for source in (TINY, "llama-3.1-8b", "/no/such/place", "some/hub-id", "x" * 5000, "~nobody-here/x"):
        with pytest.raises(InvalidRequest, match="--load-format dummy"):
            load(source)
    for options, words in (
        ({"load_format": "gguf"}, "auto or dummy"),
        ({"dtype": "int3"}, "bf16, fp16, fp32 or auto"),
        ({"device": "toaster"}, "cpu, cuda or cuda:1"),
    ):
        with pytest.raises(InvalidRequest, match=words):
            load(TINY, **{"load_format": "dummy", **options})
    with pytest.raises(UnsupportedModel, match='attn_implementation="magic"'):
        load(TINY, load_format="dummy", attention="magic")
    if not torch.cuda.is_available():
        with pytest.raises(DeviceError, match="no CUDA device"):
            load(TINY, load_format="dummy", device="cuda")


# -- quantised formats -----------------------------------------------------------------------------------------------

MODELOPT = {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}}
QUANTISED: dict[str, tuple[dict[str, Any], str]] = {  # fields of config.json -> the format in the message
    "fp8": ({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}, "fp8"),
    "awq": ({"quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}, "awq"),
    "gptq": ({"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}}, "gptq"),
    "gpt-oss": ({"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    "compressed": ({"compression_config": {"format": "pack-quantized"}}, "compressed-tensors"),
    "4 bits": ({"quantization_config": {"load_in_4bit": True}}, "bitsandbytes"),
    "modelopt": ({"quantization_config": {"quant_algo": "FP8"}}, "modelopt"),
    "the text inside": ({"text_config": {"quantization_config": {"quant_method": "FP8"}}}, "fp8"),
}


def no_gpu() -> Device:
    raise DeviceError("there is none")


def said(folder: Path, fields: dict[str, Any]) -> str:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **fields}))
    with pytest.raises(UnsupportedModel) as refused:
        load(folder, dtype="fp32")
    return str(refused.value)


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_weights_are_refused_before_they_are_loaded(
    folder: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("brim.engine.weights.load.from_files", lambda *_: pytest.fail("weights were loaded"))
    monkeypatch.setattr("brim.planning.devices.this_machine", no_gpu)
    fields, method = QUANTISED[name]
    assert said(folder, fields) == (
        f"{folder}: its weights are in a quantised format ({method}), which Brim's engine does not run yet; "
        f"run it with: vllm serve {folder} (or unquantised with random weights: --load-format dummy)"
    )


def test_a_file_beside_the_config_may_say_it(folder: Path) -> None:
    (folder / "hf_quant_config.json").write_text(json.dumps(MODELOPT))
    assert f"quantised format (modelopt), which Brim's engine does not run yet; run it with: vllm serve {folder}" in (
        said(folder, {})
    )


def test_the_command_has_the_flags_of_a_plan_for_this_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.engine.weights.quantised.find_device", lambda name: of_size("24GiB"))
    message = said(folder, {"quantization_config": {"quant_method": "fp8"}})
    planned = plan(folder, gpu="24GiB", engine="vllm", trace=False)
    assert planned.flags[0] == "--kv-cache-memory-bytes"
    assert f"run it with: {planned.shell} (or" in message


def test_a_format_that_nobody_runs_names_itself(folder: Path) -> None:
    message = said(folder, {"quantization_config": {"quant_method": "hqq"}})
    assert "quantised format (hqq)" in message
    assert "run it with transformers itself" in message


def test_a_config_that_says_nothing_of_formats_loads(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    assert load(folder, dtype="fp32").vocab == 500
