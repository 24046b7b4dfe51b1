"""Brim's scans against the references in `transformers`, against single tokens in float64, and on the meta device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.recurrent.scans.chunks import decays_between, from_chunks, in_chunks  # noqa: E402
from brim.engine.recurrent.scans.delta_rule import chunk_rule, recurrent_rule  # noqa: E402
from brim.engine.recurrent.scans.mamba2 import chunk_scan, state_update  # noqa: E402
from brim.trace.watch import StorageWatch, watching  # noqa: E402

lengths = st.one_of(st.integers(1, 9), st.sampled_from([63, 64, 65, 127, 128, 129, 200, 300]))
random_cases = partial(settings, max_examples=40, deadline=None)


@pytest.fixture(autouse=True, scope="module")
def no_gradients() -> Any:
    with torch.inference_mode():
        yield


def close(found: Any, expected: Any, part: float = 1e-5) -> None:
    """Of one shape and dtype, and no further apart than a part of the largest: sums of many terms cancel."""
    if isinstance(expected, torch.Tensor):
        found, expected = [found], [expected]
    for one, other in zip(found, expected, strict=True):
        largest = float(other.abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=0, atol=part * largest)


def reference(name: str) -> Callable[..., Any]:
    """A function of `transformers`, without what was registered around it."""
    from transformers.models.nemotron_h import modeling_nemotron_h
    from transformers.models.qwen3_next import modeling_qwen3_next

    module = modeling_nemotron_h if name.startswith("mamba2") else modeling_qwen3_next
    found: Callable[..., Any] = inspect.unwrap(getattr(module, name))
    return found


@dataclass(frozen=True)
class Sizes:
    batch: int
    tokens: int
    groups: int
    heads_of_group: int
    dim: int
    state: int
    seed: int

    @property
    def heads(self) -> int:
        return self.groups * self.heads_of_group


sizes = st.builds(
    Sizes,
    batch=st.integers(1, 3),
    tokens=lengths,
    groups=st.integers(1, 3),
    heads_of_group=st.integers(1, 3),
    dim=st.integers(1, 9),
    state=st.integers(1, 9),
    seed=st.integers(0, 2**31),
)


# -- Mamba-2 -------------------------------------------------------------------------------------------------------


def scan_arguments(s: Sizes, dtype: Any = torch.float32, device: str = "cpu", decay: float = 1.0) -> dict[str, Any]:
    make = partial(torch.randn, dtype=dtype, device=device)
    # As the models have it: what comes out of a convolution lies channel by channel.
    x = make(s.batch, s.heads * s.dim, s.tokens).transpose(1, 2).view(s.batch, s.tokens, s.heads, s.dim)
    return {
        "hidden_states": x,
        "dt": make(s.batch, s.tokens, s.heads),
        "A": -decay * torch.rand(s.heads, device=device),
        "B": make(s.batch, s.tokens, s.groups, s.state),
        "C": make(s.batch, s.tokens, s.groups, s.state),
        "chunk_size": 256,
        "D": make(s.heads),
        "dt_bias": make(s.heads),
        "dt_softplus": True,
        "dt_limit": (0.3, 2.0),
        "return_final_states": True,
    }


def token_by_token(arguments: dict[str, Any], state: Any) -> tuple[Any, Any]:
    """The recurrence as it is defined, in float64."""
    x, dt, A, B, C, D = (arguments[name].double() for name in ("hidden_states", "dt", "A", "B", "C", "D"))  # noqa: N806
    dt = torch.nn.functional.softplus(dt + arguments["dt_bias"].double()).clamp(*arguments["dt_limit"])
    per_group = x.shape[2] // B.shape[2]
    B, C = (tensor.repeat_interleave(per_group, dim=2) for tensor in (B, C))  # noqa: N806
    state = torch.zeros(x.shape[0], *x.shape[2:], B.shape[-1]).double() if state is None else state.double()
    outputs = []
    for token in range(x.shape[1]):
        decay = (dt[:, token] * A).exp()[..., None, None]
        taken_in = (dt[:, token, :, None] * x[:, token])[..., None] * B[:, token, :, None]
        state = decay * state + taken_in
        outputs.append((state * C[:, token, :, None]).sum(-1) + D[:, None] * x[:, token])
    return torch.stack(outputs, dim=1), state


@random_cases()
@given(sizes, st.booleans(), st.sampled_from([0.1, 1.0, 100.0]))
def test_a_scan_is_what_transformers_and_the_definition_say(s: Sizes, has_past: bool, decay: float) -> None:
    torch.manual_seed(s.seed)
    arguments = scan_arguments(s, decay=decay)
    past = torch.randn(s.batch, s.heads, s.dim, s.state) if has_past else None
    found = chunk_scan(**arguments, initial_states=past)
    exact = [tensor.float() for tensor in token_by_token(arguments, past)]
    close(found, exact)
    theirs = reference("mamba2_chunk_scan")(**arguments, initial_states=past)
    close(found, theirs, part=1e-4 * max(decay, 1))  # some of its decays are differences of sums
    assert found[0].is_contiguous() or s.batch > 1


@random_cases(max_examples=20)
@given(sizes, st.booleans())
def test_a_scan_of_half_precision_has_the_dtypes_of_transformers(s: Sizes, has_past: bool) -> None:
    torch.manual_seed(s.seed)
    arguments = scan_arguments(s, torch.bfloat16)
    past = torch.randn(s.batch, s.heads, s.dim, s.state) if has_past else None
    found = chunk_scan(**arguments, initial_states=past)
    close(found, reference("mamba2_chunk_scan")(**arguments, initial_states=past), part=1e-4)


@random_cases(max_examples=20)
@given(sizes, st.integers(1, 300))
def test_a_scan_continues_where_it_was(s: Sizes, first: int) -> None:
    torch.manual_seed(s.seed)
    arguments = scan_arguments(s)
    whole, last = chunk_scan(**arguments)
    state, parts = None, []
    for place in (slice(0, first), slice(first, None)):
        part = {name: arguments[name][:, place] for name in ("hidden_states", "dt", "B", "C")}
        if part["dt"].shape[1]:
            output, state = chunk_scan(**{**arguments, **part}, initial_states=state)
            parts.append(output)
    close([torch.cat(parts, dim=1), state], [whole, last])


@random_cases(max_examples=20)
@given(sizes, st.booleans(), st.booleans(), st.sampled_from([torch.float32, torch.bfloat16]))
def test_one_token_on_a_state(s: Sizes, gated: bool, expanded: bool, dtype: Any) -> None:
    """In bfloat16, as the reference on float32: it would round what is taken in and what is read, and Brim does not."""
    torch.manual_seed(s.seed)
    make = partial(torch.randn, dtype=dtype)
    shape = (s.batch, s.heads, s.dim)
    for_a_head = [make(s.batch, s.heads, 1), make(s.heads, 1), make(s.heads, 1), -torch.rand(s.heads, 1, 1)]
    last = [(-1, -1, s.dim), (-1, s.dim), (-1, s.dim), (-1, s.dim, s.state)]
    dt, bias, D, A = (tensor.expand(size) for tensor, size in zip(for_a_head, last, strict=True))  # noqa: N806
    if not expanded:
        dt, bias, A = make(shape), make(s.heads, s.dim), -torch.rand(s.heads, s.dim, s.state)  # noqa: N806
    x, B, C = make(shape), make(s.batch, s.groups, s.state), make(s.batch, s.groups, s.state)  # noqa: N806
    z = make(shape) if gated else None
    ours = torch.randn(*shape, s.state)
    theirs = ours.clone()
    found = state_update(ours, x, dt, A, B, C, D, z=z, dt_bias=bias, dt_softplus=True)
    steps = torch.nn.functional.softplus(dt + bias)
    exact = (None if tensor is None else tensor.float() for tensor in (x, steps, A, B, C, D, z))
    *arguments, z = exact
    expected = reference("mamba2_selective_state_update")(theirs, *arguments, z=z)
    close(ours, theirs)
    close(found, expected.to(dtype), part=1e-5 if dtype == torch.float32 else 2**-7)


def test_a_gate_and_what_is_not_asked_for() -> None:
    s = Sizes(batch=2, tokens=70, groups=1, heads_of_group=2, dim=3, state=4, seed=0)
    arguments = {**scan_arguments(s), "return_final_states": False}
    z = torch.randn(s.batch, s.tokens, s.heads, s.dim)
    plain = chunk_scan(**arguments)
    close(chunk_scan(**arguments, z=z), plain * torch.nn.functional.silu(z))
    without = chunk_scan(**{**arguments, "D": None})
    close(without + arguments["D"][:, None] * arguments["hidden_states"], plain)


# -- the gated delta rule -------------------------------------------------------------------------------------------


def rule_arguments(s: Sizes, dtype: Any = torch.float32, device: str = "cpu", decay: float = 1.0) -> dict[str, Any]:
    """Keys of `dim` and values of `state`."""
    make = partial(torch.randn, dtype=dtype, device=device)
    value = make(s.batch, s.heads * s.state, s.tokens).transpose(1, 2).view(s.batch, s.tokens, s.heads, s.state)
    return {
        "query": make(s.batch, s.tokens, s.heads, s.dim),
        "key": make(s.batch, s.tokens, s.heads, s.dim),
        "value": value,
        "g": -decay * torch.rand(s.batch, s.tokens, s.heads, device=device),
        "beta": make(s.batch, s.tokens, s.heads).sigmoid(),
        "use_qk_l2norm_in_kernel": True,
        "output_final_state": True,
    }


@random_cases()
@given(sizes, st.booleans(), st.sampled_from([0.01, 1.0, 100.0]), st.booleans())
def test_a_rule_is_what_transformers_says(s: Sizes, has_past: bool, decay: float, normalise: bool) -> None:
    """Token by token; by chunks, its decays are differences of sums, and less exact the larger those are."""
    torch.manual_seed(s.seed)
    arguments = {**rule_arguments(s, decay=decay), "use_qk_l2norm_in_kernel": normalise}
    if not normalise:
        arguments["key"] = torch.nn.functional.normalize(arguments["key"], dim=-1)
    past = torch.randn(s.batch, s.heads, s.dim, s.state) if has_past else None
    found = chunk_rule(**arguments, initial_state=past)
    close(found, reference("torch_recurrent_gated_delta_rule")(**arguments, initial_state=past))
    by_chunks = reference("torch_chunk_gated_delta_rule")(**arguments, initial_state=past)
    close(found, by_chunks, part=1e-5 * max(decay, 1))
    close(recurrent_rule(**arguments, initial_state=past), found)


@random_cases(max_examples=20)
@given(sizes, st.booleans())
def test_a_rule_of_half_precision_has_the_dtypes_of_transformers(s: Sizes, has_past: bool) -> None:
    torch.manual_seed(s.seed)
    arguments = rule_arguments(s, torch.bfloat16)
    past = torch.randn(s.batch, s.heads, s.dim, s.state) if has_past else None
    output, state = chunk_rule(**arguments, initial_state=past)
    expected = reference("torch_chunk_gated_delta_rule")(**arguments, initial_state=past)
    close(state, expected[1])
    close(output, expected[0], part=2**-7)


def test_one_token_changes_only_what_it_returns() -> None:
    s = Sizes(batch=3, tokens=1, groups=2, heads_of_group=2, dim=5, state=4, seed=0)
    arguments, past = rule_arguments(s), torch.randn(3, 4, 5, 4)
    before = past.clone()
    found = recurrent_rule(**arguments, initial_state=past)
    close(found, reference("torch_recurrent_gated_delta_rule")(**arguments, initial_state=past))
    close(past, before, part=0)


def test_a_scale_and_what_is_not_asked_for() -> None:
    s = Sizes(batch=2, tokens=70, groups=1, heads_of_group=2, dim=4, state=3, seed=0)
    arguments = {**rule_arguments(s), "output_final_state": False}
    plain, state = chunk_rule(**arguments)
    assert state is None
    close(chunk_rule(**arguments, scale=1.0)[0], 2 * plain)


# -- both -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("function", "make"), [(chunk_scan, scan_arguments), (chunk_rule, rule_arguments)])
@pytest.mark.parametrize("tokens", [1, 64, 200])
def test_arguments_stay_as_they_were(function: Any, make: Any, tokens: int) -> None:
    arguments = make(Sizes(batch=2, tokens=tokens, groups=2, heads_of_group=2, dim=5, state=5, seed=0))
    initial = "initial_states" if function is chunk_scan else "initial_state"
    arguments[initial] = torch.randn(2, 4, 5, 5)
    before = {name: value.clone() for name, value in arguments.items() if isinstance(value, torch.Tensor)}
    function(**arguments)
    for name, value in before.items():
        close(arguments[name], value, part=0)


NEMOTRON = Sizes(batch=1, tokens=2048, groups=8, heads_of_group=16, dim=80, state=128, seed=0)
QWEN = Sizes(batch=1, tokens=2048, groups=16, heads_of_group=2, dim=128, state=128, seed=0)


@pytest.mark.parametrize(
    ("function", "make", "sizes", "bytes_per_token"),
    [
        (chunk_scan, scan_arguments, NEMOTRON, 4 * 128 * (2 * 80 + 128) + 8 * 8 * 128 + 16 * 128),
        (chunk_rule, rule_arguments, QWEN, 4 * 32 * (4 * 128 + 128 * 256 // 64 + 64 + 5)),
    ],
)
def test_bytes_per_token_on_the_meta_device(function: Any, make: Any, sizes: Sizes, bytes_per_token: int) -> None:
    """The formulas of the docstrings, to a hundredth; a state of the last chunk comes on top."""
    arguments = make(sizes, torch.bfloat16, "meta")
    watch = StorageWatch([value for value in arguments.values() if isinstance(value, torch.Tensor)])
    with watching(watch):
        output, state = function(**arguments)
    assert output.is_meta
    assert output.shape == (1, 2048, sizes.heads, output.shape[-1])
    taken = watch.peak_bytes / sizes.tokens
    assert 0.99 * bytes_per_token < taken < 1.01 * bytes_per_token
    assert state.untyped_storage().nbytes() == 4 * state.numel()  # it keeps nothing else alive


@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20))
def test_chunks_there_and_back(batch: int, tokens: int, chunk: int) -> None:
    row = torch.arange(batch * tokens * 2 * 3, dtype=torch.float32).view(batch, tokens, 2, 3)
    cut = in_chunks(row, chunk)
    assert cut.shape == (-(-tokens // chunk), batch, 2, 3, chunk)
    close(from_chunks(cut.mT, tokens, torch.float32), row, part=0)


def test_decays_keep_their_digits_behind_a_large_one() -> None:
    decays = decays_between(torch.tensor([-3e5, -1e-3, -1e-3]))
    close(decays[2, 0], torch.tensor(-2e-3).exp(), part=1e-7)
    assert decays[1, 2] == 1.0
