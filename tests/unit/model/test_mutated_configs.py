"""Real configs, damaged at random: a spec and a plan, or one line that says what is wrong. Nothing else."""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.errors import BrimError, InputError
from brim.model.catalogue import entries
from brim.model.config import read_config
from brim.planning.devices import find_device
from brim.planning.plan import make_plan
from brim.records.model import Attention, DeltaNet, LayerSpec, Mamba2, ModelSpec
from brim.records.plan import PlanRequest
from tests.conftest import CONFIGS, read_json, shared_config_names

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, -1, 1, 3, 7, 10**9, 10**18, 10**400, -(10**18)]),
    st.sampled_from([math.nan, math.inf, -math.inf, 0.5, -2.0, 1e300]),
    st.text(max_size=12),
    st.lists(st.integers(-3, 300), max_size=5),
    st.dictionaries(st.text(max_size=4), st.integers(-3, 300), max_size=3),
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every key and index inside a config."""
    items = node.items() if isinstance(node, dict) else enumerate(node[:6]) if isinstance(node, list) else ()
    found = []
    for key, value in items:
        found.append((*path, key))
        found += places(value, (*path, key))
    return found


def sources() -> list[dict[str, Any]]:
    return [entry.config for entry in entries().values()] + [
        read_json(CONFIGS / name / "config.json") for name in shared_config_names()[::4]
    ]


SOURCES = sources()
PLACES = [places(config) for config in SOURCES]


@settings(max_examples=600, deadline=None)
@given(st.data())
def test_damage_is_either_harmless_or_named(data: st.DataObject) -> None:
    which = data.draw(st.integers(0, len(SOURCES) - 1))
    config = copy.deepcopy(SOURCES[which])
    for place in data.draw(st.lists(st.sampled_from(PLACES[which]), min_size=1, max_size=3)):
        node = config
        for key in place[:-1]:
            node = node[key] if _holds(node, key) else None
        if not _holds(node, place[-1]):
            continue
        if isinstance(node, dict) and data.draw(st.booleans()):
            del node[place[-1]]
        else:
            node[place[-1]] = data.draw(JUNK)
    started = time.process_time()
    try:
        spec = read_config(config, name="damaged")
        plan = make_plan(spec, (find_device("h100"),), PlanRequest(max_len=512, batch_tokens=256))
    except BrimError as error:
        message = str(error)
    else:
        message = ""
        assert sum(item.bytes for item in plan.items) == plan.device.total_bytes
        assert spec.parameters > 0
    assert "\n" not in message
    assert len(message) < 600
    assert time.process_time() - started < 20  # milliseconds; a hang is what this is for, not a busy collector


def absurdities(spec: ModelSpec) -> Iterator[object]:
    """Parts of a spec that no model has: nothing wide, no heads, heads that do not divide."""
    for _, tensor, count in spec.all_tensors():
        if min(*tensor.shape, tensor.count, count) < 1:
            yield tensor
    for layer, _ in spec.layer_groups:
        yield from absurdities_of_layer(layer)
    for tower in spec.towers:
        limits = tower.limits
        if min(tower.intermediate, tower.layers, tower.heads, tower.merge, tower.hidden) < 1:
            yield tower
        if max(limits.max_pixels, limits.tile_pixels * limits.max_tiles, limits.max_seconds) < 1:
            yield limits


def absurdities_of_layer(layer: LayerSpec) -> Iterator[object]:
    for cache in layer.kv:
        if min(cache.heads, cache.elements_per_head, cache.stride, 1 if cache.window is None else cache.window) < 1:
            yield cache
    mixer, ff = layer.mixer, layer.feed_forward
    if isinstance(mixer, Attention) and (min(mixer.head_dim, mixer.value_dim) < 1 or mixer.heads % mixer.kv_heads):
        yield mixer
    if isinstance(mixer, DeltaNet) and mixer.value_heads % mixer.key_heads:
        yield mixer
    if isinstance(mixer, Mamba2) and (mixer.head_dim < 1 or mixer.heads % mixer.groups):
        yield mixer
    if ff and (ff.top_k > ff.experts or (ff.experts and min(ff.top_k, ff.expert_intermediate) < 1)):
        yield ff


def values_instead(value: Any) -> tuple[Any, ...]:
    if isinstance(value, bool):
        return (not value,)
    if isinstance(value, list):
        return (value[:1], value * 2, [], [0] * len(value))
    return (0, -1, 1, value + 1, value * 3, value * 1000, 1 << 24)


FAMILIES = {str(config.get("model_type")): config for config in SOURCES}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_number_gives_an_absurd_model(family: str) -> None:
    config = copy.deepcopy(FAMILIES[family])
    for *path, name in places(config):
        node: Any = config
        for key in path:
            node = node[key]
        value = node[name]
        for instead in values_instead(value) if isinstance(value, int | float | list) else ():
            node[name] = instead
            with contextlib.suppress(InputError):
                found = list(absurdities(read_config(config, name="x")))
                assert not found, f"{'.'.join(map(str, path))}.{name} = {instead}: {found[0]}"
        node[name] = value


def _holds(node: Any, key: Any) -> bool:
    if isinstance(node, dict):
        return key in node
    return isinstance(node, list) and isinstance(key, int) and key < len(node)
