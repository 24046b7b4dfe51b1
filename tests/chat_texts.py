"""A conversation as the text that its template makes of it, to compare with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brim.engine.front.chat_template import ChatTemplate


def chat_text(tokenizer: Any, messages: Sequence[Any]) -> str:
    return ChatTemplate(tokenizer).render(messages).shown
