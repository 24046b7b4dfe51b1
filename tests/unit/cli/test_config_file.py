"""`--config FILE`: what a file stands for on a command line, and what is wrong with it."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

import pytest

from brim.cli.main import read_options, run

TOML = """
model = "Qwen/Qwen3-8B"
port = 9000          # a number
max_len = "16k"
max-seqs = 32
no-graphs = true
insecure = false
api-key = ["one", "two"]
header-seconds = 5
dtype = "bf16"
"""
YAML = """
model: Qwen/Qwen3-8B
port: 9000
max_len: 16k
max-seqs: 32
no-graphs: true
insecure: false
api-key: [one, two]
header-seconds: 5
dtype: bf16
"""


def file_with(folder: Path, text: str, name: str = "serve.toml") -> str:
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.parametrize(("name", "text"), [("serve.toml", TOML), ("serve.yaml", YAML), ("serve.yml", YAML)])
def test_a_file_is_the_same_as_its_flags(tmp_path: Path, name: str, text: str) -> None:
    if name != "serve.toml":
        pytest.importorskip("yaml")
    read = read_options(["serve", "--config", file_with(tmp_path, text, name)])
    flags = "--port 9000 --max-len 16k --max-seqs 32 --no-graphs --api-key one --api-key two --header-seconds 5"
    written = read_options(["serve", "Qwen/Qwen3-8B", *flags.split(), "--dtype", "bf16"])
    written.config = tmp_path / name
    assert read == written


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = file_with(tmp_path, TOML)
    flags = ["--port", "1", "--max-model-len", "8k", "--api-key", "three"]
    read = read_options(["serve", "./mine", "--config", file, *flags])
    assert (read.model, read.port, read.max_len, read.api_key) == ("./mine", 1, "8k", ["three"])
    assert read.max_seqs == 32
    assert read_options(["serve", *flags, "--config", file, "./mine"]) == read


def test_a_value_that_begins_with_a_dash_is_a_value(tmp_path: Path) -> None:
    assert read_options(["serve", "--config", file_with(tmp_path, 'kv-events-topic = "--x"')]).kv_events_topic == "--x"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    assert read_options(["serve", "--config", file_with(tmp_path, "")]).port == 8000
    pytest.importorskip("yaml")
    assert read_options(["serve", "--config", file_with(tmp_path, "", "x.yaml")]).port == 8000


WRONG = {
    "an unknown key": ("port = 1\nmax-lenn = 5", "{file}:2: key 'max-lenn' is not known; did you mean max-len?"),
    "a word like none": ("zzzz = 5", "{file}:1: key 'zzzz' is not known; keys are the long options of brim serve"),
    "text for a number": ("port = 'http'", "{file}:1: 'port' is the text 'http'; it must be a whole number"),
    "a fraction": ("port = 80.5", "{file}:1: 'port' is 80.5; it must be a whole number"),
    "true for a number": ("port = true", "{file}:1: 'port' is true; it must be a whole number"),
    "true for text": ("host = true", "{file}:1: 'host' is true; it must be text or a number"),
    "text for a flag": ("insecure = 'yes'", "{file}:1: 'insecure' is the text 'yes'; it must be true or false"),
    "a list for one": ("port = [1, 2]", "{file}:1: 'port' is a list; it must be a whole number"),
    "a list of others": ("api-key = [true]", "'api-key' is a list; it must be text or a number, or a list of such"),
    "a choice": ("dtype = 'int7'", "{file}:1: 'dtype' is the text 'int7'; it must be one of auto, bf16, fp16, fp32"),
    "a table": ("[serve]\nport = 1", "{file}:1: key 'serve' is not known"),
    "a date": ("host = 2020-01-01", "{file}:1: 'host' is a date; it must be text"),
    "twice": ("max-len = 1\nmax_model_len = 2", "{file}:2: 'max_model_len' is 'max-len' of {file}:1 again; keep one"),
    "itself": ("config = 'x.toml'", "{file}:1: key 'config' is not known"),
    "no TOML": ("port 8000", "config {file}: it is no TOML: "),
    "a model like a flag": ("model = '--port'", "{file}:1: 'model' is the text '--port'; it must be a name or a path"),
}


def refusal(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert said.startswith("brim serve: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize(("text", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str) -> None:
    file = file_with(tmp_path, text)
    assert said.format(file=file) in refusal(["serve", "--config", file], capsys)


def test_lines_of_yaml_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("yaml")
    file = file_with(tmp_path, "# mine\nport: 1\n\nmax-lenn: 5\n", "x.yaml")
    assert f"{file}:4: key 'max-lenn' is not known" in refusal(["serve", "--config", file], capsys)
    for text, said in (
        ("port: 1\nport: 2", f"{file}:2: 'port' is 'port' of {file}:1 again"),
        ("- port", "it is no mapping"),
        ("port: [", "it is no YAML"),
        ("port:", "'port' is empty; it must be a whole number"),
        ("max-len: !!python/object:os.system {}", "it is no YAML"),
    ):
        assert said in refusal(["serve", "--config", file_with(tmp_path, text, "x.yaml")], capsys)


def test_yaml_without_its_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    file = file_with(tmp_path, "port: 1", "x.yaml")
    assert "YAML needs PyYAML: pip install pyyaml; or write TOML" in refusal(["serve", "--config", file], capsys)


def test_files_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be read (No such file" in refusal(["serve", "--config", "nowhere.toml"], capsys)
    assert "is neither TOML nor YAML" in refusal(["serve", "--config", file_with(tmp_path, "", "x.ini")], capsys)
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe")
    assert "is not UTF-8" in refusal(["serve", "--config", str(tmp_path / "x.toml")], capsys)


def test_what_is_printed_is_such_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["serve", "a 'b' \"c\"\\n", "--port", "7", "--no-graphs", "--max-len", "8k", "--share", "0.5"]
    with pytest.raises(SystemExit) as ended:
        run([*words, "--print-config"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    read, written = read_options(["serve", "--config", file_with(tmp_path, printed)]), read_options(words)
    written.config = read.config
    assert read == written


def test_keys_of_clients_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(["serve", "--api-key", "hush", "--print-config"])
    printed = capsys.readouterr().out
    assert "hush" not in printed
    assert "api-key" not in tomllib.loads(printed)
