"""Which batch sizes are captured, and which rows of the engine's buffers a replay touches."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brim.engine.device.staging import Staging  # noqa: E402
from brim.engine.run.graphs import DecodeGraphs, batch_sizes  # noqa: E402
from brim.engine.run.rows import LAST_DRAWN, DecodeRows  # noqa: E402

CPU = torch.device("cpu")


@pytest.mark.parametrize("max_batch", [*range(1, 65), 100, 128, 129, 512, 4096])
def test_no_more_rows_are_captured_than_the_engine_has(max_batch: int) -> None:
    sizes = batch_sizes(max_batch)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == max_batch


def test_one_row_is_captured_only_where_there_is_no_other() -> None:
    assert {number: batch_sizes(number) for number in (1, 2, 3, 9)} == {1: [1], 2: [2], 3: [2, 3], 9: [2, 4, 8, 9]}


class EagerGraph:
    """Stands for a captured graph: runs the step on the tensors it was captured with."""

    def __init__(self, graphs: DecodeGraphs, size: int) -> None:
        self.graphs, self.size = graphs, size

    def replay(self) -> None:
        inputs = self.graphs._inputs[:, : self.size].unbind()
        assert self.graphs._logits is not None
        self.graphs._logits[: self.size] = self.graphs._decode(*inputs)


@pytest.mark.parametrize("max_batch", [1, 2, 3, 5, 17, 64])
def test_padding_works_on_the_scratch_row(max_batch: int) -> None:
    """An engine has a row for each request and one for padding: no other is read, and no request's by padding."""
    buffer = torch.arange(10.0, 10.0 + max_batch + 1)  # a row per slot, as block tables and states have
    seen: list[tuple[list[int], ...]] = []

    def decode(slots: torch.Tensor, lengths: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        seen.append((slots.tolist(), lengths.tolist(), tokens.tolist()))
        return buffer[slots][:, None]

    graphs = DecodeGraphs(decode, max_batch, scratch_slot=max_batch, device=CPU)
    graphs._graphs = {size: EagerGraph(graphs, size) for size in batch_sizes(max_batch)}
    graphs._logits = torch.empty((batch_sizes(max_batch)[-1], 1))
    for count in range(1, max_batch + 1):
        slots = list(range(max_batch))[-count:]
        rows = DecodeRows(*(np.array(values) for values in (slots, [7] * count, range(count))))
        logits = graphs.replay(rows, Staging(CPU))
        size = next(size for size in batch_sizes(max_batch) if size >= count)
        padding = size - count
        assert seen[-1] == (
            slots + [max_batch] * padding,
            [7] * count + [1] * padding,
            [*range(count), *[LAST_DRAWN] * padding],
        )
        assert logits[:, 0].tolist() == [10.0 + slot for slot in slots]
