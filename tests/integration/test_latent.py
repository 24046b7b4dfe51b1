"""Models with latent attention: the pool holds the latent and nothing else, and the tokens are those of `generate`."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from functools import cache, partial
from typing import Any

import pytest
import torch

from brim.engine.attention.latent import KeptLatents, latent_modules
from brim.engine.engine import Engine
from brim.engine.requests.params import SamplingParams
from brim.engine.run import compiling
from brim.engine.settings import EngineSettings
from brim.engine.weights.load import LoadedModel, load
from brim.model.config import read_config
from brim.model.kv import kv_footprint
from brim.planning.engines import ENGINES
from brim.records.model import Dtype
from tests.integration.meta_models import known_types
from tests.integration.parallel_ranks import Case, answer
from tests.integration.test_engine_parallel import ranks
from tests.integration.tiny_models import MLA, VOCAB, tiny_config

LATENT = MLA["kv_lora_rank"] + MLA["qk_rope_head_dim"]
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LONGCAT = {
    "num_layers": 2,  # of two attention modules each
    "ffn_hidden_size": 96,
    "expert_ffn_hidden_size": 32,
    "moe_topk": 2,
    "zero_expert_num": 1,
}
PLANNED: dict[str, tuple[str, dict[str, Any]]] = {
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v2, queries from one projection": ("deepseek_v2", {"q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", {}),
    "deepseek_v3, queries from one projection": ("deepseek_v3", {"q_lora_rank": None}),
    "deepseek_v3, yarn": ("deepseek_v3", {"rope_scaling": YARN}),
    "deepseek_v3, rotation by halves": ("deepseek_v3", {"rope_interleave": False}),
    "minicpm3": ("minicpm3", {}),
    "kimi_linear": ("kimi_linear", {}),
}
FAMILIES = {
    **PLANNED,
    "glm4_moe_lite": ("deepseek_v3", {"model_type": "glm4_moe_lite"}),
    "youtu": ("deepseek_v3", {"model_type": "youtu"}),
    "axk1": ("deepseek_v3", {"model_type": "axk1"}),
    "mistral4": (
        "deepseek_v3",
        {
            "model_type": "mistral4",  # scales queries by their position
            "rope_parameters": {**YARN, "original_max_position_embeddings": 16, "llama_4_scaling_beta": 0.1},
        },
    ),
    "longcat_flash": ("deepseek_v3", {"model_type": "longcat_flash", **LONGCAT}),  # scales latents
    "bailing_hybrid": ("kimi_linear", {"model_type": "bailing_hybrid"}),  # gates what attention says
}


def config_of(name: str) -> dict[str, Any]:
    kind, changes = FAMILIES[name]
    config = tiny_config(kind, tie_word_embeddings=False, **changes)
    if config["model_type"] not in known_types():
        pytest.skip(f"transformers has no {config['model_type']}")
    return config


@cache
def loaded_model(name: str) -> LoadedModel:
    loaded = load(config_of(name), load_format="dummy", dtype="fp32", attention="eager")
    numbers = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, weight in loaded.model.named_parameters():  # attention looks far back, and tokens depend on it
            if weight.dim() > 1:
                weight.normal_(0, 1 if "embed" in key else 2 / math.sqrt(weight.shape[-1]), generator=numbers)
    return loaded


def engine_of(loaded: LoadedModel, kv_tokens: int = 512, **settings: Any) -> Engine:
    chosen = {"max_batch": 3, "max_batch_tokens": 13, "block_size": 8, **settings}
    return Engine(loaded, kv_tokens=kv_tokens, settings=EngineSettings(**chosen), device="cpu")


def prompts_of(*lengths: int) -> list[list[int]]:
    numbers = random.Random(0)
    return [[numbers.randrange(3, VOCAB) for _ in range(length)] for length in lengths]


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, ignore_eos=True)


def generated(model: Any, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """What `generate` of a copy says, which no engine has touched."""
    model = copy.deepcopy(model)
    model.set_attn_implementation("eager")
    answers = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        output = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            min_new_tokens=count,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
        answers.append(output[0, len(prompt) :].tolist())
    return answers


def said(engine: Engine, prompts: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    return [list(one.tokens) for one in engine.generate(prompts, greedy(count))]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_those_of_generate_from_latents_alone(name: str) -> None:
    """Prompts are computed in chunks of at most 13 tokens, beside requests that generate."""
    loaded = loaded_model(name)
    prompts = prompts_of(3, 45, 17, 30)
    wanted = generated(loaded.model, prompts, 10)
    with engine_of(loaded) as engine:
        attention = list(latent_modules_in_use(loaded.model))
        assert attention
        assert engine.kv_bytes(512) == (512 + 8) * len(attention) * LATENT * 4  # one block is scratch
        assert said(engine, prompts, 10) == wanted
    assert sum(len(set(answer)) for answer in wanted) >= 4 * len(wanted), "answers that repeat themselves prove little"


def latent_modules_in_use(model: torch.nn.Module) -> Iterator[torch.nn.Module]:
    return (module for module in model.modules() if "expand_kv" in vars(module))


@pytest.mark.parametrize("name", PLANNED)
def test_a_token_takes_what_the_plan_says(name: str) -> None:
    storage = ENGINES["brim"].storage(13)
    planned = kv_footprint(read_config(config_of(name), name=name), Dtype.FP32, storage=storage).bytes_per_token
    with engine_of(loaded_model(name)) as engine:
        assert engine.kv_bytes(1024) - engine.kv_bytes(1016) == 8 * planned


def test_yarn_is_in_the_scale() -> None:
    """Without it the test of greedy tokens would say less than it seems to."""
    module: Any = next(latent_modules(loaded_model("deepseek_v3, yarn").model))
    assert module.scaling > 1.1 * module.qk_head_dim**-0.5


def test_half_the_bytes_in_eight_bits() -> None:
    loaded = loaded_model("deepseek_v3")
    with engine_of(loaded, kv_dtype="bf16") as engine:
        wide = engine.kv_bytes(512)
        assert len(said(engine, prompts_of(20), 4)[0]) == 4
    with engine_of(loaded, kv_dtype="fp8") as engine:
        assert 2 * engine.kv_bytes(512) == wide
        assert len(said(engine, prompts_of(20), 4)[0]) == 4


def test_forks_copy_latents() -> None:
    """Several answers to a prompt share its blocks until they write."""
    prompt = prompts_of(21)[0]
    params = [
        SamplingParams(max_tokens=14, ignore_eos=True, seed=seed, n=n) for seed, n in ((5, 3), (5, 1), (6, 1), (7, 1))
    ]
    with engine_of(loaded_model("deepseek_v3"), reuse_prefixes=False) as engine:
        together = engine.generate([prompt], params[0])
        apart = engine.generate([prompt] * 3, params[1:])
        assert [one.tokens for one in together] == [one.tokens for one in apart]
        assert len({one.tokens for one in together}) == 3


def test_a_layer_with_a_bias_keeps_its_heads() -> None:
    """A bias cannot be taken to the queries: that layer stores what its class makes, beside layers that do not."""
    loaded = copy.deepcopy(loaded_model("deepseek_v3"))
    linear = loaded.model.model.layers[1].self_attn.kv_b_proj
    linear.bias = torch.nn.Parameter(torch.randn(linear.out_features), requires_grad=False)
    prompts = prompts_of(20, 6)
    wanted = generated(loaded.model, prompts, 8)
    heads, dims = 4, 2 * MLA["qk_nope_head_dim"] + MLA["qk_rope_head_dim"]  # values are as wide as that part of keys
    with engine_of(loaded) as engine:
        assert len(list(latent_modules_in_use(loaded.model))) == 3
        assert engine.kv_bytes(512) == (512 + 8) * (3 * LATENT + heads * dims) * 4
        assert said(engine, prompts, 8) == wanted


def test_the_class_is_restored_after_the_engine() -> None:
    loaded = loaded_model("deepseek_v2")
    before = {name: set(vars(module)) for name, module in loaded.model.named_modules()}
    engine = engine_of(loaded, kv_tokens=0)
    assert not list(latent_modules_in_use(loaded.model)), "nothing is built, and nothing is replaced"
    for _ in range(2):
        engine.build(128)
        assert len(list(latent_modules_in_use(loaded.model))) == 4
        engine.teardown()
        assert {name: set(vars(module)) for name, module in loaded.model.named_modules()} == before
    prompts = prompts_of(9)
    engine.build(128)
    assert said(engine, prompts, 6) == generated_after(engine, prompts)


def generated_after(engine: Engine, prompts: list[list[int]]) -> list[list[int]]:
    engine.close()
    return generated(engine.loaded.model, prompts, 6)


def test_what_is_already_replaced_is_not_touched() -> None:
    model = copy.deepcopy(loaded_model("deepseek_v3").model)
    other = lambda latent, rotated: (latent, rotated)  # noqa: E731 - it stands for another library's
    model.model.layers[0].self_attn.expand_kv = other
    latents = KeptLatents(model)
    assert len(latents) == 3
    assert len(KeptLatents(model)) == 0
    latents.undo()
    assert [vars(module)["expand_kv"] for module in latent_modules_in_use(model)] == [other]


def test_compiled_layers_give_the_same_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers are equal here, and share what is compiled; attention is one operator in it."""
    config = tiny_config("deepseek_v3", first_k_dense_replace=4, tie_word_embeddings=False)
    loaded = load(config, load_format="dummy", dtype="fp32", attention="eager")
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        from torch._dynamo.backends.debugging import aot_eager

        graphs.append(graph)
        return aot_eager(graph, inputs)

    compile_layers: Any = compiling.compile_layers  # says that a backend is a name; a function will do
    monkeypatch.setattr(compiling, "compile_layers", partial(compile_layers, backend=backend))
    prompts = prompts_of(3, 30)
    wanted = generated(loaded.model, prompts, 6)
    torch._dynamo.reset()
    with engine_of(loaded, compile=True) as engine:
        assert said(engine, prompts, 6) == wanted
    attending = [graph for graph in graphs if "brim.attend" in graph.code]
    assert 0 < len(attending) < 4, "one for rows of several tokens, one for a row of one"
    assert all(graph.code.count("brim.attend.default(") == 1 for graph in attending)
    assert all(graph.code.count("torch.bmm(") == 2 for graph in attending)  # to latents, and back


def test_ranks_keep_the_whole_latent_and_their_own_heads() -> None:
    case = Case("deepseek_v2")
    alone = answer(case, tensor_parallel=False)
    found = [report["answer_all"][case] for report in ranks(("answer_all", [case]))]
    assert [(one.tokens, one.kv_bytes) for one in found] == [(alone.tokens, alone.kv_bytes)] * 2
