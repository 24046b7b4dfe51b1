"""What conversations leave in the pools between their turns.

A session has no slot and holds no block: its content is favoured, so that plain cached prefixes are evicted before it,
and running requests may evict it as well. So many blocks of content are favoured at most, of so many sessions: short
ones have few blocks, and those that begin alike have them in common. Beyond that the session that has been quiet
longest is favoured no more.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence

from brim.engine.kv.blocks import BlockPool

MOST_SESSIONS = 1024  # conversations that are kept between their turns


class Sessions:
    """The content of conversations, by the name of the conversation."""

    def __init__(self, pools: Sequence[BlockPool], most_blocks: int, most_sessions: int = MOST_SESSIONS) -> None:
        self._pools = pools
        self._most_blocks = most_blocks
        self._most_sessions = most_sessions
        self._content: OrderedDict[str, tuple[bytes, ...]] = OrderedDict()  # the quietest first
        self._uses: Counter[bytes] = Counter()  # branches of one conversation have a common beginning

    def __len__(self) -> int:
        return len(self._content)

    @property
    def blocks(self) -> int:
        """Different blocks of content that are favoured."""
        return len(self._uses)

    def keep(self, session: str, digests: Sequence[bytes]) -> None:
        """This is what the conversation is now, from its first block on."""
        before = self._content.pop(session, ())
        now = tuple(digests[: self._most_blocks])
        if now:  # one that fills no block has nothing to keep
            self._content[session] = now
        self._favour(now)
        self._disfavour(before)
        while len(self._uses) > self._most_blocks or len(self._content) > self._most_sessions:
            self.forget(next(iter(self._content)))

    def forget(self, session: str) -> None:
        """The conversation is over, or idle: its blocks are cached like any others."""
        self._disfavour(self._content.pop(session, ()))

    def _favour(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._uses[digest] += 1
            if self._uses[digest] == 1:
                for pool in self._pools:
                    pool.favour(digest)

    def _disfavour(self, digests: Iterable[bytes]) -> None:
        for digest in digests:
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._uses[digest]
                for pool in self._pools:
                    pool.disfavour(digest)
