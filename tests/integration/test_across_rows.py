"""Model classes whose code depends on the whole packed row: rotary embeddings by the longest request, own masks.

An engine chooses the rotary embeddings once, so that requests do not change each other. What cannot be corrected is
refused.
"""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings
from brim.engine.weights.load import LoadedModel, load
from brim.engine.weights.rotary import SettledRotary
from brim.errors import UnsupportedModel
from tests.integration.meta_models import known_types
from tests.integration.test_engine import _spread, prompts_of
from tests.integration.tiny_models import BASE, MOE, tiny_config

ORIGINAL = 64  # tokens of the longest text that the short factors are for
SHORT, LONG = [1.0 + 0.05 * number for number in range(8)], [2.0 + 0.5 * number for number in range(8)]
PROMPT, LONG_PROMPT = prompts_of([20, 120], seed=8)
PHI3 = {"original_max_position_embeddings": ORIGINAL, "tie_word_embeddings": False, "sliding_window": None}


def factors(short: list[float], long: list[float], **others: Any) -> dict[str, Any]:
    parameters = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": short, "long_factor": long}
    return {"rope_parameters": {**parameters, "original_max_position_embeddings": ORIGINAL, **others}}


def phi3(short: list[float] = SHORT, long: list[float] = LONG) -> LoadedModel:
    return spread(tiny_config("phi3", **PHI3, **factors(short, long)))


def phimoe(short: list[float] = SHORT, long: list[float] = LONG) -> LoadedModel:
    scales = {"short_mscale": 1.1, "long_mscale": 1.3}
    changes = {"model_type": "phimoe", "tie_word_embeddings": False}
    return spread({**BASE, **MOE, **changes, **PHI3, **factors(short, long, **scales)})


def spread(config: dict[str, Any]) -> LoadedModel:
    loaded = load(config, load_format="dummy", dtype="fp32", attention="eager")
    _spread(loaded.model)
    return loaded


def engine_of(loaded: LoadedModel, max_length: int) -> Engine:
    settings = EngineSettings(
        max_batch=4, max_batch_tokens=256, max_length=max_length, block_size=8, reuse_prefixes=False
    )
    return Engine(loaded, kv_tokens=512, settings=settings, device="cpu")


def answered(engine: Engine, prompts: list[list[int]]) -> tuple[tuple[int, ...], torch.Tensor]:
    """(tokens of the first prompt's answer, its keys in the last layer), all prompts beside each other in one step."""
    params = SamplingParams(max_tokens=8, temperature=0.0, ignore_eos=True, prompt_logprobs=0)
    names = [engine.submit(prompt, params) for prompt in prompts]
    engine.step()
    sequence = next(one for one in engine.loop.scheduler.running if one.request.id == names[0])
    keys = engine.model.runner.memory.kv.layers[-1].keys.unflatten(0, (-1, 8))[sequence.blocks.tables[0]].flatten(0, 1)
    kept = keys[: len(prompts[0])].clone()
    tokens: list[int] = []
    while not engine.idle:
        tokens += [one.token for one in engine.step() if one.request_id == names[0] and one.token is not None]
    return tuple(tokens), kept


@pytest.mark.parametrize("model", [phi3, phimoe])
@pytest.mark.parametrize("max_length", [ORIGINAL, 512])
def test_a_request_computes_the_same_beside_a_longer_one(model: Any, max_length: int) -> None:
    beside = LONG_PROMPT[: min(max_length - 10, 120)]
    with engine_of(model(), max_length) as engine:
        tokens, keys = answered(engine, [PROMPT])
        with_longer, keys_with_longer = answered(engine, [PROMPT, beside])
    assert with_longer == tokens
    torch.testing.assert_close(keys_with_longer, keys, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("max_length", "chosen"), [(ORIGINAL, SHORT), (ORIGINAL + 1, LONG), (512, LONG)])
def test_the_longest_request_chooses_the_factors(max_length: int, chosen: list[float]) -> None:
    """The reference has these factors for every length."""
    reference = phi3(chosen, chosen).model
    ids = torch.tensor([PROMPT])
    wanted = reference.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False)
    loaded = phi3()
    with engine_of(loaded, max_length) as engine:
        assert list(answered(engine, [PROMPT])[0]) == wanted[0, len(PROMPT) :].tolist()
    with torch.no_grad():  # and nothing of it stays behind: the class chooses by the text again
        short, long = (torch.tensor([prompt]) for prompt in (PROMPT, LONG_PROMPT))
        loaded.model.set_attn_implementation("eager")
        torch.testing.assert_close(loaded.model(short).logits, phi3(SHORT, SHORT).model(short).logits)
        torch.testing.assert_close(loaded.model(long).logits, phi3(LONG, LONG).model(long).logits)


def test_an_engine_of_another_length_chooses_again() -> None:
    """Engines may share a model, one after the other; assembling the second must not choose for the first."""
    loaded = phi3()
    with engine_of(loaded, ORIGINAL) as short, engine_of(phi3(), 512) as long:
        wanted = answered(short, [PROMPT])[0], answered(long, [PROMPT])[0]
    assert wanted[0] != wanted[1]
    settings = [EngineSettings(max_batch=2, max_length=length, block_size=8) for length in (ORIGINAL, 512)]
    engines = [Engine(loaded, kv_tokens=0, settings=each, device="cpu") for each in settings]
    for engine, tokens in zip(engines, wanted, strict=True):
        engine.build(256)
        assert answered(engine, [PROMPT])[0] == tokens
        engine.close()


@pytest.mark.parametrize("scale", ["short_mscale", "long_mscale"])
def test_a_class_that_scales_by_length_itself_says_the_same(scale: str) -> None:
    model = phimoe().model.model
    settled = SettledRotary(model, {"short_mscale": ORIGINAL, "long_mscale": 512}[scale])
    x, positions = torch.zeros(1, 1, 1), torch.arange(3)[None]
    cosine, _ = model.rotary_emb(x, positions)
    assert cosine[0, 0].tolist() == pytest.approx([{"short_mscale": 1.1, "long_mscale": 1.3}[scale]] * 16)
    settled.undo()
    assert "forward" not in vars(model.rotary_emb)
    assert model.rotary_emb(x, positions)[0][0, 0].tolist() == pytest.approx([1.1] * 16)


DYNAMIC = {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}}


FOLLOWING = [tiny_config("phi3", **PHI3, **factors(SHORT, LONG)), tiny_config("llama", **DYNAMIC)]


@pytest.mark.parametrize("config", FOLLOWING)
def test_no_position_is_read_back(config: dict[str, Any]) -> None:
    """The meta device has no values, and a CUDA graph cannot contain a synchronisation."""
    from brim.trace.build import build_model

    model, _ = build_model(config, "fp32", "eager")
    backbone = model.base_model
    before = copy.deepcopy(backbone.rotary_emb)
    settled = SettledRotary(backbone, 512)
    assert len(settled) == 1
    cosine, sine = backbone.rotary_emb(torch.zeros(1, device="meta"), torch.zeros(1, 5, device="meta"))
    assert (cosine.shape, sine.shape) == ((1, 5, 16), (1, 5, 16))
    settled.undo()
    assert vars(backbone.rotary_emb).keys() == vars(before).keys()
    assert backbone.rotary_emb.rope_type == before.rope_type


def test_dynamic_frequencies_do_not_grow_with_what_was_seen() -> None:
    loaded = spread(tiny_config("llama", tie_word_embeddings=False, **DYNAMIC))
    rotary = loaded.model.model.rotary_emb
    settled = SettledRotary(loaded.model, 2048)
    wanted = rotary.inv_freq.clone()
    rotary(torch.zeros(1), torch.tensor([[5000]]))
    rotary(torch.zeros(1), torch.tensor([[5]]))
    assert torch.equal(rotary.inv_freq, wanted)
    settled.undo()
    rotary(torch.zeros(1), torch.tensor([[2047]]))
    torch.testing.assert_close(rotary.inv_freq, wanted)


def llama4(**changes: Any) -> dict[str, Any]:
    """Without the chunks that Llama 4 is refused for: every layer attends to all, and none is rotated."""
    whole = {"layer_types": ["full_attention"] * 4, "no_rope_layers": [0] * 4, "floor_scale": 4}
    return tiny_config("llama4_text", **{**whole, **changes})


def test_queries_scaled_by_their_place_in_the_row_are_refused() -> None:
    with pytest.raises(UnsupportedModel, match="Llama4TextAttention scales queries by their place in a batch's row"):
        Engine(llama4(), load_format="dummy", device="cpu", kv_tokens=64)


REFUSED = {
    # With fresh weights Doge's bias is the same everywhere: its logits would not tell.
    "doge": "DogeAttention gives its attention an attention_mask of its own",
    "diffllama": "DiffLlamaAttention attends more than once in a forward",
    "hrm_text": "HrmTextAttention attends more than once in a forward",
    "gptj": "the attention of 'gptj' does not go through transformers' attention interface",
    "mamba": "'mamba' has no layer that attends",
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
def test_attention_of_another_kind_is_refused(kind: str) -> None:
    if kind not in known_types():
        pytest.skip(f"transformers has no {kind}")
    with pytest.raises(UnsupportedModel, match=REFUSED[kind]):
        Engine({**BASE, "model_type": kind}, load_format="dummy", device="cpu", kv_tokens=64)


OTHERWISE = {
    "phimoe": {**MOE, "sliding_window": 16},  # the mask alone says it, once for all layers
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 32},  # its head calls the decoder inside the model
}


@pytest.mark.parametrize("kind", sorted(OTHERWISE))
def test_classes_that_say_it_otherwise_give_the_tokens_of_generate(kind: str) -> None:
    loaded = spread({**BASE, **OTHERWISE[kind], "model_type": kind, "tie_word_embeddings": False})
    ids = torch.tensor([LONG_PROMPT[:40]])
    wanted = loaded.model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, min_new_tokens=8)
    with engine_of(loaded, 128) as engine:
        assert list(answered(engine, [LONG_PROMPT[:40]])[0]) == wanted[0, 40:].tolist()
