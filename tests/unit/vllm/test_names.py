"""Private names are found in sources, without importing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.vllm.names import NAMES, RESCUE_NAMES, Choice, Name, Where, missing_names, source_files

SOURCE = """
class Runner:
    field: int = 0

    def __init__(self):
        self.state = None
        self.first, self.second = 1, 2
        other.elsewhere = 3

    def run(self): ...


def made(): ...
"""


def fake(folder: Path) -> Path:
    (folder / "v1").mkdir(parents=True)
    (folder / "v1" / "runner.py").write_text(SOURCE)
    return folder


def test_methods_fields_and_attributes_are_found(tmp_path: Path) -> None:
    there = ("made", "Runner", "Runner.run", "Runner.field", "Runner.state", "Runner.first", "Runner.second")
    names = [Name("v1/runner.py", name) for name in there]
    assert missing_names(fake(tmp_path), Where.CPU, names) == ()


def test_what_is_gone_is_named(tmp_path: Path) -> None:
    gone = [Name("v1/runner.py", "Runner.stop"), Name("v1/runner.py", "Runner.elsewhere"), Name("v2/none.py", "made")]
    assert missing_names(fake(tmp_path), Where.CPU, gone) == (
        "v1.runner.Runner.stop",
        "v1.runner.Runner.elsewhere",
        "v2.none.made",
    )


def test_only_the_names_of_a_kind_of_worker_are_asked_for(tmp_path: Path) -> None:
    names = [Name("v1/runner.py", "gone", Where.GPU)]
    folder = fake(tmp_path)
    assert missing_names(folder, Where.CPU, names) == ()
    assert missing_names(folder, Where.GPU, names) == ("v1.runner.gone",)


def test_one_set_of_a_choice_is_enough(tmp_path: Path) -> None:
    older, newer = Name("v1/runner.py", "made"), (Name("v1/gone.py", "one"), Name("v1/gone.py", "two"))
    folder = fake(tmp_path)
    assert missing_names(folder, Where.CPU, [Choice(((older,), newer))]) == ()
    assert missing_names(folder, Where.CPU, [Choice((newer, newer[:1]))]) == ("v1.gone.one",)
    assert source_files([older, Choice((newer,))]) == {"v1/runner.py", "v1/gone.py"}


@pytest.mark.parametrize("names", [NAMES, RESCUE_NAMES])
def test_every_name_is_listed_once(names: tuple[Name | Choice, ...]) -> None:
    listed = [str(one) for one in names]
    assert len(set(listed)) == len(listed)


def test_an_empty_vllm_lacks_all_of_them(tmp_path: Path) -> None:
    plain = {str(one) for one in NAMES if isinstance(one, Name)}
    missing = missing_names(tmp_path, Where.EVERYWHERE)
    assert plain < set(missing)
    assert "v1.core.kv_cache_utils.get_kv_cache_groups" in missing
