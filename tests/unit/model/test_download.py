"""Whole models from a hub: the files that are needed and no others, told in bytes, or one line that says why not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

pytest.importorskip("huggingface_hub")

from brim.engine.weights.from_hub import on_this_machine
from brim.errors import DeviceError, SourceNotFound
from brim.model.download import download_model
from brim.model.packaged import packaged_folder
from brim.records.progress import Stage, silent
from tests.unit.model.hub_server import COMMIT, Hub, hub_on_this_machine

NEEDED = {name: name.encode() for name in ("config.json", "tokenizer.json", "chat_template.jinja", "merges.txt")}
SHARDED = {
    **NEEDED,
    "preprocessor_config.json": b"{}",
    "additional_chat_templates/rag.jinja": b"{{ y }}",
    "model.safetensors.index.json": json.dumps({"weight_map": {part: f"model-{part}.safetensors" for part in "12"}}),
    "model-1.safetensors": b"1" * 300_000,
    "model-2.safetensors": b"2" * 200_000,
}
OTHERS = {
    "pytorch_model.bin": b"pickle",
    "consolidated.safetensors": b"the same once more",
    "modeling_own.py": b"code",
    "tokenizer_own.py": b"code",
    "original/model.safetensors": b"",
    "README.md": b"",
}


def as_bytes(files: dict[str, bytes | str]) -> dict[str, bytes]:
    return {name: one if isinstance(one, bytes) else one.encode() for name, one in files.items()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    repositories = {
        "lab/sharded": as_bytes({**SHARDED, **OTHERS}),
        "lab/pickled": {"config.json": b"{}", "pytorch_model.bin": b"pickle"},
        "lab/torn": as_bytes({name: one for name, one in SHARDED.items() if name != "model-2.safetensors"}),
        "lab/empty": {"README.md": b""},
        "lab/gated": "GatedRepo",
    }
    with hub_on_this_machine(monkeypatch, tmp_path, repositories) as found:
        yield found


def test_what_is_needed_is_fetched_and_nothing_else(hub: Hub) -> None:
    stages: list[Stage] = []
    folder = download_model("lab/sharded", stages.append)
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == set(SHARDED)
    assert sorted(hub.sent) == sorted(SHARDED)
    assert set(hub.sent[-2:]) == {"model-1.safetensors", "model-2.safetensors"}
    assert str(stages[-1]) == "download (lab/sharded, 2 of 2 files): 488.3 KiB of 488.3 KiB"
    assert folder.name == COMMIT
    hub.sent.clear()
    assert download_model("lab/sharded", silent) == folder
    assert hub.sent == []


@pytest.mark.parametrize(
    ("repository", "said"),
    [
        ("lab/nothing", r"there is no model 'lab/nothing' on the hub, or it is private; check the name, or log in"),
        ("lab/gated", r"'lab/gated' is gated: accept its terms on http.*/lab/gated, then log in with `hf auth login`"),
        ("lab/pickled", r"has no model\.safetensors on the hub, and other forms of weights \(pickles, GGUF\) are not"),
        ("lab/torn", r"names model-2\.safetensors, which is not on the hub"),
        ("lab/empty", r"'lab/empty' has no config\.json on the hub"),
    ],
)
def test_what_cannot_be_had_is_said_with_the_remedy(hub: Hub, repository: str, said: str) -> None:
    with pytest.raises(SourceNotFound, match=said) as refused:
        download_model(repository, silent)
    assert "\n" not in str(refused.value)


def test_without_a_network_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with hub_on_this_machine(monkeypatch, tmp_path, {}):
        pass
    with pytest.raises(SourceNotFound, match="the hub cannot be reached; check the network, give a directory"):
        on_this_machine("lab/sharded", "auto", silent)


def test_a_disk_that_is_too_small_is_found_before_the_weights_come(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brim.model.download._free_bytes", lambda folder: 400_000)
    with pytest.raises(DeviceError, match=r"takes 488\.3 KiB more, and .* has 390\.6 KiB free; make room, or set"):
        download_model("lab/sharded", silent)
    assert not any(name.endswith(".safetensors") for name in hub.sent)


def test_bytes_are_told_while_a_file_comes(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
    halfway = hub.halfway = Event()
    told: list[int] = []

    def look(stage: Stage) -> None:
        if stage.total == 500_000:
            told.append(stage.done or 0)
            if told[-1] == 250_000:  # the halves of both
                halfway.set()

    download_model("lab/sharded", look)
    assert told == sorted(told)
    assert 250_000 in told
    assert told[-1] == 500_000


def test_who_is_told_may_end_it(hub: Hub) -> None:
    def enough(stage: Stage) -> None:
        if stage.total is not None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download_model("lab/sharded", enough)


def test_only_ids_of_the_hub_are_looked_for_there(hub: Hub, tmp_path: Path) -> None:
    folder = packaged_folder("brim-tiny")
    for source in ("brim-tiny", str(folder), folder, {"model_type": "llama"}, None, str(tmp_path / "nothing")):
        assert on_this_machine(source, "auto", silent) is source
    assert on_this_machine("lab/sharded", "dummy", silent) == "lab/sharded"
    assert hub.sent == []
