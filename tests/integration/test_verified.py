"""Every family on the verified list gives the tokens of `generate`, and what is not on it is checked when it loads."""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from brim.engine import verify as verifying
from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.settings import EngineSettings
from brim.engine.verify import LogitAgreement, agreement, verify
from brim.engine.weights import verified
from brim.engine.weights.load import LoadedModel, load
from brim.engine.weights.verified import VERIFIED, WITH_TOWERS, is_verified
from brim.errors import OutOfMemory, UnsupportedModel
from brim.probes.cpu import CpuProbe
from tests.integration.meta_models import known_types
from tests.integration.test_engine import FAMILIES, prompts_of
from tests.integration.test_engine_audio import CONFIGS as AUDIO_CONFIGS
from tests.integration.test_engine_vision import CONFIGS
from tests.integration.tiny_models import MOE, tiny_config

CPU = torch.device("cpu")


def loaded_model(config: dict[str, Any], dtype: str = "fp32") -> LoadedModel:
    """A model whose tokens depend on all that came before, and on every weight."""
    if config["model_type"] not in known_types():
        pytest.skip(f"transformers has no {config['model_type']}")
    loaded = load(config, load_format="dummy", dtype=dtype, attention="eager")
    numbers = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for name, weight in loaded.model.named_parameters():
            if weight.dim() < 2:  # norms, biases, decays: none may stay as neutral as it begins
                weight += 0.1 * torch.randn(weight.shape, generator=numbers)
            else:
                spread = 1 if "embed" in name or "wte" in name else 2 / math.sqrt(weight.shape[-1])
                weight.normal_(0, spread, generator=numbers)
    for module in loaded.model.modules():  # transformers clamps time steps in prompts and not in single tokens
        if hasattr(module, "time_step_limit"):
            module.time_step_limit = (0.0, float("inf"))
    return loaded


def generated(model: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    with torch.no_grad():
        answer = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return answer[0, len(prompt) :].tolist()  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", sorted(VERIFIED))
def test_a_verified_family_gives_the_tokens_of_generate(kind: str) -> None:
    loaded = loaded_model(tiny_config(kind, tie_word_embeddings=False))
    found = agreement(loaded, EngineSettings(), CPU)
    assert found.holds
    assert found.error < 1e-4
    if kind in FAMILIES:
        return  # its tokens are compared at length in `test_engine.py`
    prompts = prompts_of([41, 18])
    settings = EngineSettings(max_batch=2, max_batch_tokens=13, block_size=8)
    with Engine(loaded, kv_tokens=256, settings=settings, device="cpu") as engine:
        params = SamplingParams(max_tokens=5, temperature=0.0, ignore_eos=True)
        got = [list(one.tokens) for one in engine.generate(prompts, params)]
    loaded.model.set_attn_implementation("eager")
    assert got == [generated(loaded.model, prompt, 5) for prompt in prompts]
    assert len({token for answer in got for token in answer}) >= 4, "answers that repeat themselves prove little"


@pytest.mark.soak
@pytest.mark.parametrize("kind", sorted(VERIFIED))
def test_rounding_is_no_reason_to_refuse_a_family(kind: str) -> None:
    """These are not checked when they load; a class like them must not be refused for as much."""
    assert agreement(loaded_model(tiny_config(kind, tie_word_embeddings=False), "bf16"), EngineSettings(), CPU).holds


TOWERS: dict[str, dict[str, Any]] = {
    **{kind: AUDIO_CONFIGS[kind] for kind in AUDIO_CONFIGS if kind in WITH_TOWERS},
    **{kind: CONFIGS[kind] for kind in CONFIGS if kind in WITH_TOWERS},
    "qwen3_vl_moe": {
        "text_config": {**CONFIGS["qwen3_vl"]["text_config"], **MOE},
        "vision_config": CONFIGS["qwen3_vl"]["vision_config"],
    },
    "qwen3_5_moe": {
        "text_config": {**CONFIGS["qwen3_5"]["text_config"], **MOE, "shared_expert_intermediate_size": 32},
        "vision_config": CONFIGS["qwen3_5"]["vision_config"],
    },
}


@pytest.mark.parametrize("kind", sorted(WITH_TOWERS))
def test_the_text_of_a_verified_family_with_towers_agrees(kind: str) -> None:
    """Images are compared at length in `test_engine_vision.py`, audio in `test_engine_audio.py`."""
    loaded = loaded_model({"model_type": kind, "image_token_id": 127, **TOWERS[kind]})
    assert is_verified(loaded.full_config, loaded.config)
    assert agreement(loaded, EngineSettings(), CPU).error < 1e-4


def test_the_docs_name_every_verified_family() -> None:
    page = (Path(__file__).parents[2] / "docs" / "generate.md").read_text()
    blocks = [part.split("```")[0] for part in page.split("```text\n")[1:]]
    assert [set(block.replace("\n", " ").strip().split(", ")) for block in blocks] == [VERIFIED, WITH_TOWERS]


# -- what is not on the list ---------------------------------------------------------------------------------------


@pytest.fixture
def nothing_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verified, "VERIFIED", frozenset())


def engine_of(loaded: LoadedModel | dict[str, Any], **others: Any) -> Engine:
    return Engine(loaded, load_format="dummy", kv_tokens=0, device="cpu", **others)


REFUSED = {
    "diffllama": "DiffLlamaAttention attends more than once in a forward",
    "minimax": r"MiniMaxForCausalLM \('minimax'\) gives other logits in Brim's engine than by itself",
    "mpt": r"MptForCausalLM \('mpt'\) does not run in Brim's engine \(AttributeError",
    "recurrent_gemma": r"RecurrentGemmaForCausalLM \('recurrent_gemma'\) returns no cache",
}


@pytest.mark.parametrize("kind", sorted(REFUSED))
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_class_that_the_engine_does_not_run_is_refused_by_name(kind: str, dtype: str) -> None:
    if kind not in known_types():
        pytest.skip(f"transformers has no {kind}")
    with pytest.raises(UnsupportedModel, match=REFUSED[kind]):
        engine_of(tiny_config(kind), dtype=dtype)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "deepseek_v3", "qwen3_next", "gpt_oss"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.usefixtures("nothing_verified")
def test_a_class_that_agrees_is_taken_and_left_as_it_was(kind: str, dtype: str) -> None:
    loaded = loaded_model(tiny_config(kind, tie_word_embeddings=False), dtype)
    before = {name: set(vars(module)) for name, module in loaded.model.named_modules()}
    weights = {name: weight.clone() for name, weight in loaded.model.state_dict().items()}
    verify(loaded, EngineSettings(), CPU)
    assert {name: set(vars(module)) for name, module in loaded.model.named_modules()} == before
    assert loaded.config._attn_implementation == "eager"
    assert all(torch.equal(weights[name], weight) for name, weight in loaded.model.state_dict().items())


@pytest.mark.usefixtures("nothing_verified")
def test_nothing_of_a_check_stays_in_memory() -> None:
    loaded = loaded_model(tiny_config("qwen3_next"))
    probe = CpuProbe(2**30)
    with probe:
        verify(loaded, EngineSettings(), CPU)
    gc.collect()
    assert probe.reading().allocated_bytes == 0


@pytest.mark.usefixtures("nothing_verified")
def test_out_of_memory_is_not_the_class_s_fault() -> None:
    loaded = loaded_model(tiny_config("llama"))
    with CpuProbe(2**12), pytest.raises(OutOfMemory):
        verify(loaded, EngineSettings(), CPU)


def test_positions_along_the_row_are_noticed(monkeypatch: pytest.MonkeyPatch, nothing_verified: None) -> None:
    """A class that counts positions from the start of a row is right alone, and wrong beside others."""
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    own = LlamaRotaryEmbedding.forward

    def counting(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        along = torch.arange(position_ids.shape[-1], device=x.device)[None] + position_ids[:, :1]
        return own(self, x, along)

    monkeypatch.setattr(LlamaRotaryEmbedding, "forward", counting)
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM .* gives other logits"):
        verify(loaded_model(tiny_config("llama")), EngineSettings(), CPU)


def test_a_look_at_the_token_before_is_noticed(monkeypatch: pytest.MonkeyPatch, nothing_verified: None) -> None:
    """In a packed row the token before may be another request's."""
    from transformers.models.llama.modeling_llama import LlamaMLP

    own = LlamaMLP.forward
    monkeypatch.setattr(LlamaMLP, "forward", lambda self, x: own(self, x + 0.5 * torch.roll(x, 1, 1)))
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM .* gives other logits"):
        verify(loaded_model(tiny_config("llama")), EngineSettings(), CPU)


@pytest.mark.usefixtures("nothing_verified")
def test_weights_that_make_no_numbers_cannot_be_checked() -> None:
    loaded = loaded_model(tiny_config("llama"))
    with torch.no_grad():
        loaded.model.lm_head.weight[0, 0] = math.nan
    with pytest.raises(UnsupportedModel, match="makes no numbers with these weights"):
        verify(loaded, EngineSettings(), CPU)


@dataclass
class OneOfTwo:
    """As much of `Ranks` as the check asks for."""

    rank: int
    ended: list[str]

    @contextmanager
    def ends_alike(self, what: str) -> Iterator[None]:
        yield
        self.ended.append(what)


@pytest.mark.usefixtures("nothing_verified")
def test_of_several_ranks_the_first_checks_the_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = loaded_model(tiny_config("llama"))
    checked: list[int] = []
    monkeypatch.setattr(verifying, "agreement", lambda *_: checked.append(1) or LogitAgreement(0, 0, 1))
    for rank in (0, 1):
        ranks: Any = OneOfTwo(rank, [])
        verify(loaded, EngineSettings(), CPU, ranks)
        assert ranks.ended == ["the check of the model's class"]
    assert len(checked) == 1


def test_a_verified_family_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verifying, "agreement", lambda *_: pytest.fail("it was"))
    engine_of(tiny_config("llama")).close()
