"""Quants of repositories, asked of a hub on this machine: headers are read, and weights stay where they are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from brim.errors import SourceNotFound
from brim.model.source import load_model
from brim.model.weights import weight_bytes
from tests.unit.model.gguf.making import F16, stored_bytes, tensors, write
from tests.unit.model.gguf.test_files import TOWER, projector
from tests.unit.model.hub_server import COMMIT, Hub, hub_on_this_machine

WIDE = {**tensors(), "blk.1.unused.weight": ((4096, 8192), F16)}  # 64 MiB that nobody asks for


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    folder = tmp_path / "files"
    folder.mkdir()
    write(folder / "m-Q8_0.gguf", stored=WIDE)
    write(folder / "m-Q4_K_M.gguf", split=12)
    one = {path.name: path.read_bytes() for path in folder.glob("*.gguf")}
    seen = {"s-Q4_0.gguf": write(tmp_path / "s.gguf").read_bytes()}
    seen["mmproj-F16.gguf"] = projector(tmp_path / "p.gguf").read_bytes()
    repositories = {"lab/m-GGUF": one, "lab/seen-GGUF": seen, "lab/none-GGUF": {"README.md": b""}}
    with hub_on_this_machine(monkeypatch, tmp_path / "cache", repositories) as found:
        yield found


def test_the_header_of_a_quant(hub: Hub) -> None:
    spec = load_model("lab/m-GGUF:q8_0")
    assert (spec.name, spec.source) == ("m-Q8_0", "lab/m-GGUF:q8_0")
    assert weight_bytes(spec).total_bytes == stored_bytes(WIDE)
    assert weight_bytes(spec).exact
    assert sum(last + 1 - first for first, last in hub.ranges) <= 4 << 20


def test_parts_and_projectors(hub: Hub) -> None:
    assert weight_bytes(load_model("hf.co/lab/m-GGUF:Q4_K_M")).total_bytes == stored_bytes(tensors())
    address = "https://huggingface.co/lab/m-GGUF/blob/main/m-Q4_K_M-00002-of-00002.gguf"
    assert weight_bytes(load_model(address)).total_bytes == stored_bytes(tensors())
    spec = load_model("lab/seen-GGUF")
    assert spec.source == "lab/seen-GGUF"
    assert weight_bytes(spec).total_bytes == stored_bytes(tensors()) + stored_bytes(TOWER)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lab/m-GGUF", r"lab/m-GGUF: 2 models in it \(Q4_K_M, Q8_0\); choose one, such as lab/m-GGUF:Q4_K_M"),
        ("lab/m-GGUF:Q2_K", r"lab/m-GGUF: no Q2_K models in it \(Q4_K_M, Q8_0\)"),
        ("lab/none-GGUF:Q2_K", "no GGUF file of a model in it"),
        ("lab/absent-GGUF:Q2_K", "there is no model 'lab/absent-GGUF' on the hub"),
        ("hf.co/lab/m-GGUF/blob/main/x.gguf", r"has no file x\.gguf on the hub"),
    ],
)
def test_what_a_repository_does_not_have(hub: Hub, text: str, message: str) -> None:
    with pytest.raises(SourceNotFound, match=message):
        load_model(text)


def test_a_quant_in_the_cache_needs_no_hub(hub: Hub, tmp_path: Path) -> None:
    stored = tmp_path / "cache" / "models--lab--m-GGUF"
    (stored / "refs").mkdir(parents=True)
    (stored / "refs" / "main").write_text(COMMIT)
    (stored / "snapshots" / COMMIT).mkdir(parents=True)
    write(stored / "snapshots" / COMMIT / "m-Q6_K.gguf")
    spec = load_model("lab/m-GGUF:Q6_K")
    assert (spec.source, weight_bytes(spec).total_bytes) == ("lab/m-GGUF:Q6_K", stored_bytes(tensors()))
    assert not hub.ranges
    assert load_model("lab/m-GGUF:Q8_0").name == "m-Q8_0"  # another one was downloaded
