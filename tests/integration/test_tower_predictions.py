"""What a trace says of a call of a tower, beside what the call takes: each with the attention that it runs with."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim.engine.media.audio.families import audio_family_of  # noqa: E402
from brim.engine.media.limits import limits_of, worst_part  # noqa: E402
from brim.engine.media.parts import MediaKind, MediaPart  # noqa: E402
from brim.engine.media.towers import tower_features  # noqa: E402
from brim.engine.weights.load import load  # noqa: E402
from brim.predictions import traced_tower  # noqa: E402
from brim.probes.cpu import CpuProbe  # noqa: E402
from brim.units import round_up  # noqa: E402
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


def traced(config: Any, part: MediaPart, dtype: str, *, on_device: bool = False) -> int:
    return traced_tower(config, part.inputs, part.tokens, dtype=dtype, on_device=on_device)


def part_of(kind: MediaKind, config: Any) -> MediaPart:
    """The largest image, or an audio of ten seconds."""
    if kind is MediaKind.AUDIO:
        family = audio_family_of(config)
        assert family is not None
        return family.blank(1000)
    image = worst_part(config, limits_of(config, None, None, 512), 22 * 22)
    assert image is not None
    return image


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", [MediaKind.IMAGE, MediaKind.AUDIO])
@pytest.mark.parametrize(
    ("family", "wide"), [("gemma4", WIDE), ("qwen2_5_omni_thinker", {})], ids=["gemma4", "qwen2_5_omni"]
)
def test_a_trace_takes_what_the_call_takes(family: str, wide: dict[str, Any], kind: MediaKind, dtype: str) -> None:
    """Media come in fp32. Qwen2.5-Omni selects frames before it changes their type; Gemma 4's images need a mask."""
    config = {"model_type": family, **CONFIGS[family], **wide}
    loaded = load(config, load_format="dummy", dtype=dtype, attention=None)
    part = part_of(kind, loaded.full_config)
    host, device = (traced(loaded.full_config, part, dtype, on_device=on_device) for on_device in (False, True))
    assert host == pytest.approx(peak_bytes(loaded.model, part), rel=0.01)
    assert 0 < device - host <= sum(round_up(tensor.nbytes, 512) for tensor in part.inputs.values())


def test_strips_are_traced_in_another_shape() -> None:
    """251 tokens are a prime number, and in one row only; 252 are 14 rows."""
    described = {"model_type": "qwen2_5_omni_thinker", **CONFIGS["qwen2_5_omni_thinker"]}
    config = load(described, load_format="dummy", dtype="fp32", attention=None).full_config
    limits = limits_of(config, None, None, 512)
    strip, other = worst_part(config, limits, 251), worst_part(config, limits, 252)
    assert strip is not None
    assert other is not None
    assert strip.inputs["image_grid_thw"].tolist() == [[1, 2, 502]]
    assert traced(config, strip, "fp32") == traced(config, other, "fp32")
