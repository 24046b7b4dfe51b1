"""Files and folders: parts, variants and projectors, as they lie on a disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import brim
from brim.cli.main import run
from brim.errors import InvalidConfig, InvalidRequest, SourceNotFound, UnsupportedModel
from brim.model.config import read_config
from brim.model.gguf.files import variant_of
from brim.model.kv import kv_footprint
from brim.model.source import load_config, load_model
from brim.model.weights import weight_bytes
from brim.planning.engines import ENGINES, device_specs
from brim.records.model import Dtype, MediaType
from tests.unit.model.gguf.making import CONFIG, F16, F32, KEYS, stored_bytes, tensors, write

PROJECTOR: dict[str, Any] = {
    "has_vision_encoder": True,
    "projector_type": "gemma3",
    "vision.embedding_length": 64,
    "vision.feed_forward_length": 128,
    "vision.block_count": 3,
    "vision.attention.head_count": 4,
    "vision.image_size": 896,
    "vision.patch_size": 14,
    "vision.projection_dim": 256,
}
TOWER = {
    "v.patch_embd.weight": ((64, 3, 14, 14), F16),
    "v.blk.0.attn_q.weight": ((64, 64), F16),
    "mm.input_projection.weight": ((256, 64), F16),
    "v.post_ln.weight": ((64,), F32),
}
SIZE = stored_bytes(tensors())


def projector(path: Path, **keys: Any) -> Path:
    return write(path, architecture="clip", keys={**PROJECTOR, **keys}, stored=TOWER)


def test_one_file(tmp_path: Path) -> None:
    path = write(tmp_path / "tiny-Q4_K_M.gguf", general={"general.file_type": 15})
    found, expected = load_model(str(path)), read_config(CONFIG, name="tiny-Q4_K_M")
    assert (found.name, found.source, found.layers, found.tensors) == (
        "tiny-Q4_K_M",
        str(path),
        expected.layers,
        expected.tensors,
    )
    assert kv_footprint(found, Dtype.FP16) == kv_footprint(expected, Dtype.FP16)
    weights = weight_bytes(found)
    assert (weights.total_bytes, weights.exact, weights.hypothetical) == (SIZE, True, False)
    assert weights.detail == "q4_k_m, from the header of 1 GGUF file"
    name, config = load_config(str(path))
    assert name == "tiny-Q4_K_M"
    assert read_config(config, name="x").layers == expected.layers


def test_a_file_under_another_name_as_in_ollama_s_store(tmp_path: Path) -> None:
    path = write(tmp_path / "model.gguf").rename(tmp_path / "sha256-0a1b")
    assert weight_bytes(load_model(str(path))).total_bytes == SIZE


def test_any_part_stands_for_all(tmp_path: Path) -> None:
    write(tmp_path / "big.gguf", split=8)
    parts = sorted(tmp_path.glob("*.gguf"))
    assert [path.name for path in parts] == [f"big-0000{one}-of-00003.gguf" for one in (1, 2, 3)]
    for path in parts:
        found = load_model(str(path))
        assert (found.name, found.source) == ("big", str(parts[0]))
        assert weight_bytes(found).total_bytes == SIZE
        assert weight_bytes(found).detail.endswith("from the headers of 3 GGUF files")
    assert load_model(str(tmp_path)) == load_model(str(parts[0]))
    parts[1].unlink()
    with pytest.raises(
        SourceNotFound, match=r"1 of its 3 parts are not beside it \(big-00002-of-00003\.gguf\); download"
    ):
        load_model(str(parts[2]))


def test_parts_of_two_files(tmp_path: Path) -> None:
    write(tmp_path / "a.gguf", split=12)
    shutil.copy(tmp_path / "a-00001-of-00002.gguf", tmp_path / "a-00002-of-00002.gguf")
    with pytest.raises(InvalidConfig, match="promises 21 tensors in all parts, which have 24"):
        load_model(str(tmp_path / "a-00001-of-00002.gguf"))
    (tmp_path / "a-00001-of-00002.gguf").rename(tmp_path / "renamed.gguf")
    with pytest.raises(InvalidConfig, match="is one of 2 parts, and its name does not say which"):
        load_model(str(tmp_path / "renamed.gguf"))


def test_variants_in_a_folder(tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "m-UD-Q4_K_XL.gguf"):
        write(tmp_path / name)
    (tmp_path / "BF16").mkdir()
    write(tmp_path / "BF16" / "m-BF16.gguf", split=12)
    with pytest.raises(
        SourceNotFound, match=rf"4 models in it \(BF16, Q4_K_M, Q8_0, UD-Q4_K_XL\).*such as {tmp_path}:BF16"
    ):
        load_model(str(tmp_path))
    assert load_model(f"{tmp_path}:q8_0").name == "m-Q8_0"
    assert load_model(f"{tmp_path}:UD-Q4_K_XL").name == "m-UD-Q4_K_XL"
    assert weight_bytes(load_model(f"{tmp_path}:bf16")).total_bytes == SIZE
    with pytest.raises(SourceNotFound, match=r"no Q2_K models in it \(BF16, .*such as"):
        load_model(f"{tmp_path}:Q2_K")


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("Qwen3-8B-Q4_K_M.gguf", "Q4_K_M"),
        ("llama-2-7b.Q5_0.gguf", "Q5_0"),
        ("Qwen3-235B-IQ2_XXS-00001-of-00004.gguf", "IQ2_XXS"),
        ("gpt-oss-20b-MXFP4.gguf", "MXFP4"),
        ("qwen2.5-7b-instruct-q4_k_m.gguf", "Q4_K_M"),
        ("model.gguf", ""),
    ],
)
def test_the_variant_of_a_name(name: str, variant: str) -> None:
    assert variant_of(name) == variant


def test_a_config_beside_goes_before_unless_there_is_no_other_file(tmp_path: Path) -> None:
    write(tmp_path / "m-Q8_0.gguf")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    assert load_model(str(tmp_path)).is_gguf  # a GGUF repository with the original's config
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InvalidConfig, match="hidden_size"):
        load_model(str(tmp_path))


def test_the_projector_beside_is_counted(tmp_path: Path) -> None:
    path = write(tmp_path / "m-Q4_K_M.gguf", architecture="gemma3", keys={**KEYS, "attention.sliding_window": 512})
    write(
        tmp_path / "mmproj-other.gguf",
        architecture="clip",
        keys={**PROJECTOR, "vision.projection_dim": 999},
        stored=TOWER,
    )
    assert not load_model(str(path)).towers  # one of another model
    beside = projector(tmp_path / "mmproj-m-f16.gguf")
    found = load_model(str(path))
    (tower,) = found.towers
    assert (tower.media, tower.hidden, tower.layers, tower.output) == (MediaType.IMAGE, 64, 3, 256)
    assert (tower.limits.max_pixels, tower.pixels_per_patch, tower.merge) == (896 * 896, 196, 16)
    assert weight_bytes(found).total_bytes == SIZE + stored_bytes(TOWER)
    plan = brim.plan(found, gpu="rtx-4090")
    assert plan.command[plan.command.index("--mmproj") + 1] == str(beside)
    without = brim.plan(found, gpu="rtx-4090", images_per_prompt=0)
    assert "--no-mmproj" in without.command
    assert "--mmproj" not in without.command
    with pytest.raises(InvalidRequest, match=r"is a multimodal projector.*give the model's own file"):
        load_model(str(beside))
    path.unlink()
    with pytest.raises(SourceNotFound, match="a multimodal projector and no model"):
        load_model(str(tmp_path))


def test_images_of_any_size_end_at_llama_cpp_s_limit(tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", architecture="qwen2vl")
    projector(tmp_path / "mmproj.gguf", projector_type="qwen2.5vl_merger")
    (tower,) = load_model(str(tmp_path / "m.gguf")).towers
    assert tower.limits.max_pixels == 4096 * 28 * 28
    projector(tmp_path / "mmproj.gguf", projector_type="internvl", **{"vision.preproc_max_tiles": 12})
    (tower,) = load_model(str(tmp_path / "m.gguf")).towers
    assert (tower.limits.tile_pixels, tower.limits.max_tiles) == (896 * 896, 12)
    assert brim.plan(str(tmp_path / "m.gguf"), gpu="rtx-4090").fits


def test_adapters_and_renamed_projectors_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="holds an adapter and no model"):
        load_model(str(write(tmp_path / "lora.gguf", general={"general.type": "adapter"})))
    with pytest.raises(UnsupportedModel, match="holds a multimodal projector and no model"):
        load_model(str(projector(tmp_path / "vision.gguf")))


@pytest.mark.parametrize("head", [True, False])
def test_devices_that_share_the_layers_have_what_is_stored_in_them(tmp_path: Path, head: bool) -> None:
    stored = tensors(head=head)
    spec = load_model(str(write(tmp_path / "m.gguf", stored=stored)))
    one = stored_bytes({name: tensor for name, tensor in stored.items() if name.startswith("blk.0.")})
    output = stored_bytes({name: tensor for name, tensor in stored.items() if name.startswith("output")})
    embeddings = stored_bytes({"token_embd.weight": stored["token_embd.weight"]})
    shared = 0 if head else embeddings  # the head is in them
    assert [part.files_bytes for part in device_specs(spec, 1)] == [2 * one + output + shared]
    assert [part.files_bytes for part in device_specs(spec, 2)] == [2 * one, output + shared]
    assert spec.files_bytes == 2 * one + output + embeddings


def test_llama_cpp_is_the_engine_of_a_gguf_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m-Q4_K_M.gguf")
    plan = brim.plan(path, gpu="rtx-4090")
    assert (plan.engine, plan.command[:3]) == ("llama.cpp", ("llama-server", "--model", str(path)))
    assert plan.kv_dtype == "fp16"
    assert not any("put a GGUF" in warning for warning in plan.warnings)
    weights = next(item for item in plan.items if item.name == "weights")
    assert str(weights.source) == "exact"
    assert run(["plan", str(path), "--gpu", "rtx-4090"]) == 0
    assert "llama-server" in capsys.readouterr().out


def test_other_engines_load_it_or_say_why_not(tmp_path: Path) -> None:
    path = write(tmp_path / "m-Q4_K_M.gguf")
    load_it = ("llama.cpp", "vllm", "sglang")
    for engine in load_it:
        plan = brim.plan(path, gpu="h100", engine=engine)
        assert str(path) in plan.command
        assert engine == "llama.cpp" or any(f"GGUF files in {engine}: needs" in one for one in plan.warnings)
    for engine in set(ENGINES) - set(load_it):
        with pytest.raises(InvalidRequest, match=r"GGUF|gguf"):
            brim.plan(path, gpu="h100", engine=engine)
    assert brim.plan(path, gpu="h100", engine="trtllm", weights="fp16").fits  # as the model that it was made from


def test_brim_s_own_engine_does_not_run_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "m-Q4_K_M.gguf")
    assert run(["generate", str(path), "--prompt", "a"]) == 2
    assert "GGUF" in capsys.readouterr().err


def test_a_plan_of_a_file_imports_no_heavy_library(tmp_path: Path) -> None:
    path = write(tmp_path / "m-Q4_K_M.gguf")
    code = (
        "import sys; from brim.cli.main import run; "
        f"run(['plan', {str(path)!r}, '--gpu', 'h100', '--json']); run(['plan', 'qwen3:8b', '--gpu', 'l4', '--json']); "
        "heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'gguf', 'rich'} & set(sys.modules); "
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
