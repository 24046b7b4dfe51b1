"""The longest audio: no frame more than its limits, and no frame less."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")

from brim.engine.media.audio.families import AudioFamily, audio_family_of
from brim.engine.media.audio.limits import AudioLimits, longest_part

AUDIO = SimpleNamespace(num_mel_bins=8, max_source_positions=60, n_window=50, subsampling_conv_channels=[8, 4])
KINDS = ("qwen2_audio", "qwen2_5_omni_thinker", "qwen3_omni_moe_thinker", "gemma4")


def family_of(kind: str) -> AudioFamily:
    family = audio_family_of(SimpleNamespace(model_type=kind, audio_config=AUDIO))
    assert family is not None
    return family


def test_tokens_of_a_second_and_of_half_a_minute() -> None:
    found = {kind: [family_of(kind).tokens(frames) for frames in (100, 3000)] for kind in KINDS}
    assert found == {
        "qwen2_audio": [25, 750],
        "qwen2_5_omni_thinker": [25, 750],
        "qwen3_omni_moe_thinker": [13, 390],
        "gemma4": [25, 750],
    }


@given(st.sampled_from(KINDS), st.integers(0, 120), st.integers(0, 40))
def test_the_longest_is_within_both_limits_and_one_more_frame_is_not(kind: str, frames: int, tokens: int) -> None:
    family = family_of(kind)
    part = longest_part(family, AudioLimits(frames, "a test", 100.0), tokens)
    if part is None:
        assert not any(0 < family.tokens(fewer) <= tokens for fewer in range(1, frames + 1))
        return
    found = family.frames(part)
    assert found <= frames
    assert 0 < part.tokens == family.tokens(found) <= tokens
    assert found == frames or family.tokens(found + 1) > tokens


def test_models_without_audio() -> None:
    assert audio_family_of(SimpleNamespace(model_type="gemma4", audio_config=None)) is None
    assert audio_family_of(SimpleNamespace(model_type="llama")) is None
    assert audio_family_of(SimpleNamespace(model_type="something", audio_config=AUDIO)) is None
