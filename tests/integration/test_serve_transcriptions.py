"""Transcriptions over HTTP: what the engine itself generates for the same prompt, in every form and from every file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("starlette")
pytest.importorskip("openai")

import openai

from brim import SamplingParams
from brim.engine.front.chat_template import conversation
from brim.serve.requests.transcription import TranscriptionForm, instruction
from brim.serve.settings import RequestLimits
from tests.chat_texts import chat_text
from tests.integration.served import Served, served
from tests.integration.test_engine_audio import DRAWN, engine_of, qwen2_audio_folder
from tests.unit.engine.media.audio.test_files import RATE, wav

if TYPE_CHECKING:
    import httpx

PATH = "/v1/audio/transcriptions"
OPTIONS = {"max_completion_tokens": str(DRAWN)}


def sound(seconds: float = 0.7) -> np.ndarray:
    return (np.sin(2 * np.pi * 440 * np.arange(int(seconds * RATE)) / RATE) / 2).astype(np.float32)


def encoded(form: str, seconds: float = 0.7) -> bytes:
    library = pytest.importorskip("soundfile")
    file = BytesIO()
    library.write(file, sound(seconds), RATE, format=form)
    return file.getvalue()


WAV = wav(sound()[:, None], 16)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2-Audio, which hears a second at most."""
    return qwen2_audio_folder(tmp_path_factory.mktemp("audio"))


@pytest.fixture(scope="module")
def generated(folder: Path) -> tuple[str, str]:
    """What the engine itself says of a tone: asked for a transcript, and with a language and a hint."""
    bodies = (TranscriptionForm(file="x"), TranscriptionForm(file="x", language="de", prompt="w4 w5"))
    params = SamplingParams(max_tokens=DRAWN, temperature=0)
    with engine_of("qwen2_audio", folder=folder, max_length=320) as engine:
        prompts = [
            chat_text(engine.tokenizer, conversation(instruction(one, "transcribe"), audios=1)) for one in bodies
        ]
        plain, hinted = engine.generate(prompts, params, audios=[[WAV], [WAV]])
    return plain.text, hinted.text


@pytest.fixture(scope="module")
def expected(generated: tuple[str, str]) -> str:
    return generated[0]


@pytest.fixture(scope="module")
def hearing(folder: Path, expected: str) -> Iterator[Served]:
    """A server, when the engine before it has given the model's weights back."""
    engine = engine_of("qwen2_audio", folder=folder, max_length=320)
    with served(engine, threads=True, limits=RequestLimits(body_bytes=400_000, audio_bytes=100_000)) as found:
        yield found
        assert found.is_empty()


def sent(hearing: Served, content: bytes = WAV, path: str = PATH, **fields: Any) -> httpx.Response:
    with hearing.client() as client:
        return client.post(path, files={"file": ("a.wav", content)}, data={**OPTIONS, **fields})


def test_a_transcript_is_what_the_engine_generates(hearing: Served, expected: str) -> None:
    found = sent(hearing, model="tiny")
    assert found.status_code == 200, found.text
    assert found.json() == {"text": expected, "usage": {"type": "duration", "seconds": 1}}
    (entry,) = hearing.logged(found)
    assert (entry["path"], entry["audios"], entry["status"]) == (PATH, 1, 200)


def test_the_document_has_the_form(hearing: Served) -> None:
    content = hearing.get("/openapi.json").json()["paths"][PATH]["post"]["requestBody"]["content"]
    assert content["multipart/form-data"]["schema"]["required"] == ["file"]


def test_other_forms(hearing: Served, expected: str) -> None:
    assert sent(hearing, response_format="text").text == expected + "\n"
    verbose = sent(hearing, response_format="verbose_json").json()
    assert (verbose["text"], verbose["duration"], verbose["task"]) == (expected, 0.7, "transcribe")
    refused = sent(hearing, response_format="srt")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "response_format")


def test_a_stream_has_the_same_text(hearing: Served, expected: str) -> None:
    lines = sent(hearing, stream="true").text.split("\n")
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    assert "".join(one["delta"] for one in events if one["type"] == "transcript.text.delta") == expected
    assert events[-1]["type"] == "transcript.text.done"
    assert events[-1]["text"] == expected


def test_the_official_client(hearing: Served, expected: str) -> None:
    with openai.OpenAI(base_url=f"{hearing.url}/v1", api_key="x", max_retries=0) as client:
        options: Any = {"model": "tiny", "file": ("a.wav", WAV), "extra_body": {"max_completion_tokens": DRAWN}}
        assert client.audio.transcriptions.create(**options).text == expected
        events = list(client.audio.transcriptions.create(stream=True, **options))
        assert events[-1].text == expected
        with pytest.warns(DeprecationWarning, match="deprecated"):  # the client calls its own `create` that
            assert client.audio.translations.create(**options).text


def test_a_language_and_a_hint_are_told_to_the_model(hearing: Served, generated: tuple[str, str]) -> None:
    assert sent(hearing, language="de", prompt="w4 w5").json()["text"] == generated[1]
    assert "into English" in instruction(TranscriptionForm(file="x"), "translate")


@pytest.mark.parametrize("form", ["FLAC", "OGG", "MP3"])
def test_other_files_than_wav(hearing: Served, expected: str, form: str) -> None:
    content = encoded(form)
    found = sent(hearing, content)
    assert found.status_code == 200, found.text
    if form == "FLAC":  # nothing is lost
        assert found.json()["text"] == expected
    long = sent(hearing, encoded(form, 1.5))
    assert (long.status_code, long.json()["error"]["param"]) == (400, "file")
    assert "lasts 1.5" in long.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "fields", "param", "said"),
    [
        (b"ID3 and so on", {}, "file", "the audio is no"),
        (b"", {}, "file", "it is empty"),
        (b"x" * 150_000, {}, "file", "97.7 KiB"),
        (WAV, {"temperature": "hot"}, "temperature", "not a number"),
        (WAV, {"temperature": "-1"}, "temperature", ""),
        (WAV, {"stream": "maybe"}, "stream", "true or false"),
        (WAV, {"langauge": "de"}, "langauge", "did you mean language"),
        (WAV, {"model": "other"}, "model", "there is no 'other'"),
    ],
)
def test_what_is_wrong_is_named(hearing: Served, content: bytes, fields: dict, param: str, said: str) -> None:
    refused = sent(hearing, content, **fields)
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (404 if param == "model" else 400, param), refused.text
    assert said in error["message"]


def test_a_form_that_is_none(hearing: Served) -> None:
    assert hearing.post(PATH, {"file": "x"}).status_code == 415
    with hearing.client() as client:
        missing = client.post(PATH, files={"other": ("a", b"x")}, data={"model": "tiny"})
        assert missing.json()["error"]["param"] == "file"
        head = {"content-type": "multipart/form-data; boundary=b"}
        for body in (b"", b"--b\r\n\r\nx", b"--b\r\nContent-Disposition: form-data\r\n\r\nx\r\n--b--"):
            damaged = client.post(PATH, content=body, headers=head)
            assert (damaged.status_code, damaged.json()["error"]["code"]) == (400, "invalid_form")
        large = client.post(PATH, content=b"x" * 500_000, headers=head)
        assert large.status_code == 413
