"""A step of serving that ends the same way on all ranks, and in which no rank waits for one that has failed.

A rank that raises inside a step has left the others in a collective, where nothing can reach them. So it takes part in
the rest of the step's collectives without a result: which they are is known beforehand (`collectives.py`), how many it
has issued is counted by torch, and the memory for the largest of them is held while the engine is built. The others
compute nonsense, but finite nonsense, and nobody keeps it: at the end of each step the ranks tell each other how it
ended (`Ranks.ends_alike`), before anything is committed. If it failed anywhere, all raise and abandon it. From there on
the same outcome leads to the same decisions on all ranks (`brim.engine.rescue`).

The other way would be to abort the communicator from a second thread. It was not taken: a new communicator needs
memory at the moment when there is none, takes a second, and invalidates every CUDA graph that holds a collective.

The exchange is one gather of 504 bytes between the hosts, for each step. While the device works on the step that was
just launched, only the host waits for it. With CUDA graphs, a rank that fails before its replay replays the graph on
padding rows; what is replayed, torch does not count.

Does not know: errors outside of a step (of planning, or of reading results), and ranks that have exited.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from brim.engine.ranks.collectives import StepCollectives, StepWork, take_part
from brim.engine.ranks.ranks import Ranks, of_another_rank, rank_errors
from brim.probes.translate import translated


class LaunchingStep(Protocol):
    """A step while it is being launched."""

    def work(self) -> StepWork:
        """How large its parts are."""
        ...

    @property
    def replayed(self) -> bool:
        """Whether a graph has issued the collectives of the model's passes."""
        ...

    def replay_padding(self) -> bool:
        """Replay its graph, if it has one, on rows that belong to no request; False: nothing was issued."""
        ...


class FailedRankParticipation:
    """Runs the steps of one rank so that they end the same way on all."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._collectives: StepCollectives | None = None
        self._reserve: torch.Tensor | None = None

    @property
    def known(self) -> bool:
        """Whether the collectives of the model are: only then can a failed rank take part in them."""
        return self._collectives is not None

    @property
    def group_name(self) -> str:
        return str(self._ranks.group.group_name)

    def hold(self, collectives: StepCollectives | None, most: StepWork) -> None:
        """Be ready for steps of at most this size."""
        self._collectives, self._reserve = collectives, None
        if collectives is not None:
            size = collectives.reserve_bytes(most, self._ranks.size)
            self._reserve = torch.zeros(size, dtype=torch.uint8, device=self._ranks.device)

    def release(self) -> None:
        self._collectives = self._reserve = None

    @contextmanager
    def step(self, running: LaunchingStep) -> Iterator[None]:
        """In here a step is launched. Out of memory on one rank is raised on all, before any has counted the step."""
        if self._collectives is None:
            yield
            return
        with self._ranks.ends_alike("a step"), self._to_the_end(running, self._collectives), translated():
            yield

    @contextmanager
    def _to_the_end(self, running: LaunchingStep, collectives: StepCollectives) -> Iterator[None]:
        """Every collective of this step is issued, also if it fails."""
        before = self._counted()
        try:
            yield
        except BaseException as error:
            if not of_another_rank(error):
                with rank_errors():
                    self._take_part(running, collectives, self._counted() - before)
            raise
        expected = collectives.of(running.work())
        issued = self._issued(running, collectives, self._counted() - before)
        assert issued == len(expected), f"{issued} collectives in a step that was to have {len(expected)}"

    def _take_part(self, running: LaunchingStep, collectives: StepCollectives, counted: int) -> None:
        assert self._reserve is not None
        work = running.work()
        issued = self._issued(running, collectives, counted)
        if not running.replayed and not issued and running.replay_padding():
            issued = len(collectives.in_passes(work))
        take_part(collectives.of(work)[issued:], self._ranks.group, self._reserve)

    def _issued(self, running: LaunchingStep, collectives: StepCollectives, counted: int) -> int:
        replayed = len(collectives.in_passes(running.work())) if running.replayed else 0
        return counted + replayed

    def _counted(self) -> int:
        """Collectives that this process has issued in the group of the device so far."""
        return int(self._ranks.group._get_sequence_number_for_group())
