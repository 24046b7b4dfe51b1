"""Parameters by dimensions against the `transformers` model built on the meta device."""

from __future__ import annotations

from typing import Any

import pytest

from brim.errors import BrimError
from brim.model.architectures import head_of
from brim.model.catalogue import entries
from brim.model.config import read_config
from tests.conftest import CONFIGS, read_json, shared_config_names
from tests.integration.meta_models import build_meta, known_types, parameter_count

pytest.importorskip("torch")
pytest.importorskip("transformers")

WITHIN = 1e-3

# transformers builds something else from these: a nested config it does not read, a flat one it does not read.
OTHERWISE = {
    "qwen3_asr": "the published nesting is not the class's",
    "step3p7": "the published file is flat, the class's is not",
    "dbrx": "the class does not read the published file",
    "falcon_h1": "the class does not read the published file, whose heads it counts by themselves",
}


def cases() -> dict[str, dict[str, Any]]:
    """One config for every family and size: the catalogue's, then those real ones that add a shape."""
    found = {name: entry.config for name, entry in entries().items()}
    for name in shared_config_names():
        config = read_json(CONFIGS / name / "config.json")
        if not name.startswith(("draft--", "z-lab--")) and "speculators_config" not in config:
            found[name] = config
    unique, seen = {}, set()
    for name, config in found.items():
        try:
            spec = read_config(config, name=name)
        except BrimError:  # those that cannot be read are another test's business
            continue
        shape = (spec.family, spec.parameters)
        if shape not in seen:
            seen.add(shape)
            unique[name] = config
    return unique


CASES = cases()

# Families without a real config at hand, by their class's defaults. Where those cannot be built, what must be said.
MORE: dict[str, dict[str, Any]] = {
    "qwen2_5_omni": {},
    "qwen2_5_omni_thinker": {},
    "qwen3_omni_moe_thinker": {"num_attention_heads": 32, "head_dim": 128, "vocab_size": 151936},
    "olmo": {},
    "olmoe": {},
    "phimoe": {},
    "granitemoe": {},
    "ernie4_5": {},
    "ernie4_5_moe": {},
    "cohere2": {},
    "exaone4": {},
    "smollm3": {},
    "seed_oss": {},
    "hunyuan_v1_dense": {"head_dim": 128},
    "kimi_linear": {},
    "minimax": {},
    "qwen2_moe": {},
    "gemma": {},
    "glm": {},
    "mistral3": {},
    "glm4v_moe": {"head_dim": 128},
    "internvl": {},
    "kimi_k25": {},
    "afmoe": {},
    "bloom": {},
    "codegen": {},
    "cohere": {},
    "falcon": {},
    "falcon_h1": {},
    "gpt2": {},
    "gpt_neox": {},
    "gptj": {},
    "llava": {},
    "llava_next": {},
    "mpt": {},
    "opt": {},
    "stablelm": {},
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_parameters_of_real_models(name: str) -> None:
    config = CASES[name]
    kind = read_config(config, name=name).family
    if head_of((config.get("architectures") or [""])[0]) is not None:
        pytest.skip("the class has no language head")
    if kind not in known_types():
        pytest.skip(f"transformers has no {kind}")
    if kind in OTHERWISE:
        pytest.skip(OTHERWISE[kind])
    expected = parameter_count(build_meta({**config, "model_type": kind}))
    assert read_config(config, name=name).parameters == pytest.approx(expected, rel=WITHIN)


@pytest.mark.parametrize("name", sorted(MORE))
def test_parameters_by_class_defaults(name: str) -> None:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    if name not in known_types():
        pytest.skip(f"transformers has no {name}")
    written = CONFIG_MAPPING[name]().to_dict()
    written.get("text_config", written).update(MORE[name])
    expected = parameter_count(build_meta({**written, "model_type": name}))
    assert read_config(written, name=name).parameters == pytest.approx(expected, rel=WITHIN)
