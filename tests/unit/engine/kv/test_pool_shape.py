"""From KV tokens to the blocks of each group: what running requests hold comes first, and all beyond it is a cache."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brim.engine.kv.geometry import LayerGroup, pool_shape
from brim.engine.kv.ledger import KvLedger
from brim.engine.kv.sizes import PoolSizes
from brim.engine.settings import EngineSettings

FULL, SLIDING = LayerGroup(None, (0,), 20), LayerGroup(1024, (1,), 116)  # as Gemma 3 4B has them: 5 layers, and 29
BATCH, STEP, SIZE, LENGTH = 64, 2048, 16, 8192
RUNNING = BATCH * LENGTH
WINDOWS = BATCH * (1024 + SIZE) + STEP + BATCH * SIZE  # all that 64 windows can hold
windows = st.none() | st.integers(1, 300)


def blocks(kv_tokens: int, *groups: LayerGroup, cached_from: int | None = RUNNING) -> tuple[int, ...]:
    return pool_shape(groups, kv_tokens, SIZE, BATCH, STEP, cached_from).blocks


def test_windows_hold_what_running_requests_need_and_all_that_is_cached() -> None:
    assert blocks(16 * 1000, FULL, SLIDING) == (1000, 1000)
    assert blocks(RUNNING, FULL, SLIDING) == (RUNNING // SIZE, WINDOWS // SIZE)
    assert blocks(RUNNING + 1600, FULL, SLIDING) == (RUNNING // SIZE + 100, WINDOWS // SIZE + 100)


def test_without_reuse_windows_hold_what_running_requests_need() -> None:
    assert blocks(10 * RUNNING, FULL, SLIDING, cached_from=None) == (10 * RUNNING // SIZE, WINDOWS // SIZE)


def test_a_model_of_windows_alone_has_a_cache_too() -> None:
    assert blocks(RUNNING, SLIDING) == (WINDOWS // SIZE,)
    assert blocks(RUNNING + 1600, SLIDING) == (WINDOWS // SIZE + 100,)


def test_windows_longer_than_any_request_are_as_full_attention() -> None:
    assert blocks(3 * RUNNING, FULL, LayerGroup(10**6, (1,), 1)) == (3 * RUNNING // SIZE,) * 2


def groups_of(*found: int | None) -> tuple[LayerGroup, ...]:
    ordered = sorted(set(found), key=lambda window: (window is not None, -(window or 0)))
    return tuple(LayerGroup(window, (number,), number + 3) for number, window in enumerate(ordered))


@st.composite
def pools(draw: st.DrawFn) -> PoolSizes:
    settings = EngineSettings(
        max_batch=draw(st.integers(1, 6)),
        max_batch_tokens=draw(st.integers(6, 80)),
        block_size=draw(st.sampled_from([8, 16])),
        reuse_prefixes=draw(st.booleans()),
    )
    return PoolSizes(
        groups_of(*draw(st.lists(windows, min_size=1, max_size=3))),
        settings,
        max_length=draw(st.integers(2, 500)),
        element_bytes=draw(st.sampled_from([1, 2])),
        state_bytes=draw(st.sampled_from([0, 0, 100])),
    )


def longest(sizes: PoolSizes, kv_tokens: int) -> int:
    return min(sizes.max_length, sizes.tokens_one_request_can_hold(kv_tokens))


@given(pools(), st.integers(0, 5000), st.integers(0, 500))
def test_more_tokens_never_take_less(sizes: PoolSizes, kv_tokens: int, more: int) -> None:
    smaller, larger = sizes.shape(kv_tokens).blocks, sizes.shape(kv_tokens + more).blocks
    assert all(one <= other for one, other in zip(smaller, larger, strict=True))
    assert sizes.kv_bytes(kv_tokens) <= sizes.kv_bytes(kv_tokens + more)
    assert longest(sizes, kv_tokens) <= longest(sizes, kv_tokens + more)


@given(pools(), st.integers(0, 500))
def test_a_pool_beyond_what_runs_holds_all_that_runs(sizes: PoolSizes, more: int) -> None:
    assert longest(sizes, sizes.running_tokens + more) == sizes.max_length


@given(pools(), st.integers(1, 300))
def test_the_cache_has_a_place_for_a_token_in_every_group(sizes: PoolSizes, more: int) -> None:
    """Beyond running requests every group caches the same number of tokens, or none where that is useless."""
    size = sizes.settings.block_size
    at_most, beyond = (sizes.shape(sizes.running_tokens + extra * size).blocks for extra in (0, more))
    for group, before, after in zip(sizes.groups, at_most, beyond, strict=True):
        if sizes.reuses_prefixes or group.window is None:
            assert after - before == more
        elif before < sizes.running_tokens // size:  # its windows are shorter than requests
            assert after == before


def test_long_prefixes_are_reused_when_all_windows_are_taken() -> None:
    """Another request has filled the pool of windows since: with the cache, the window before the prefix is there."""
    for cached, found in ((0, 0), (40 * SIZE, 30)):
        groups = (FULL, LayerGroup(64, (1,), 1))
        running = 2 * 64 * SIZE
        shape = pool_shape(groups, running + cached, SIZE, 1, 64, cached_from=running)
        ledger = KvLedger(groups, shape)
        for name in (b"first", b"second"):
            request = ledger.open(0)
            digests = [name + bytes([number]) for number in range(30)]
            for done in range(30):
                assert ledger.reserve(request, done * SIZE, (done + 1) * SIZE)
                ledger.publish(request, digests[: done + 1])
                ledger.give_up_behind(request, (done + 1) * SIZE)
            ledger.close(request)
        found_again = ledger.find([b"first" + bytes([number]) for number in range(30)])
        assert ledger.longest_prefix(found_again) == found
