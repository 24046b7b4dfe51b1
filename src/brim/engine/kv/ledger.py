"""Which request holds which blocks, in every group of layers.

`KvLedger` reserves and frees blocks for requests, in all groups or none. Changes of block tables are recorded for the
device (`updates`), and so are the copies of copy-on-write (`copies`), those of preempted requests to the host
(`outgoing`) and back (`returning`).

What a step reserves is provisional until `commit`, which is called when the step has been launched; `rollback` leaves
every request with the blocks that it had. Blocks that a failed step may have written to are not found by content again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from brim.engine.kv.blocks import SCRATCH, BlockPool
from brim.engine.kv.common_blocks import CommonBlocks, Shareable
from brim.engine.kv.events import BlockEvents
from brim.engine.kv.geometry import KvShape, LayerGroup
from brim.engine.kv.host import CopyBack, CopyOut, HostCopy, Move
from brim.engine.kv.prefix_matches import PoolChanges, PrefixMatch
from brim.engine.kv.request_blocks import RequestBlocks
from brim.engine.kv.sessions import Sessions
from brim.units import ceil_div

_SESSIONS = 50  # per cent of the blocks that conversations keep between their turns, at most


@dataclass(frozen=True, slots=True, eq=False)
class _Growth:
    """A reservation that may be rolled back: the length of a request's tables before it."""

    request: RequestBlocks
    lengths: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Replacement:
    """A copy-on-write that may be rolled back: the old block, still held."""

    group: int
    request: RequestBlocks
    column: int
    old: int


@dataclass(slots=True)
class TableUpdates:
    """Entries of a group's block table that changed since the device was last updated.

    Each entry occurs once, with its last block: a device writes them in any order.
    """

    entries: dict[tuple[int, int], int] = field(default_factory=dict)  # (row, column) -> block

    @property
    def rows(self) -> list[int]:
        return [row for row, _ in self.entries]

    @property
    def columns(self) -> list[int]:
        return [column for _, column in self.entries]

    @property
    def blocks(self) -> list[int]:
        return list(self.entries.values())

    def note(self, row: int, column: int, block: int) -> None:
        self.entries[row, column] = block


class KvLedger:
    """All pools, and the blocks of every request."""

    def __init__(self, groups: tuple[LayerGroup, ...], shape: KvShape) -> None:
        self.groups = groups
        self.block_size = shape.block_size
        self.changes = PoolChanges()
        self.pools = [BlockPool(blocks, self.changes) for blocks in shape.blocks]
        self.updates = [TableUpdates() for _ in groups]  # for the device, by group
        self.copies: list[tuple[int, int, int]] = []  # (group, from, to): blocks to copy before anything is written
        # To carry out before `copies`, in this order. The device takes each of the former out when it has been queued:
        # what a preempted request held stays as it is until the next step is launched, however many fail before.
        self.outgoing: dict[HostCopy, CopyOut] = {}
        self.returning: dict[int, CopyBack] = {}  # by slot
        # Of the group without a window. Windows move on from what they share to blocks of their own.
        self.unwindowed = next((number for number, group in enumerate(groups) if group.window is None), None)
        self.commons = CommonBlocks(0 if self.unwindowed is None else shape.blocks[self.unwindowed])
        self.sessions = Sessions(self.pools, _SESSIONS * max(shape.blocks, default=0) // 100)
        self._growths: list[_Growth] = []
        self._replacements: list[_Replacement] = []

    # -- what a request would need -------------------------------------------------------------------------------

    def blocks_for(self, start: int, end: int) -> list[int]:
        """By group: the blocks that tokens [start, end) of a fresh request occupy while they are computed."""
        return [
            max(0, ceil_div(end, self.block_size) - group.first_block_needed(start, self.block_size))
            for group in self.groups
        ]

    def available(self) -> list[int]:
        return [pool.available for pool in self.pools]

    # -- giving and taking ---------------------------------------------------------------------------------------

    def open(self, slot: int) -> RequestBlocks:
        return RequestBlocks(slot, [[] for _ in self.groups], [0] * len(self.groups))

    def reserve(self, request: RequestBlocks, start: int, end: int) -> bool:
        """Reserve blocks for tokens [start, end), in all groups; False, and nothing changed, if there are too few."""
        size = self.block_size
        wanted = ceil_div(end, size)
        first_written = start // size
        for pool, table in zip(self.pools, request.tables, strict=True):
            fresh = wanted - len(table)
            shared = sum(not pool.writable(block) for block in table[first_written:wanted])
            if fresh + shared > 0 and fresh + shared > pool.available:
                return False
        self._growths.append(_Growth(request, tuple([len(table) for table in request.tables])))
        for number, (pool, table) in enumerate(zip(self.pools, request.tables, strict=True)):
            for column in range(first_written, min(wanted, len(table))):
                if not pool.writable(table[column]):
                    self._replace(number, pool, request, column)
            while len(table) < wanted:
                table.append(pool.take())  # in the table at once, where a rollback finds it
                self._belongs(number, table[-1], request)
                self.updates[number].note(request.slot, len(table) - 1, table[-1])
        return True

    def _replace(self, group: int, pool: BlockPool, request: RequestBlocks, column: int) -> None:
        """Copy-on-write: the other holders, and later lookups by content, keep the old block."""
        old = request.tables[group][column]
        replacement = _Replacement(group, request, column, old)
        new = pool.take()
        self._replacements.append(replacement)
        request.tables[group][column] = new
        self._belongs(group, new, request)
        if group == self.unwindowed:
            self.commons.left(old, request)
        self.copies.append((group, old, new))
        self.updates[group].note(request.slot, column, new)

    def give_up_behind(self, request: RequestBlocks, position: int) -> None:
        """Release the blocks that no query from this position on attends to."""
        for number, group in enumerate(self.groups):
            if group.window is None:
                continue
            needed = min(group.first_block_needed(position, self.block_size), len(request.tables[number]))
            for column in range(request.given_up[number], needed):
                block = request.tables[number][column]
                if block != SCRATCH:
                    self._release(number, block)
                    request.tables[number][column] = SCRATCH
            request.given_up[number] = max(request.given_up[number], needed)

    def give_back_from(self, request: RequestBlocks, position: int) -> None:
        """Release the blocks that hold only tokens from this position on."""
        for number in range(len(self.groups)):
            self._shorten(request, number, ceil_div(position, self.block_size))

    def close(self, request: RequestBlocks) -> None:
        """Free all blocks of a request. The last blocks are released first, so that they are evicted first."""
        self.returning.pop(request.slot, None)
        for number in range(len(self.groups)):
            self._shorten(request, number, 0)

    def fork(self, source: RequestBlocks, target: RequestBlocks, tokens: int) -> None:
        """Share the blocks of another request's first tokens with a new request, copy-on-write."""
        for number, table in enumerate(source.tables):
            for block in table[: ceil_div(tokens, self.block_size)]:
                self._share(number, target, block)
            target.given_up[number] = min(source.given_up[number], len(target.tables[number]))
        target.published = min(source.published, tokens // self.block_size)

    def can_fork(self, source: RequestBlocks, tokens: int) -> bool:
        """Whether a request still holds all that the last of these tokens attends to."""
        return all(
            given_up <= group.first_block_needed(tokens - 1, self.block_size)
            for group, given_up in zip(self.groups, source.given_up, strict=True)
        )

    def _share(self, group: int, request: RequestBlocks, block: int) -> None:
        table = request.tables[group]
        if block == SCRATCH:
            table.append(block)
        else:
            held = self.pools[group].holders(block) > 0
            self.pools[group].share(block)
            table.append(block)  # in the table at once, where it is found when the request is closed
            if not held:
                self._belongs(group, block, request)
            elif group == self.unwindowed:
                self.commons.shared(block, request)
        self.updates[group].note(request.slot, len(table) - 1, block)

    # -- a step's reservations -----------------------------------------------------------------------------------

    @property
    def reserving(self) -> bool:
        """Reservations are neither committed nor rolled back."""
        return bool(self._growths or self._replacements or self.copies)

    def commit(self) -> None:
        """The step was launched: its reservations are final, and the device has all updates."""
        for replaced in self._replacements:
            self._release(replaced.group, replaced.old)
        self.updates = [TableUpdates() for _ in self.groups]
        self._forget_reservations()

    def rollback(self) -> None:
        """The step failed: every request holds what it held before. Table updates are sent to the device again."""
        for growth in reversed(self._growths):
            for number, length in enumerate(growth.lengths):
                self._shorten(growth.request, number, length)
        for replaced in reversed(self._replacements):
            table = replaced.request.tables[replaced.group]
            if replaced.column >= len(table):  # the request has been closed since
                self._release(replaced.group, replaced.old)
                continue
            new, table[replaced.column] = table[replaced.column], replaced.old
            self._release(replaced.group, new)
            if replaced.group == self.unwindowed:
                self.commons.returned(replaced.old, replaced.request)
            self.updates[replaced.group].note(replaced.request.slot, replaced.column, replaced.old)
        self._forget_reservations()

    def _forget_reservations(self) -> None:
        self.copies = []
        self.returning = {}
        self._growths = []
        self._replacements = []

    def _belongs(self, group: int, block: int, request: RequestBlocks) -> None:
        if group == self.unwindowed:
            self.commons.taken(block, request)

    def _release(self, group: int, block: int) -> None:
        """Releasing comes last: before it, all can be done again after an interrupt."""
        pool = self.pools[group]
        if group == self.unwindowed and pool.holders(block) == 1:
            self.commons.freed(block)
        pool.release(block)

    def _shorten(self, request: RequestBlocks, group: int, length: int) -> None:
        """Release the last blocks of a table, down to a length. Can be called again after an interrupt."""
        table = request.tables[group]
        while len(table) > length:
            if table[-1] != SCRATCH:
                if group == self.unwindowed:
                    self.commons.left(table[-1], request)
                self._release(group, table[-1])
            table.pop()

    # -- reuse by content ----------------------------------------------------------------------------------------

    def find(self, digests: Sequence[bytes], forbidden: Iterable[range] = ()) -> PrefixMatch:
        """The blocks of a text. `forbidden`: numbers of its first blocks that may not be reused without the next."""
        finding = PrefixMatch(digests, self.changes, forbidden)
        finding.bring_up_to_date(self.pools)
        return finding

    def still_found(self, finding: PrefixMatch | None, blocks: int) -> PrefixMatch | None:
        """What was found of a text of so many blocks, as it is now; None: that was in another ledger, or of others."""
        if finding is None or finding.changes is not self.changes or len(finding) != blocks:
            return None
        finding.bring_up_to_date(self.pools)
        return finding

    def longest_prefix(self, finding: PrefixMatch) -> int:
        """How many leading full blocks could be reused: cached in every group in which later tokens attend to them."""
        return finding.prefix(self.groups, self.block_size)

    def shareable(self, finding: PrefixMatch, blocks: int) -> Shareable:
        """Of the first so many blocks that were found, those that a request holds; in the group without a window.

        Blocks that are only cached count as available, and are taken.
        """
        if self.unwindowed is None:
            return Shareable()
        return self.commons.shareable(finding.blocks[self.unwindowed][:blocks])

    def forkable(self, source: RequestBlocks, tokens: int) -> Shareable:
        """The full blocks of a request's first tokens, in the group without a window."""
        if self.unwindowed is None:
            return Shareable()
        blocks, table = tokens // self.block_size, source.tables[self.unwindowed]
        # What of its table is not common belongs to it, and most of the table is of these tokens.
        common = source.common - sum(map(self.commons.__contains__, table[blocks:]))
        return Shareable(common, blocks - common, frozenset({source.slot} if common < blocks else ()))

    def reuse(self, request: RequestBlocks, digests: Sequence[bytes]) -> None:
        """Start a new request from these blocks, which `longest_prefix` found."""
        count = len(digests)
        for number, (group, pool) in enumerate(zip(self.groups, self.pools, strict=True)):
            first = group.first_block_needed(count * self.block_size, self.block_size)
            for column, digest in enumerate(digests):
                block = pool.find(digest) if column >= first else SCRATCH
                assert block is not None, "longest_prefix promised this block"
                self._share(number, request, block)
            request.given_up[number] = first
        request.published = count

    def bring_back(self, request: RequestBlocks, copy: HostCopy, digests: Sequence[bytes]) -> bool:
        """Start a new request from a copy in host memory; False, and nothing changed, if there are too few blocks.

        Blocks that are found by content are shared, and the others are taken and noted for the device.
        """
        found = [self._find(number, columns, digests) for number, columns in enumerate(copy.columns)]
        for pool, blocks in zip(self.pools, found, strict=True):
            if sum(block == SCRATCH or pool.holders(block) == 0 for block in blocks) > pool.available:
                return False
        for number, (columns, blocks) in enumerate(zip(copy.columns, found, strict=True)):
            for block in (*[SCRATCH] * columns.start, *blocks):  # shared before any is taken, which could evict it
                self._share(number, request, block)
            request.given_up[number] = columns.start
        self.returning[request.slot] = CopyBack(
            copy, request.slot, tuple([self._fill(request, number) for number in range(len(self.groups))])
        )
        return True

    def _find(self, number: int, columns: range, digests: Sequence[bytes]) -> list[int]:
        """The blocks with this content, scratch where there is none."""
        known = columns[: max(0, len(digests) - columns.start)]
        found = [self.pools[number].find(digests[column]) or SCRATCH for column in known]
        return found + [SCRATCH] * (len(columns) - len(known))

    def _fill(self, request: RequestBlocks, number: int) -> Move:
        """Take a block for each empty entry that later tokens attend to."""
        table, first = request.tables[number], request.given_up[number]
        empty = [column for column in range(first, len(table)) if table[column] == SCRATCH]
        for column in empty:
            table[column] = self.pools[number].take()
            self._belongs(number, table[column], request)
            self.updates[number].note(request.slot, column, table[column])
        return Move(tuple([column - first for column in empty]), tuple([table[column] for column in empty]))

    @property
    def main_group(self) -> int:
        """The group that holds whole requests; where every layer has a window, the first."""
        return 0 if self.unwindowed is None else self.unwindowed

    @property
    def main_pool_events(self) -> BlockEvents | None:
        return self.pools[self.main_group].events if self.pools else None

    def publish(self, request: RequestBlocks, digests: Sequence[bytes]) -> None:
        """Publish the request's full blocks by content, as far as it is known."""
        for column in range(request.published, len(digests)):
            for pool, table in zip(self.pools, request.tables, strict=True):
                if table[column] != SCRATCH:
                    pool.publish(table[column], digests[column])
        request.published = max(request.published, len(digests))
