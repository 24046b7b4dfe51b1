"""A device without arithmetic: it keeps blocks, tables and last tokens, and knows what belongs in every place.

The "key" of a token is the whole text up to it. A query looks at every position that its attention would read, and
what it finds there must be the key of its own text: a block given to two requests, written under a reader, freed too
early, reused for another text or copied too late shows at once. The token it "draws" is a digest of the text, so two
requests with one text go on alike, as with a model.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Any

from brim.engine.kv.blocks import SCRATCH
from brim.engine.kv.host import HostCopy, HostSizes
from brim.engine.kv.ledger import KvLedger

VOCAB = 3  # few tokens: texts often begin alike

Key = bytes


def key_of(text: Sequence[int]) -> Key:
    return blake2b(bytes(text), digest_size=8).digest()


def next_token(text: Sequence[int], seed: int) -> int:
    return blake2b(bytes(text), digest_size=1, salt=seed.to_bytes(8, "little")).digest()[0] % VOCAB


class SimulatedDevice:
    """The memory behind a ledger."""

    def __init__(self, ledger: KvLedger) -> None:
        self.ledger = ledger
        groups = range(len(ledger.groups))
        self.memory: list[dict[tuple[int, int], Key]] = [{} for _ in groups]  # (block, place) -> key
        self.tables: list[dict[tuple[int, int], int]] = [defaultdict(int) for _ in groups]  # (row, column) -> block
        self.last_token: dict[int, int] = {}  # by slot
        self.states: dict[int, list[int]] = {}  # by slot: the text that a recurrent state has seen
        self.host_sizes = HostSizes(tuple(3 + group for group in groups), 5)
        self.host: dict[int, Any] = {}  # what is in each byte

    def follow(self) -> None:
        """Hear what the ledger has noted down."""
        self._copy_out()
        self._copy_back()
        size = self.ledger.block_size
        for group, source, target in self.ledger.copies:
            memory = self.memory[group]
            for place in range(size):
                memory.pop((target, place), None)
                if (source, place) in memory:
                    memory[target, place] = memory[source, place]
        for table, updates in zip(self.tables, self.ledger.updates, strict=True):
            entries = list(zip(updates.rows, updates.columns, updates.blocks, strict=True))
            assert len({(row, column) for row, column, _ in entries}) == len(entries), "written in any order"
            for row, column, block in entries:
                table[row, column] = block

    def _copy_out(self) -> None:
        while self.ledger.outgoing:
            order = self.ledger.outgoing.pop(next(iter(self.ledger.outgoing)))
            *pieces, state = self._pieces(order.copy)
            for (group, number), piece in pieces:
                content = self._block(group, order.blocks[group][number])
                self.host.update(dict.fromkeys(piece, content))
            seen = list(self.states.get(order.slot, []))
            self.host.update(dict.fromkeys(state[1], seen))

    def _copy_back(self) -> None:
        for order in self.ledger.returning.values():
            *pieces, state = self._pieces(order.copy)
            for (group, number), piece in pieces:
                if number not in order.moves[group].numbers:
                    continue
                block = order.moves[group].blocks[order.moves[group].numbers.index(number)]
                for place in range(self.ledger.block_size):
                    self.memory[group].pop((block, place), None)
                self.memory[group] |= {(block, place): key for place, key in self._in_host(piece)}
            self.states[order.slot] = self._in_host(state[1])

    def _pieces(self, copy: HostCopy) -> Iterator[tuple[tuple[int, int], range]]:
        """The bytes of each block of a copy, and at last those of its state."""
        place = copy.place
        for group, (columns, size) in enumerate(zip(copy.columns, self.host_sizes.block_bytes, strict=True)):
            for number in range(len(columns)):
                yield (group, number), range(place, place + size)
                place += size
        yield (-1, -1), range(place, place + self.host_sizes.state_bytes)
        assert place + self.host_sizes.state_bytes <= copy.place + copy.bytes

    def _in_host(self, piece: range) -> Any:
        content = self.host[piece.start]
        assert all(self.host[byte] is content for byte in piece), "two copies are in one place"
        return content

    def _block(self, group: int, block: int) -> list[tuple[int, Key]]:
        places = range(self.ledger.block_size)
        return [(place, self.memory[group][block, place]) for place in places if (block, place) in self.memory[group]]

    def spoil(self, slot: int, start: int, end: int) -> None:
        """What a step that fails may leave behind: nonsense where it was to write."""
        size = self.ledger.block_size
        for memory, table in zip(self.memory, self.tables, strict=True):
            for position in range(start, end):
                memory[table[slot, position // size], position % size] = b"spoiled"

    def compute(self, slot: int, text: Sequence[int], start: int) -> None:
        """Write the keys of tokens from `start` on, and look at everything that these tokens see."""
        size = self.ledger.block_size
        for memory, table in zip(self.memory, self.tables, strict=True):
            for position in range(start, len(text)):
                block = table[slot, position // size]
                assert block != SCRATCH, f"position {position} of slot {slot} has no block"
                memory[block, position % size] = key_of(text[: position + 1])
        self.look(slot, text, start)

    def look(self, slot: int, text: Sequence[int], start: int) -> None:
        size = self.ledger.block_size
        for group, memory, table in zip(self.ledger.groups, self.memory, self.tables, strict=True):
            first = 0 if group.window is None else max(0, start - group.window + 1)
            for position in range(first, len(text)):
                found = memory.get((table[slot, position // size], position % size))
                assert found == key_of(text[: position + 1]), f"slot {slot} sees another text at position {position}"
