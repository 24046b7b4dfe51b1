"""Audio over HTTP: heard as the engine hears it, or refused with the field and the reason."""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("starlette")

from brim import SamplingParams
from brim.engine.front.chat_template import conversation
from brim.serve.service import tokenizer_source
from brim.serve.settings import RequestLimits
from tests.chat_texts import chat_text
from tests.conftest import needs_image_files
from tests.integration.served import Served, served
from tests.integration.test_chat_remote import typed
from tests.integration.test_engine_audio import (
    BINS,
    BLOCK,
    CONFIGS,
    DRAWN,
    IMAGE,
    engine_of,
    qwen2_audio_folder,
    words_tokenizer,
)
from tests.unit.engine.media.audio.test_files import RATE, wav

OMNI = "qwen2_5_omni_thinker"
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
GREEDY = {"temperature": 0, "ignore_eos": True}


def tone(seconds: float = 0.7, pitch: float = 440) -> bytes:
    return wav(np.sin(2 * np.pi * pitch * np.arange(int(seconds * RATE)) / RATE)[:, None] / 2, 16)


def written(content: bytes) -> str:
    return base64.b64encode(content).decode()


def part(content: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": written(content), "format": "wav"}}


def as_uri(content: bytes) -> dict[str, Any]:
    return {"type": "audio_url", "audio_url": {"url": f"data:audio/x-wav;base64,{written(content)}"}}


def said(*parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    content = [*parts, {"type": "text", "text": "w4 w5"}]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": DRAWN, **GREEDY, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen2-Audio, which hears a second at most."""
    return qwen2_audio_folder(tmp_path_factory.mktemp("audio"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> str:
    """What the engine itself says of a tone, as text."""
    with engine_of("qwen2_audio", folder=folder) as engine:
        prompt = chat_text(engine.tokenizer, conversation("w4 w5", audios=1))
        params = SamplingParams(max_tokens=DRAWN, temperature=0, ignore_eos=True)
        (done,) = engine.generate([prompt], params, audios=[[tone()]])
    return done.text


@pytest.fixture(scope="module")
def hearing(folder: Path, expected: str) -> Iterator[Served]:
    """A server, when the engine before it has given the model's weights back."""
    engine = engine_of("qwen2_audio", folder=folder, max_length=160)
    with served(engine, threads=True, limits=RequestLimits(body_bytes=400_000, audios=8)) as found:
        yield found
        assert found.is_empty()


def text_of(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["message"]["content"])


def test_audio_is_heard_as_the_engine_hears_it(hearing: Served, expected: str) -> None:
    for one in (part(tone()), as_uri(tone())):
        found = hearing.post(CHAT, said(one))
        assert found.status_code == 200, found.text
        assert text_of(found.json()) == expected
    (entry,) = hearing.logged(found)
    assert (entry["images"], entry["audios"]) == (0, 1)
    other = hearing.post(CHAT, said(part(tone(pitch=3000)))).json()
    assert text_of(other) != expected, "another sound is another answer"
    items = [{"role": "user", "content": [part(tone()), {"type": "input_text", "text": "w4 w5"}]}]
    response = hearing.post(RESPONSES, {"input": items, "max_output_tokens": DRAWN, **GREEDY})
    assert response.json()["output"][0]["content"][0]["text"] == expected


def test_longer_audio_takes_more_tokens_and_too_long_a_one_is_refused(hearing: Served) -> None:
    short, long = (
        hearing.post(CHAT, said(part(tone(seconds)))).json()["usage"]["prompt_tokens"] for seconds in (0.4, 0.8)
    )
    assert long - short == 10
    tokens = hearing.post("/tokenize", {"messages": said(part(tone(0.8)))["messages"]}).json()
    assert len(tokens["tokens"]) == long
    refused = hearing.post(CHAT, said(part(tone(0.4)), part(tone(1.5))))
    error = refused.json()["error"]
    assert (refused.status_code, error["param"]) == (400, "messages[0].content[1].input_audio.data")
    assert "lasts 1.50 seconds, more than the 1 of the model's tower; send a shorter one" in error["message"]


def test_a_conversation_with_audio_rolls(hearing: Served) -> None:
    turns = said(part(tone(0.9)))["messages"]
    messages = [*turns, {"role": "assistant", "content": "w6"}] * 7 + turns
    body = {"messages": messages, "max_tokens": 4, **GREEDY}
    assert hearing.post(CHAT, body).json()["error"]["code"] == "context_length_exceeded"
    rolled = hearing.post(CHAT, body | {"truncation": "auto"}).json()
    assert rolled["brim"]["evicted_turns"] > 0
    assert rolled["usage"]["prompt_tokens"] < 160
    many = hearing.post(CHAT, said(*[part(tone())] * 9)).json()["error"]
    assert many["message"] == "messages: it has 9 audio files; at most 8 may be sent"


@pytest.mark.parametrize(
    ("sent", "param", "message"),
    [
        (part(tone()[:-9]), "input_audio.data", "cut off"),
        (part(b"ID3 and so on"), "input_audio.data", "is no"),
        (
            {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "aiff"}},
            "input_audio.format",
            "'aiff' is not supported; wav, mp3, flac, ogg are",
        ),
        ({"type": "audio_url", "audio_url": {"url": "https://example.org/a.wav"}}, "audio_url.url", "not fetched"),
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
            "image_url.url",
            "this model takes text and audio only; leave out the images",
        ),
    ],
)
def test_what_is_not_taken_is_refused_by_its_field(
    hearing: Served, sent: dict[str, Any], param: str, message: str
) -> None:
    found = hearing.post(CHAT, said(sent))
    error = found.json()["error"]
    assert (found.status_code, error["param"]) == (400, f"messages[0].content[0].{param}")
    assert message in error["message"]


def test_a_file_is_played_in_the_terminal(
    hearing: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tone.wav").write_bytes(tone())
    lines = [f"/audio {tmp_path / 'tone.txt'}", f"/audio {tmp_path / 'tone.wav'}", "w4 w5", "w4 w5"]
    options = ["--url", hearing.url, "--json", "--max-tokens", "3", "--temperature", "0"]
    assert typed(lines, options, monkeypatch) == 0
    found = capsys.readouterr()
    heard, after = (json.loads(line) for line in found.out.splitlines() if "prompt_tokens" in line)
    assert "its name is not that of audio, like speech.wav" in found.out + found.err
    assert heard["prompt_tokens"] > 17  # of the tone alone
    assert after["reused_tokens"] >= heard["prompt_tokens"] // BLOCK * BLOCK


def omni_folder(folder: Path) -> Path:
    """A model that speaks too, with a processor for images and audio."""
    from transformers import WhisperFeatureExtractor
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    names = ("image", "audio", "video")
    special = {f"{name}_token": f"<|{name.upper()}|>" for name in names}
    special |= {f"{kind}_{end}_token": f"<|{kind}_{end}|>" for kind in ("vision", "audio") for end in ("bos", "eos")}
    tokenizer = words_tokenizer(special, IMAGE)
    tokenizer.chat_template = (
        "{% for message in messages %}{% for part in message['content'] %}"
        "{% if part['type'] == 'image' %}<|vision_bos|><|IMAGE|><|vision_eos|>"
        "{% elif part['type'] == 'audio' %}<|audio_bos|><|AUDIO|><|audio_eos|>"
        "{% else %} {{ part['text'] }} {% endif %}{% endfor %}{% endfor %}w7"
    )
    tokenizer.save_pretrained(folder)
    WhisperFeatureExtractor(feature_size=BINS, return_attention_mask=True).save_pretrained(folder)
    file = folder / "preprocessor_config.json"
    sees = {"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 4, "min_pixels": 64, "max_pixels": 1024}
    file.write_text(json.dumps(json.loads(file.read_text()) | sees | {"processor_class": "Qwen2_5OmniProcessor"}))
    thinker = {"model_type": OMNI, **CONFIGS[OMNI]}
    config = CONFIG_MAPPING["qwen2_5_omni"].from_dict({"thinker_config": thinker, "enable_audio_output": False})
    config.save_pretrained(folder)
    return folder


def test_images_and_audio_in_one_message(tmp_path: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    needs_image_files()
    file = BytesIO()
    pillow.new("RGB", (32, 32), "red").save(file, "PNG")
    shown = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{written(file.getvalue())}"}}
    prompt = "<|audio_bos|><|AUDIO|><|audio_eos|><|vision_bos|><|IMAGE|><|vision_eos|> w4 w5 w7"
    folder = omni_folder(tmp_path)
    with engine_of(OMNI, folder=folder) as engine:
        params = SamplingParams(max_tokens=DRAWN, temperature=0, ignore_eos=True)
        (done,) = engine.generate([prompt], params, images=[[file.getvalue()]], audios=[[tone()]])
    with served(engine_of(OMNI, folder=folder), threads=True) as found:
        answer = found.post(CHAT, said(part(tone()), shown))
        assert answer.status_code == 200, answer.text
        assert text_of(answer.json()) == done.text
        assert answer.json()["usage"]["prompt_tokens"] == done.prompt_tokens
        (entry,) = found.logged(answer)
        assert (entry["images"], entry["audios"]) == (1, 1)


def test_what_the_worker_is_given_can_be_sent_to_a_process(hearing: Served) -> None:
    source = tokenizer_source(hearing.engine)
    assert pickle.loads(pickle.dumps(source)) == source
    assert source.media.audios == hearing.engine.audio_limits


def test_the_document_knows_what_the_model_takes(hearing: Served) -> None:
    written = hearing.get("/openapi.json").text
    assert "input_audio" in written
    assert "audio_url" in written
    assert '"image_url"' not in written  # as a field; `include` names one
