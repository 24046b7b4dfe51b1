"""Sound sent by `openai` as a file: what the model says of it, whole and in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import openai
import pytest

from tests.clients.serving import KEY, serving
from tests.integration.test_engine_audio import qwen2_audio_folder
from tests.unit.engine.media.audio.test_files import RATE, wav

NAME = "tiny-audio"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """Of a tiny Qwen2-Audio, which hears a second at most."""
    folder = qwen2_audio_folder(tmp_path_factory.mktemp("audio"))
    options = f"{folder} --load-format dummy --served-model-name {NAME} --kv-tokens 2048"
    with serving(options, tmp_path_factory.mktemp("served")) as url:
        yield openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0)


def sound() -> BytesIO:
    tone = np.sin(2 * np.pi * 440 * np.arange(RATE // 2) / RATE)[:, None] / 2
    file = BytesIO(wav(tone, 16))
    file.name = "tone.wav"
    return file


def test_a_transcription(client: openai.OpenAI) -> None:
    asked: Any = {"model": NAME, "temperature": 0}
    whole = client.audio.transcriptions.create(**asked, file=sound())
    assert whole.text
    as_text: Any = client.audio.transcriptions.create(**asked, file=sound(), response_format="text")
    assert as_text.strip() == whole.text.strip()
    events = list(client.audio.transcriptions.create(**asked, file=sound(), stream=True))
    assert [event.type for event in events][-1] == "transcript.text.done"
    pieces = "".join(event.delta for event in events if event.type == "transcript.text.delta")
    assert pieces == whole.text


def test_what_is_no_sound_is_refused(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="file"):
        client.audio.transcriptions.create(model=NAME, file=("tone.wav", b"no sound at all"))
