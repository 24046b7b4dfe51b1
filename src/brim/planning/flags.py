"""A solved plan as the flags of an engine: what was asked for and what was solved, put together for it."""

from __future__ import annotations

from brim.planning.engines import Sizes
from brim.planning.settings import Settings
from brim.planning.solve import Solution


def engine_flags(settings: Settings, solution: Solution) -> tuple[str, ...]:
    """The flags of the engine that was asked for; none where the plan does not fit."""
    if settings.engine is None or not solution.fits:
        return ()
    not_for_engine = ("canary", "graphs", "neighbours", "workspace")
    sizes = Sizes(
        model=settings.spec.name,
        max_len=solution.max_len,
        max_seqs=solution.concurrency,
        running=solution.max_seqs,
        batch_tokens=solution.batch_tokens,
        kv_tokens=solution.kv_tokens,
        kv_bytes=solution.kv_bytes,
        kv_dtype=settings.kv_dtype,
        ranks=settings.ranks,
        graphs=solution.graphs,
        usable_bytes=settings.device.usable_bytes,
        spare_bytes=sum(item.bytes for item in solution.items if item.name in not_for_engine),
        weights_bytes=solution.costs.weights.rank_bytes,
        draft=settings.draft.name if settings.draft else None,
        images_per_prompt=solution.images_per_prompt,
    )
    return tuple(settings.engine.flags(sizes))
