"""CUDA graphs of decode-only steps: one for each of a few numbers of rows, in one memory pool.

A step uses the smallest graph that holds its rows; padding rows work on a scratch slot.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from brim.engine.device.staging import Staging
from brim.engine.run.rows import LAST_DRAWN, DecodeRows
from brim.records.progress import Stage, Told, silent


def batch_sizes(max_batch: int) -> list[int]:
    """The numbers of rows that are captured: close together where one row more makes a difference.

    Up to some hundred rows, a step is bound by reading the weights, and each captured size costs start-up time. So a
    single request uses the graph of two: a graph of one would save next to nothing and cost another compilation, since
    the compiler treats a size of one as a special case. An engine with `max_batch` 1 captures only that.
    No size is above `max_batch`: tables, states and the scratch of attention have so many rows.
    """
    sizes = [2, 4, 8, 16, 24, *range(32, 128, 16), *range(128, max_batch, 32)]
    return [size for size in sizes if size < max_batch] + [max_batch]


class DecodeGraphs:
    """Captured steps, by their number of rows."""

    def __init__(
        self,
        decode: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor],
        most_rows: int,
        scratch_slot: int,
        device: torch.device,
    ) -> None:
        self._decode = decode
        self._sizes = batch_sizes(most_rows)
        self._scratch_slot = scratch_slot
        largest = self._sizes[-1]
        self._inputs = torch.empty((3, largest), dtype=torch.int64, device=device)  # slots; lengths; tokens
        self._inputs[0] = scratch_slot
        self._inputs[1] = 1
        self._inputs[2] = LAST_DRAWN
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._logits: torch.Tensor | None = None  # one for all sizes: only one is read at a time

    def capture(self, told: Told = silent) -> None:
        """Capture every size, the largest first, so that the others fit into its memory."""
        pool = torch.cuda.graph_pool_handle()
        told(Stage("build", "kernels and compiled layers"))  # loaded or compiled at the first call
        for number, size in enumerate(reversed(self._sizes)):
            if number:
                told(Stage("build", "graphs", number, len(self._sizes)))
            inputs = self._inputs[:, :size].unbind()
            logits = self._decode(*inputs)  # a first call outside the capture: it compiles and loads kernels
            if self._logits is None:
                self._logits = torch.empty_like(logits)
            del logits
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool):
                self._logits[:size].copy_(self._decode(*inputs))
            graph.replay()  # the driver prepares a graph when it is first run
            self._graphs[size] = graph

    def size_for(self, count: int) -> int:
        """Rows of the graph that runs a step of so many rows."""
        return next(size for size in self._sizes if size >= count)

    def replay_padding(self, count: int) -> None:
        """Run the graph of a step of so many rows on padding alone. Allocates nothing, and nobody reads it."""
        self._inputs[0].fill_(self._scratch_slot)
        self._inputs[1].fill_(1)
        self._inputs[2].fill_(LAST_DRAWN)
        self._graphs[self.size_for(count)].replay()

    def replay(self, rows: DecodeRows, staging: Staging) -> torch.Tensor:
        """Logits of a step, [rows, vocabulary]; valid until the next replay."""
        count = len(rows)
        size = self.size_for(count)
        inputs = np.empty((3, size), dtype=np.int64)
        inputs[0, :count], inputs[0, count:] = rows.slots, self._scratch_slot
        inputs[1, :count], inputs[1, count:] = rows.lengths, 1
        inputs[2, :count], inputs[2, count:] = rows.tokens, LAST_DRAWN
        self._inputs[:, :size] = staging.send([inputs.reshape(-1)])[0].view(3, size)
        self._graphs[size].replay()
        assert self._logits is not None
        return self._logits[:count]
