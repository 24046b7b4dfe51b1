"""Prompt tokens that must be computed in one step, and where chunks may end because of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from brim.engine.requests.request import MediaSpan
from brim.units import ceil_div


def whole_spans(spans: Sequence[MediaSpan], start: int, length: int) -> int:
    """Shorten a chunk that would cut tokens that must be computed together; 0 if nothing of it is left."""
    end = start + length
    for span in spans:
        if span.together and span.start < end < span.end:
            return max(0, span.start - start)
    return length


def cut_blocks(spans: Sequence[MediaSpan], block_size: int) -> Iterator[range]:
    """Numbers of first blocks that end among tokens that must be computed together."""
    for span in spans:
        if span.together:
            yield range(span.start // block_size + 1, ceil_div(span.end, block_size))


def blocking_span(spans: Sequence[MediaSpan], start: int) -> MediaSpan | None:
    """The tokens that must be computed together and come next."""
    return next((span for span in spans if span.together and span.start <= start < span.end), None)
