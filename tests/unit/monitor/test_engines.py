"""What servers publish, as figures and as rates."""

from __future__ import annotations

import pytest

from brim.monitor.engines import PoolUse, ServerFigures, figures_from
from brim.monitor.history import FiguresHistory, TokenDelay
from tests.unit.monitor import metrics_texts as texts


def test_vllm() -> None:
    found = figures_from(texts.vllm())
    assert (found.engine, found.model, found.running, found.waiting) == ("vllm", "org/model", 8, 3)
    assert found.pool == PoolUse(750, 0, 250, 16.0)
    assert (found.pool.tokens, found.pool.held_tokens) == (16_000, 12_000)
    assert (found.preemptions, found.finished, found.started) == (3, 42, 1000.0)
    assert (found.generated_tokens, found.prompt_tokens) == (5000.0, 20_000.0)
    assert found.kv_bytes is None
    assert found.first_token is not None
    assert found.first_token.percentile(50) == pytest.approx(0.175)


def test_engines_beside_each_other_are_one_server() -> None:
    found = figures_from(texts.vllm(engines=2))
    assert (found.running, found.pool) == (16, PoolUse(1500, 0, 500, 16.0))


def test_vllm_with_brim_inside() -> None:
    gauges = 'brim:kv_bytes{engine="0"} 1e+09\nbrim:headroom_bytes{engine="0"} 5e+08\nbrim:kept{engine="0"} 1.0\n'
    found = figures_from(texts.vllm() + gauges)
    assert (found.engine, found.kv_bytes, found.headroom_bytes) == ("vllm", 10**9, 5 * 10**8)


@pytest.mark.parametrize("ranks", [1, 4])
@pytest.mark.parametrize("priorities", [False, True])
def test_sglang(ranks: int, priorities: bool) -> None:
    """Ranks publish the same requests, and priorities are parts of their sum."""
    found = figures_from(texts.sglang(ranks=ranks, priorities=priorities))
    assert (found.engine, found.model, found.running, found.waiting) == ("sglang", "org/other", 12, 5)
    assert found.pool == PoolUse(2000, 4000, 2000, 1.0)
    assert (found.kv_bytes, found.weight_bytes) == (2 << 30, 15 << 30)
    assert (found.preemptions, found.finished, found.cache_found) == (7, 9, 30.0)
    assert found.first_token is not None
    assert found.first_token.total == 10


def test_sglang_that_counts_no_tokens() -> None:
    assert figures_from(texts.sglang(counted=False)).pool == PoolUse(2000, 0, 6000, 1.0)


def test_brim_is_not_taken_for_vllm() -> None:
    found = figures_from(texts.BRIM)
    assert (found.engine, found.running, found.waiting, found.kv_bytes) == ("brim", 2, 1, 1 << 20)
    assert found.pool == PoolUse(5, 1, 4, 16.0)


@pytest.mark.parametrize("text", ["", "# nothing\n", "node_load1 0.5\n", '{"status": "ready"}', "\0" * 100])
def test_others_are_none_of_these(text: str) -> None:
    assert figures_from(text) == ServerFigures()


def test_a_model_name_does_not_reach_the_terminal_as_it_is() -> None:
    found = figures_from(texts.vllm(model="\x1b[2J\x07evil" + "x" * 500))
    assert "\x1b" not in found.model
    assert len(found.model) == 120


# -- over time -----------------------------------------------------------------------------------------------------


def test_rates_are_between_two_looks() -> None:
    history = FiguresHistory()
    first = history.add(100.0, figures_from(texts.vllm(generated=1000, preemptions=3, first=10)))
    assert (first.seconds, first.generated_per_second) == (0.0, None)
    assert first.first_token == TokenDelay(pytest.approx(0.175), pytest.approx(0.2485), 10, since_start=True)
    second = history.add(102.0, figures_from(texts.vllm(generated=1500, preemptions=5, first=14)))
    assert (second.seconds, second.generated_per_second, second.prompt_per_second) == (2.0, 250.0, 0.0)
    assert second.preempted == 2
    assert second.first_token is not None
    assert (second.first_token.count, second.first_token.since_start) == (4, False)
    assert second.cache_hits is None, "nothing was asked for in between"


def test_a_minute_is_looked_back_and_rates_are_newer() -> None:
    history = FiguresHistory()
    for second in range(200):
        generated = 10 * second if second < 190 else 1900 + 1000 * (second - 190)
        found = history.add(float(second), figures_from(texts.vllm(generated=generated, preemptions=second)))
    assert found.generated_per_second == 1000.0
    assert found.preempted == 60


def test_a_server_that_was_started_again_begins_anew() -> None:
    history = FiguresHistory()
    history.add(1.0, figures_from(texts.vllm(generated=9000, preemptions=50)))
    history.add(2.0, figures_from(texts.vllm(generated=9100, preemptions=50)))
    again = history.add(3.0, figures_from(texts.vllm(generated=10, preemptions=0)))
    assert (again.generated_per_second, again.seconds, again.preempted) == (None, 0.0, 0)
    later = history.add(4.0, figures_from(texts.vllm(generated=30, preemptions=0)))
    assert later.generated_per_second == 20.0
