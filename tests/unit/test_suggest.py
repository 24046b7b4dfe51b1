from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.suggest import did_you_mean, near, shown, suggestions

NAMES = ("qwen3-8b", "qwen3-32b", "qwen3-30b-a3b", "qwen2.5-3b", "llama-3.1-8b", "h100", "h100-nvl")


def test_names_that_continue_the_text_come_first() -> None:
    assert suggestions("qwen3-30b", NAMES)[0] == "qwen3-30b-a3b"
    assert suggestions(" Qwen3-30B ", NAMES)[0] == "qwen3-30b-a3b"
    assert suggestions("h10", NAMES)[:2] == ["h100", "h100-nvl"]


def test_then_names_the_text_continues_and_names_that_look_like_it() -> None:
    assert suggestions("h1000", NAMES)[0] == "h100"
    assert suggestions("qwen3-8bb", NAMES)[0] == "qwen3-8b"
    assert suggestions("lama-3.1-8b", NAMES)[0] == "llama-3.1-8b"


def test_nothing_near_is_no_suggestion() -> None:
    assert suggestions("abacus", NAMES) == suggestions("", NAMES) == suggestions("  ", NAMES) == []
    assert did_you_mean([]) == ""
    assert did_you_mean(["a", "b"]) == "did you mean a, b? Or "


def test_the_nearest_name_is_found_whatever_its_separators() -> None:
    assert near("--maxlen", ["--max-len", "--max-seqs"]) == "--max-len"
    assert near("plna", ["plan", "trace"]) == "plan"
    assert near("abacus", ["plan", "trace"]) is None


@given(st.text(max_size=200))
def test_suggestions_are_names_and_each_is_made_once(text: str) -> None:
    found = suggestions(text, NAMES)
    assert len(found) == len(set(found)) <= 3
    assert set(found) <= set(NAMES)
    assert "\n" not in shown(text)
