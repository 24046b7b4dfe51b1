"""Answers of `/v1/responses` that later requests may go on from: in memory, bounded, each key its own.

The oldest give way, also those of other keys: who stores much cannot make the server hold more, and nobody sees whose
answers gave way to whose.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from threading import RLock

from brim.units import MIB

_MOST_BYTES = 64 * MIB
_MOST_OF_ONE_KEY = 1024
MOST_ITEMS = 100  # of a conversation, read at once


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An answer, and the items of the conversation with it, both as JSON: what is counted is what is held."""

    response: bytes
    items: bytes

    @property
    def size_bytes(self) -> int:
        return len(self.response) + len(self.items)


class StoredResponses:
    """Any thread may change it, and any may look for an answer."""

    def __init__(self, most_bytes: int = _MOST_BYTES, most_of_one_key: int = _MOST_OF_ONE_KEY) -> None:
        self._most_bytes = most_bytes
        self._most_of_one_key = most_of_one_key
        self._kept: OrderedDict[tuple[str, str], StoredResponse] = (
            OrderedDict()
        )  # by key's name and answer's id, oldest first
        self._counts: dict[str, int] = {}
        self._changing = RLock()
        self.held_bytes = 0

    def keep(self, tenant: str, name: str, kept: StoredResponse) -> None:
        """Keep an answer under its id, unless it is larger than all that may be kept; one of this id gives way."""
        with self._changing:
            self.delete(tenant, name)
            if kept.size_bytes > self._most_bytes:
                return
            self._kept[tenant, name] = kept
            self._counts[tenant] = self._counts.get(tenant, 0) + 1
            self.held_bytes += kept.size_bytes
            if self._counts[tenant] > self._most_of_one_key:
                self._drop(next(key for key in self._kept if key[0] == tenant))
            while self.held_bytes > self._most_bytes:
                self._drop(next(iter(self._kept)))

    def find(self, tenant: str, name: str) -> StoredResponse | None:
        return self._kept.get((tenant, name))

    def delete(self, tenant: str, name: str) -> bool:
        """False: there is no such answer of this key."""
        with self._changing:
            if (tenant, name) not in self._kept:
                return False
            self._drop((tenant, name))
            return True

    def _drop(self, key: tuple[str, str]) -> None:
        self.held_bytes -= self._kept.pop(key).size_bytes
        self._counts[key[0]] -= 1
        if not self._counts[key[0]]:
            del self._counts[key[0]]
