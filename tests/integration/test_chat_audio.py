"""Conversations with audio: that of kept turns is heard again in every turn, that of others is let go."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from brim import Chat, SamplingParams
from brim.errors import InvalidRequest
from tests.chat_texts import chat_text
from tests.integration.test_chat import engine_of as text_engine
from tests.integration.test_engine_audio import engine_of, qwen2_audio_folder
from tests.unit.engine.media.audio.test_files import RATE, wav

GREEDY = SamplingParams(max_tokens=4, temperature=0, ignore_eos=True)
THRESHOLD = 90


def tone(seconds: float, pitch: float) -> bytes:
    return wav(np.sin(2 * np.pi * pitch * np.arange(int(seconds * RATE)) / RATE)[:, None] / 2, 16)


def test_audio_of_kept_turns_is_heard_and_that_of_others_goes(tmp_path: Path) -> None:
    folder, rng = qwen2_audio_folder(tmp_path), random.Random(4)
    with engine_of("qwen2_audio", folder=folder) as engine:
        chat = Chat(engine, rolling_threshold=THRESHOLD)
        evicted, asked = 0, []
        for number in range(12):
            audios = [tone(rng.uniform(0.2, 0.9), rng.randrange(200, 3000))] if number % 2 == 0 else []
            reply = chat.send(f"w{number + 4} w5", GREEDY, audios=audios)
            kept = chat.conversation.until(len(chat.turns) - 1)
            asked.append((chat_text(engine.tokenizer, kept.messages), kept.audios, reply.tokens))
            assert reply.prompt_tokens == chat._prompts.count(kept) <= THRESHOLD - GREEDY.max_tokens
            evicted += reply.evicted_turns
        assert evicted
        assert len(chat._prompts._media_tokens) == len(chat.conversation.audios) < 6
        assert chat.usage.tokens == chat.tokens
        assert engine.figures.blocks_held == 0
        assert len(engine.model.runner.features) == 0
        chat.save(tmp_path / "chat.json")
        assert Chat.load(engine, tmp_path / "chat.json").conversation == chat.conversation
    with engine_of("qwen2_audio", folder=folder, reuse_prefixes=False) as fresh:
        for text, audios, tokens in asked:
            (want,) = fresh.generate([text], GREEDY, audios=[audios or None])
            assert want.tokens == tokens


def test_a_model_without_audio_says_so() -> None:
    with text_engine() as engine:
        chat = Chat(engine)
        with pytest.raises(InvalidRequest, match="audios: this model takes text only"):
            chat.send("Hi.", GREEDY, audios=[tone(0.3, 440)])
        assert chat.turns == ()
