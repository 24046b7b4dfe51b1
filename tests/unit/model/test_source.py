from __future__ import annotations

import json
import struct
import time
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from brim.errors import InputError, InvalidConfig, SourceNotFound
from brim.model import hub
from brim.model.source import load_config, load_model
from brim.model.weights import weight_bytes
from tests.unit.model.test_config import LLAMA


def write_shard(path: Path, tensors: dict[str, int], missing: int = 0) -> None:
    """A safetensors file of bf16 vectors, with the last bytes missing where a test wants it damaged."""
    header, offset = {}, 0
    for name, elements in tensors.items():
        header[name] = {"dtype": "BF16", "shape": [elements], "data_offsets": [offset, offset + 2 * elements]}
        offset += 2 * elements
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"\0" * (offset - missing))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    return folder


def test_a_directory_and_its_config(model: Path) -> None:
    assert load_model(str(model)) == load_model(str(model / "config.json"))
    assert load_model(str(model)).name == "tiny"


def test_weights_from_headers(model: Path) -> None:
    write_shard(model / "a.safetensors", {"model.embed_tokens.weight": 1000, "model.layers.0.x": 500})
    write_shard(model / "b.safetensors", {"lm_head.weight": 1000, "model.layers.32.mtp": 9999})
    found = weight_bytes(load_model(str(model)))
    assert found.total_bytes == 2 * 2500  # layer 32 is behind the last of 32 layers, and never loaded
    assert found.exact


def test_weights_from_the_index_where_shards_are_missing(model: Path) -> None:
    index = {"metadata": {"total_size": 12345}, "weight_map": {"a": "a.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(load_model(str(model))).total_bytes == 12345


@pytest.mark.parametrize(
    "names", [("model.safetensors", "consolidated.safetensors"), ("a.safetensors", "consolidated.safetensors")]
)
def test_weights_that_are_there_twice_count_once(model: Path, names: tuple[str, str]) -> None:
    for name in names:
        write_shard(model / name, {"x": 1000})
    assert weight_bytes(load_model(str(model))).total_bytes == 2000


def test_the_whole_model_goes_before_its_shards(model: Path) -> None:
    """As in the engine (`brim.engine.weights.files`)."""
    write_shard(model / "model.safetensors", {"x": 1000})
    write_shard(model / "a.safetensors", {"x": 500})
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "a.safetensors"}}))
    assert weight_bytes(load_model(str(model))).total_bytes == 2000


def test_some_of_the_numbered_shards_are_not_the_model(model: Path) -> None:
    write_shard(model / "model-00001-of-00002.safetensors", {"x": 1000})
    assert not weight_bytes(load_model(str(model))).exact
    write_shard(model / "model-00002-of-00002.safetensors", {"y": 1000})
    assert weight_bytes(load_model(str(model))).total_bytes == 4000


def test_what_is_no_file_holds_no_weights(model: Path) -> None:
    (model / "a.safetensors").mkdir()
    (model / "model.safetensors").symlink_to(model / "nowhere")
    assert not weight_bytes(load_model(str(model))).exact


@pytest.mark.parametrize("total", ["NaN", "Infinity", "-Infinity", "0", '"8"', "true"])
def test_a_total_that_is_no_size_is_not_taken(model: Path, total: str) -> None:
    index = {"metadata": {"total_size": json.loads(total)}, "weight_map": {"a": "a.safetensors"}}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    assert not weight_bytes(load_model(str(model))).exact


@pytest.mark.parametrize("name", ["a" * 300, "", "../a.safetensors", "/etc/passwd"])
def test_an_index_names_files_beside_it(model: Path, name: str) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(InvalidConfig, match=r"weight_map.*names no file beside it.*download the index again"):
        load_model(str(model))


def test_a_truncated_shard_is_an_error(model: Path) -> None:
    write_shard(model / "a.safetensors", {"x": 1000}, missing=8)
    with pytest.raises(InvalidConfig, match=r"a\.safetensors.*8 bytes"):
        load_model(str(model))
    (model / "a.safetensors").write_bytes(b"\x01")
    with pytest.raises(InvalidConfig, match=r"a\.safetensors.*truncated"):
        load_model(str(model))


def test_the_processor_s_own_limit(tmp_path: Path) -> None:
    config = json.loads(json.dumps({**LLAMA, "model_type": "qwen2_5_vl", "vision_config": {"hidden_size": 1280}}))
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_model(str(tmp_path)).towers[0].limits.max_pixels == 16384 * 28 * 28
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_pixels": 1003520}))
    limits = load_model(str(tmp_path)).towers[0].limits
    assert (limits.max_pixels, limits.source) == (1003520, "preprocessor_config.json")


def test_names_ids_and_what_is_neither() -> None:
    assert load_model("Qwen3-8B") == load_model("qwen3-8b")
    assert load_model("Qwen/Qwen3-8B") == load_model("qwen3-8b")
    with pytest.raises(SourceNotFound, match="did you mean qwen3-8b"):
        load_model("qwen3-8bb")
    with pytest.raises(SourceNotFound, match="did you mean qwen3-30b-a3b"):
        load_model("qwen3-30b")
    for text in ("", "  ", "/no/such/place", "./none.json", "a\0b", "x" * 5000):
        with pytest.raises(SourceNotFound):
            load_model(text)


BAD_FILES: dict[str, Any] = {
    "not json": b"{hidden",
    "a list": b"[1, 2]",
    "a number": b"7",
    "empty": b"",
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000,
    "huge integer": b'{"hidden_size": ' + b"9" * 10_000 + b"}",
    "empty object": b"{}",
}


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(BAD_FILES[kind])
    with pytest.raises(InputError) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)


def test_a_gigabyte_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(InvalidConfig, match=r"1\.00 GiB"):
        load_model(str(path))


def test_a_folder_without_a_config(tmp_path: Path) -> None:
    with pytest.raises(SourceNotFound, match=r"no config\.json"):
        load_model(str(tmp_path))
    with pytest.raises(SourceNotFound, match="not a regular file"):
        load_model("/dev/null")


def test_a_hub_that_cannot_be_reached_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("brim.model.hub._reachable", lambda endpoint: False)
    with pytest.raises(SourceNotFound, match="the hub cannot be reached; give a directory"):
        load_model("some-org/some-model")


def put_in_hub_cache(cache: Path, repository: str, config: dict[str, Any]) -> None:
    """The cache's own layout: a snapshot named by its commit, and a ref that points to it."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    snapshot = folder / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text(json.dumps(config))


def test_a_model_of_the_local_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    put_in_hub_cache(tmp_path, "some-org/some-model", LLAMA)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    found = load_model("some-org/some-model")
    assert (found.name, found.parameters) == ("some-org/some-model", 8_030_261_248)


def test_a_sibling_of_the_catalogue_where_the_hub_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.model.hub._reachable", lambda endpoint: False)
    found, taken = load_model("meta-llama/Meta-Llama-3.1-8B"), load_model("llama-3.1-8b")
    assert replace(found, source=taken.source, warnings=()) == taken
    assert found.source == "meta-llama/Meta-Llama-3.1-8B"
    assert "'meta-llama/Meta-Llama-3.1-8B' is taken as llama-3.1-8b of the catalogue" in found.warnings[0]
    assert load_config("meta-llama/Meta-Llama-3.1-8B") == load_config("llama-3.1-8b")
    assert load_model("Meta-Llama-3.1-8B-Instruct").warnings
    assert taken.warnings == load_model("meta-llama/Llama-3.1-8B-Instruct").warnings == ()
    with pytest.raises(SourceNotFound, match="the hub cannot be reached"):
        load_model("Qwen/Qwen3-8B-GPTQ-Int4")


def test_the_real_config_wins_over_a_sibling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    smaller = {**LLAMA, "num_hidden_layers": 8}
    put_in_hub_cache(tmp_path, "meta-llama/Llama-3.1-8B", smaller)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert len(load_model("meta-llama/Llama-3.1-8B").layers) == 8

    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "config.json").write_text(json.dumps(smaller))
    monkeypatch.setattr("brim.model.hub.download", lambda repository, side_files: tmp_path / "hub")
    found = load_model("meta-llama/Meta-Llama-3.1-8B")
    assert (len(found.layers), found.warnings) == (8, ())


def test_the_hub_is_asked_for_at_most_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that does not answer: its lookup has no timeout."""
    pytest.importorskip("huggingface_hub")
    released = Event()

    def lookup(*_: Any, **__: Any) -> None:
        released.wait(30)
        raise OSError("no such name")

    monkeypatch.setattr("socket.create_connection", lookup)
    started = time.perf_counter()
    assert load_model("meta-llama/Llama-3.1-8B").warnings
    took = time.perf_counter() - started
    released.set()
    assert took < 20  # a second on an idle machine; the lookup hangs for 30


def test_offline_the_hub_is_not_asked_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("brim.model.hub._reachable", lambda endpoint: pytest.fail("the hub was asked"))
    assert load_model("meta-llama/Llama-3.1-8B").warnings


@pytest.mark.parametrize(
    ("proxies", "asked"),
    [
        ({}, ("hub.example", 443)),
        ({"https_proxy": "http://proxy.example:3128"}, ("proxy.example", 3128)),
        ({"https_proxy": "proxy.example:3128"}, ("proxy.example", 3128)),
        ({"https_proxy": "http://proxy.example:3128", "no_proxy": "hub.example"}, ("hub.example", 443)),
    ],
)
def test_a_proxy_is_asked_in_the_place_of_the_hub(
    monkeypatch: pytest.MonkeyPatch, proxies: dict[str, str], asked: tuple[str, int]
) -> None:
    for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    seen: list[tuple[str, int]] = []
    monkeypatch.setattr("brim.model.hub._answers", lambda host, port: bool(seen.append((host, port))))
    assert not hub._reachable("https://hub.example")
    assert seen == [asked]
