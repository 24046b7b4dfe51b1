"""How full the memory of a conversation is, in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.units import format_bytes

if TYPE_CHECKING:
    from brim.engine.chat.chat import Chat

_CELLS = 20


def gauge(chat: Chat) -> str:
    """The conversation against its threshold, and the KV pool."""
    tokens, threshold = chat.tokens, chat.rolling.threshold
    figures = chat.engine.figures
    blocks = figures.blocks_held + figures.blocks_cached
    pool = blocks * chat.engine.settings.block_size
    return (
        f"conversation {bar(tokens / threshold)} {tokens:,} of {threshold:,} tokens"
        f"  ·  KV pool {min(1.0, pool / figures.kv_tokens):.0%} of {format_bytes(figures.kv_bytes)}"
        f"  ·  {chat.engine.health.status}"
    )


def bar(share: float) -> str:
    """Full cells for what is used."""
    full = min(_CELLS, max(0, round(share * _CELLS)))
    return "█" * full + "░" * (_CELLS - full)
