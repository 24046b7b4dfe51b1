"""What a trace says of a call of a tower, beside what the call takes: each with the attention that it runs with."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.media.audio.families import audio_family_of  # noqa: E402
from brim.engine.media.limits import limits_of, worst_part  # noqa: E402
from brim.engine.media.parts import MediaPart  # noqa: E402
from brim.engine.media.towers import tower_features  # noqa: E402
from brim.engine.weights.load import load  # noqa: E402
from brim.predictions import traced_audio_tower, traced_tower  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from tests.integration.test_engine_audio import CONFIGS  # noqa: E402

# Towers as wide as Gemma 4's smallest, with two layers each: the audio tower has eager attention only.
WIDE = {
    "audio_config": {"num_hidden_layers": 2, "hidden_size": 256},
    "vision_config": {
        "head_dim": 64,
        "hidden_size": 256,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 4,
        "patch_size": 16,
    },
}


def peak_bytes(model: object, part: MediaPart) -> int:
    probe = CpuProbe(1 << 40)
    before = probe.reading().allocated_bytes
    probe.reset_peak()
    with torch.inference_mode(), probe:
        tower_features(model, part.inputs, part.tokens, torch.device("cpu"))
    return probe.reading().peak_allocated_bytes - before


def test_towers_of_one_model_with_attentions_of_their_own() -> None:
    config = {"model_type": "gemma4", **CONFIGS["gemma4"], **WIDE}
    loaded = load(config, load_format="dummy", dtype="fp32", attention=None)
    limits = limits_of(loaded.full_config, None, None, 4096)
    image, family = worst_part(loaded.full_config, limits, 4095), audio_family_of(loaded.full_config)
    assert image is not None
    assert family is not None
    audio = family.blank(1000)
    predicted = (
        traced_tower(loaded.full_config, limits, image, dtype="fp32", on_device=False),
        traced_audio_tower(loaded.full_config, audio, dtype="fp32", on_device=False),
    )
    for traced, part in zip(predicted, (image, audio), strict=True):
        assert traced == pytest.approx(peak_bytes(loaded.model, part), rel=0.12), part.kind
