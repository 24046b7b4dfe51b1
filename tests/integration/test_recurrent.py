"""Recurrent mixers on packed rows against the same modules running each sequence by itself."""

from __future__ import annotations

import gc
import random
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest

from brim.errors import UnsupportedModel
from tests.integration.meta_models import build_meta, known_types

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brim.engine.device.layout import ChunkPlace, PackedLayout  # noqa: E402
from brim.engine.recurrent.mixers import PackedCache, PackedMixers  # noqa: E402
from brim.engine.recurrent.states import RecurrentStates, StateShape, cache_argument, discover_states, recurrent_mixers  # noqa: E402
from brim.trace.watch import StorageWatch, watching  # noqa: E402

BASE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "shared_expert_intermediate_size": 32,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
}
MAMBA = {
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 16,
    "mamba_n_groups": 2,
    "mamba_d_ssm": 64,
    "mamba_chunk_size": 16,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_5_text": DELTA,
    "qwen3_next": {**DELTA, **MOE},
    "granitemoehybrid": {
        **MOE,
        **MAMBA,
        "mamba_chunk_size": 256,
        "layer_types": ["mamba", "attention", "mamba"],
        "shared_intermediate_size": 32,
    },
    "nemotron_h": {
        **MOE,
        "layers_block_type": ["mamba", "attention", "moe"],
        "mamba_num_heads": 8,
        "mamba_head_dim": 8,
        "ssm_state_size": 16,
        "n_groups": 2,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "moe_shared_expert_intermediate_size": 32,
        "chunk_size": 16,
    },
    "lfm2": {"layer_types": ["conv", "full_attention", "conv"]},
    "falcon_h1": {**MAMBA, "num_hidden_layers": 2},
    "bamba": {**MAMBA, "attn_layer_indices": [1]},
    "jamba": {**MOE, "mamba_d_state": 8, "attn_layer_period": 3, "attn_layer_offset": 1},
    "kimi_linear": {
        **MOE,
        "num_key_value_heads": 4,
        "q_lora_rank": None,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 8,
        "qk_rope_head_dim": 8,
        "v_head_dim": 8,
        "n_group": 1,
        "topk_group": 1,
        "linear_num_heads": 4,
        "linear_head_dim": 8,
        "layer_types": ["linear_attention", "full_attention", "linear_attention"],
        "mlp_layer_types": ["dense", "sparse", "sparse"],
    },
}
SLOTS = 3


@cache
def tiny(kind: str) -> Any:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    if kind not in known_types():
        pytest.skip(f"transformers has no {kind}")
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = CONFIG_MAPPING[kind].from_dict({**BASE, **FAMILIES.get(kind, {})})
    model = getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])._from_config(
        config, attn_implementation="eager"
    )
    for parameter in model.parameters():  # the usual small weights would hide a lost state under the tolerance
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    for module in model.modules():  # transformers clamps time steps in prompts but not in generation
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    return model.float().eval()


@dataclass
class Request:
    """A sequence of random inputs: `prompt` of them in chunks, the rest one by one."""

    prompt: int
    inputs: Any  # [mixers, tokens, hidden]
    expected: Any = None
    done: int = 0
    outputs: list[Any] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return int(self.inputs.shape[1])


def alone(model: Any, request: Request) -> Any:
    """What each mixer gives for the request by itself, on a cache of `transformers`."""
    outputs = []
    for inputs, mixer in zip(request.inputs, recurrent_mixers(model), strict=True):
        past = transformers.DynamicCache(config=model.config)
        pieces = inputs.split([request.prompt] + [1] * (request.tokens - request.prompt))
        outputs.append(
            torch.cat([mixer(hidden_states=piece[None], **{cache_argument(mixer): past}) for piece in pieces], dim=1)[0]
        )
    return torch.stack(outputs)


def steps(queue: list[Request], states: RecurrentStates, rng: random.Random) -> Iterator[tuple[list[Request], Any]]:
    """Random steps until every request has finished: decodes get a token, prompts get random chunks."""
    slots: dict[int, Request] = {}
    while queue or slots:
        for slot in {*range(SLOTS)} - slots.keys():
            if queue:
                if rng.random() < 0.5:  # a chunk without context starts from nothing in any case
                    states.clear([slot])
                slots[slot] = queue.pop(0)
        decoding = [slot for slot, request in slots.items() if request.done >= request.prompt]
        rng.shuffle(decoding)
        filling = [slot for slot in slots if slot not in decoding and rng.random() < 0.7]
        chunks, start = [], len(decoding)
        for slot in filling:
            left = slots[slot].prompt - slots[slot].done
            length = min(left, rng.choice([1, 2, 3, 7, 16, 40, 90]))
            chunks.append(ChunkPlace(start, length, slot, slots[slot].done))
            start += length
        if start:
            layout = PackedLayout(len(decoding), tuple(chunks), torch.tensor(decoding, dtype=torch.int64))
            yield [slots[slot] for slot in decoding + filling], layout
        slots = {slot: request for slot, request in slots.items() if request.done < request.tokens}


def take(requests: list[Request], layout: PackedLayout) -> Any:
    """The packed rows of the step, one for each mixer."""
    lengths = [1] * layout.decodes + [chunk.length for chunk in layout.chunks]
    return torch.cat(
        [request.inputs[:, request.done :][:, :length] for request, length in zip(requests, lengths, strict=True)],
        dim=1,
    )


def give(requests: list[Request], layout: PackedLayout, output: Any) -> None:
    lengths = [1] * layout.decodes + [chunk.length for chunk in layout.chunks]
    for request, part in zip(requests, output.split(lengths, dim=1), strict=True):
        request.outputs.append(part)
        request.done += part.shape[1]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", sorted(FAMILIES))
@torch.no_grad()
def test_packed_runs_equal_each_sequence_by_itself(kind: str, seed: int) -> None:
    model, rng = tiny(kind), random.Random(seed)
    torch.manual_seed(seed)
    count = len(recurrent_mixers(model))
    prompts = [1, 2, 3, 5, 33, rng.randint(4, 90), rng.randint(60, 90)]
    rng.shuffle(prompts)
    requests = [Request(prompt, torch.randn(count, prompt + rng.randint(0, 5), 32)) for prompt in prompts]
    for request in requests:
        request.expected = alone(model, request)
    states = RecurrentStates(discover_states(model), SLOTS, "cpu")
    mixers = PackedMixers(model, states, piece_tokens=8, piece_rows=2)
    try:
        for running, layout in steps(list(requests), states, rng):
            mixers.layout = layout
            rows = zip(take(running, layout), recurrent_mixers(model), strict=True)
            give(running, layout, torch.stack([mixer(hidden_states=row[None])[0] for row, mixer in rows]))
    finally:
        mixers.undo()
    for request in requests:
        torch.testing.assert_close(torch.cat(request.outputs, dim=1), request.expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@torch.no_grad()
def test_a_batch_of_chunks_equals_each_by_itself(kind: str) -> None:
    """Chunks of equal lengths among others, with a past and without, not side by side and not in order of slots."""
    model = tiny(kind)
    torch.manual_seed(0)
    shapes = discover_states(model)
    past, rng = torch.randn(len(shapes)), random.Random(0)
    lengths = [1, 7, 1, 20, 7, 1, 2, 7, 1, 1, 20, 7]
    slots, row = rng.sample(range(12), 12), torch.randn(1, sum(lengths) + 2, 32)
    chunks, start = [], 2
    for length, slot in zip(lengths, slots, strict=True):
        chunks.append(ChunkPlace(start, length, slot, rng.choice([0, 30])))
        start += length
    layout = PackedLayout(2, tuple(chunks), torch.tensor([13, 12]))
    found = []
    for piece_rows in (1, 6, 64):
        states = RecurrentStates(shapes, 14, "cpu")
        for shape, scale in zip(shapes, past, strict=True):
            rows = states.of_layer(shape.layer)[shape.kind]
            rows += scale * torch.linspace(-1, 1, rows.numel()).view(rows.shape)
        mixers = PackedMixers(model, states, piece_tokens=24, piece_rows=piece_rows)
        mixers.layout = layout
        try:
            output = [mixer(hidden_states=row) for mixer in recurrent_mixers(model)]
        finally:
            mixers.undo()
        found.append([*output, *(states.of_layer(shape.layer)[shape.kind] for shape in shapes)])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found[2], found[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("left_over", [0, 1, 2])
@torch.no_grad()
def test_a_time_step_is_clamped_wherever_a_prompt_is_cut(left_over: int) -> None:
    """The code for one token does not clamp it, so no piece is one token."""
    model, length = tiny("nemotron_h"), 24 + left_over
    mixer, row = recurrent_mixers(model)[0], torch.randn(1, 24 + left_over, 32)
    limit, outputs = mixer.time_step_limit, []
    for piece_tokens in (8, 64):
        mixers = PackedMixers(model, RecurrentStates(discover_states(model), 1, "cpu"), piece_tokens=piece_tokens)
        mixers.layout = PackedLayout(0, (ChunkPlace(0, length, 0, 0),), torch.empty(0, dtype=torch.int64))
        mixer.time_step_limit = (1.0, 1.5)
        try:
            outputs.append(mixer(hidden_states=row))
        finally:
            mixers.undo()
            mixer.time_step_limit = limit
    torch.testing.assert_close(outputs[0], outputs[1], atol=1e-5, rtol=1e-5)


NEMOTRON_NANO_12B = {
    "model_type": "nemotron_h",
    "hidden_size": 5120,
    "intermediate_size": 20480,
    "layers_block_type": ["mamba", "mlp"],
    "mamba_num_heads": 128,
    "mamba_head_dim": 80,
    "ssm_state_size": 128,
    "n_groups": 8,
    "chunk_size": 128,
    "vocab_size": 128,
}


@pytest.mark.parametrize("short", [0, 255])
@torch.no_grad()
def test_a_mixer_takes_less_than_the_rest_of_its_model(short: int) -> None:
    """A step of 8192 tokens: one chunk, or many short ones beside it."""
    model = build_meta(NEMOTRON_NANO_12B)
    states = RecurrentStates(discover_states(model), 256, "meta")
    mixers, row = PackedMixers(model, states), torch.empty(1, 8192, 5120, dtype=torch.bfloat16, device="meta")
    chunks = [ChunkPlace(number, 1, number, 0) for number in range(short)]
    mixers.layout = PackedLayout(
        0, (*chunks, ChunkPlace(short, 8192 - short, 255, 0)), torch.empty(0, dtype=torch.int64, device="meta")
    )
    held = [row, *model.parameters(), *states.of_layer(0).values()]
    try:
        mixer, mlp = (layer.mixer for layer in model.model.layers)
        peaks = []
        for module, name in ((mixer, "hidden_states"), (mlp, "x")):
            watch = StorageWatch(held)
            with watching(watch):
                module(**{name: row})
            peaks.append(watch.peak_bytes)
    finally:
        mixers.undo()
    assert peaks[0] < 0.75 * peaks[1]


@pytest.mark.parametrize("kind", sorted(FAMILIES))
@torch.no_grad()
def test_a_whole_model_takes_the_packed_cache(kind: str) -> None:
    model, prompt = tiny(kind), 37
    tokens = torch.randint(3, 128, (1, prompt))
    expected = model(input_ids=tokens).logits
    states = RecurrentStates(discover_states(model), SLOTS, "cpu")
    mixers = PackedMixers(model, states, piece_tokens=8)
    mixers.layout = PackedLayout(0, (ChunkPlace(0, prompt, 1, 0),), torch.empty(0, dtype=torch.int64))
    try:
        positions = torch.arange(prompt)[None]
        packed = model(input_ids=tokens, position_ids=positions, past_key_values=PackedCache(), use_cache=True).logits
    finally:
        mixers.undo()
    torch.testing.assert_close(packed, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_padding_rows_touch_nothing_but_the_scratch_slot() -> None:
    model = tiny("granitemoehybrid")
    states = RecurrentStates(discover_states(model), SLOTS, "cpu")
    mixers, row = PackedMixers(model, states), torch.randn(1, 4, 32)
    mixer = recurrent_mixers(model)[0]
    mixers.layout = PackedLayout(4, (), torch.tensor([1, states.scratch_slot, states.scratch_slot, 0]))
    try:
        mixer(hidden_states=row)
    finally:
        mixers.undo()
    touched = {kind: rows.flatten(1).any(dim=1).tolist() for kind, rows in states.of_layer(0).items()}
    assert touched == {"conv": [True, True, False, True], "recurrent": [True, True, False, True]}


def test_states_of_a_tiny_model() -> None:
    assert discover_states(tiny("nemotron_h")) == (
        StateShape(0, "conv", (128, 4), torch.float32),
        StateShape(0, "recurrent", (8, 8, 16), torch.float32),
    )
    assert discover_states(tiny("llama")) == ()


def test_states_without_weights() -> None:
    """A model on the meta device is enough, so a plan can be made before anything is loaded."""
    model = build_meta({**BASE, **FAMILIES["qwen3_next"], "model_type": "qwen3_next"})
    states = RecurrentStates(discover_states(model), slots=9, device="meta")
    bytes_per_layer = 64 * 4 * 2 + 4 * 8 * 8 * 4  # conv in bfloat16, recurrence in float32
    assert (states.bytes_per_slot, states.held_bytes) == (2 * bytes_per_layer, 20 * bytes_per_layer)


def test_clear_and_copy() -> None:
    shapes = (StateShape(0, "conv", (2, 3), torch.float32), StateShape(2, "recurrent", (4,), torch.float32))
    states = RecurrentStates(shapes, SLOTS, "cpu")
    for layer, kind in ((0, "conv"), (2, "recurrent")):
        rows = states.of_layer(layer)[kind]
        rows += torch.arange(1, SLOTS + 2).view(-1, *[1] * (rows.dim() - 1))
    states.clear([])
    states.copy(source_slot=2, target_slot=0)
    states.clear([1, 2])
    assert states.of_layer(0)["conv"][:, 0, 0].tolist() == [3, 0, 0, 4]
    assert states.of_layer(2)["recurrent"][:, 0].tolist() == [3, 0, 0, 4]


def test_undo_gives_the_model_back_and_frees_the_states() -> None:
    model = tiny("granitemoehybrid")
    before = [(dict(vars(mixer)), mixer.forward) for mixer in recurrent_mixers(model)]
    states = RecurrentStates(discover_states(model), SLOTS, "cpu")
    mixers, gone = PackedMixers(model, states), weakref.ref(states)
    assert [mixer.forward for mixer in recurrent_mixers(model)] != [forward for _, forward in before]
    mixers.undo()
    del mixers, states
    assert gone() is None
    assert [(dict(vars(mixer)), mixer.forward) for mixer in recurrent_mixers(model)] == before


def test_the_scans_of_two_engines_go_with_the_last() -> None:
    """Whether an engine is undone or dropped."""
    from transformers.models.nemotron_h import modeling_nemotron_h

    original = modeling_nemotron_h.mamba2_chunk_scan
    config = {**BASE, **FAMILIES["nemotron_h"], "model_type": "nemotron_h"}
    models = [build_meta(config), build_meta(config)]
    engines = [PackedMixers(model, RecurrentStates(discover_states(model), 1, "meta")) for model in models]
    assert modeling_nemotron_h.mamba2_chunk_scan is not original
    engines.pop(0).undo()
    assert modeling_nemotron_h.mamba2_chunk_scan is not original
    del engines, models
    gc.collect()
    assert modeling_nemotron_h.mamba2_chunk_scan is original


@pytest.mark.parametrize("kind", ["nemotron_h", "qwen3_next"])
def test_references_that_are_not_used_give_no_warning(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import hub_kernels

    said: list[str] = []
    monkeypatch.setattr(hub_kernels.logger, "warning_once", lambda message, *args: said.append(message))
    model = tiny(kind)
    mixers = PackedMixers(model, RecurrentStates(discover_states(model), SLOTS, "cpu"))
    mixers.layout = PackedLayout(1, (ChunkPlace(1, 5, 1, 0),), torch.tensor([0]))
    try:
        recurrent_mixers(model)[0](hidden_states=torch.randn(1, 6, 32))
    finally:
        mixers.undo()
    assert {message.split("`")[1] for message in said} == {"causal_conv1d_fn", "causal_conv1d_update"}


def test_a_dropped_model_takes_its_wrapper_along() -> None:
    model = build_meta({**BASE, **FAMILIES["lfm2"], "model_type": "lfm2"})
    mixer = weakref.ref(recurrent_mixers(model)[0])
    mixers = PackedMixers(model, RecurrentStates(discover_states(model), 1, "meta"))
    assert len(mixers) == 2
    del model
    assert mixer() is None
    mixers.undo()


def test_states_kept_outside_a_mixer_are_refused() -> None:
    class Gate(torch.nn.Module):
        layer_idx = 0

        def forward(self, values: Any, past_key_values: Any) -> Any:
            return past_key_values.update_conv_state(values, self.layer_idx)

    with pytest.raises(UnsupportedModel, match="Gate keeps a state outside a plain mixer"):
        recurrent_mixers(torch.nn.Sequential(Gate()))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", sorted(FAMILIES))
@torch.no_grad()
def test_decodes_replay_in_a_graph(kind: str) -> None:
    model = tiny(kind).cuda()
    try:
        plain, captured = (RecurrentStates(discover_states(model), SLOTS, "cuda") for _ in range(2))
        mixer, row = recurrent_mixers(model)[0], torch.zeros(1, SLOTS, 32, device="cuda")
        slots = torch.zeros(SLOTS, dtype=torch.int64, device="cuda")
        mixers = PackedMixers(model, captured, piece_rows=2)
        mixers.layout = PackedLayout(SLOTS, (), slots)
        try:
            mixer(hidden_states=row)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = mixer(hidden_states=row)
            captured.clear(range(SLOTS + 1))
            for order in ([2, 0, 1], [1, 2, 0], [0, 1, 2]):
                row.normal_()
                slots.copy_(torch.tensor(order))
                graph.replay()
                mixers.states = plain
                expected = mixer(hidden_states=row)
                mixers.states = captured
                torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
        finally:
            mixers.undo()
    finally:
        model.cpu()
