"""Tensor parallelism on one machine: the same engine on every rank, each with its shard of the model.

In: the processes that torchrun started (`Ranks`), and a whole model. Out: this rank's shard of the model
(`split_model`, by transformers' own plan), and ranks in lockstep (`InStep`): tokens are sampled on rank 0 and
broadcast, and digests of the steps are compared. Every rank must be given the same requests in the same order. What may
fail on one rank is first run by each without the others (`local_collectives.py`), and ends the same way on all of them
(`Ranks.ends_alike`), so that no rank waits inside a collective for one that has failed.

Knows nothing of several machines, nor of how requests reach the ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from brim.engine.ranks.sharding import local_bytes, split_model
from brim.engine.weights.load import LoadedModel
from brim.errors import DeviceError, InvalidRequest, OutOfMemory, first_line

TIMEOUT_SECONDS = 600.0  # how long a rank waits for another; one that has exited is noticed at once
_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a part that each rank runs without the others ended on one rank."""

    problem: str = ""  # empty: it succeeded
    out_of_memory: bool = False
    missing_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that share a model, seen from one of them."""

    rank: int
    size: int
    device: torch.device
    group: Any  # for tensors on the device: NCCL, or gloo on the CPU
    host_group: Any  # for numbers on the host: gloo
    owned: bool  # created here, hence destroyed here

    @classmethod
    def join(
        cls, device: str, *, seconds: float = TIMEOUT_SECONDS, environment: Mapping[str, str] = os.environ
    ) -> Ranks:
        """Connect to the other ranks: in the existing process group, or in one from torchrun's environment."""
        kind = torch.device(device).type
        missing = [name for name in _SET_BY_TORCHRUN if name not in environment]
        owned = not dist.is_initialized()
        if owned and missing:
            raise InvalidRequest(
                f"tensor parallelism: {missing[0]} is not set, so there are no other ranks; start one process for each "
                "device: torchrun --standalone --nproc-per-node=2 ..."
            )
        if int(environment.get("LOCAL_WORLD_SIZE", 0)) not in (0, int(environment.get("WORLD_SIZE", 0))):
            raise InvalidRequest("tensor parallelism: the ranks are on several machines; start all of them on one")
        place = _place(kind, int(environment.get("LOCAL_RANK", 0)))
        wait = timedelta(seconds=seconds)
        try:
            if owned:
                bound = place if kind == "cuda" else None
                dist.init_process_group("nccl" if kind == "cuda" else "gloo", timeout=wait, device_id=bound)
            host = dist.new_group(backend="gloo", timeout=wait) if kind == "cuda" else dist.group.WORLD
        except (RuntimeError, ValueError) as error:  # torch.distributed's own errors are RuntimeErrors
            where = f"{environment.get('MASTER_ADDR')}:{environment.get('MASTER_PORT')}"
            raise DeviceError(
                f"tensor parallelism: the ranks cannot connect at {where} ({first_line(error)}); check that all of "
                f"{environment.get('WORLD_SIZE')} processes were started, and that the port is free"
            ) from error
        return cls(dist.get_rank(), dist.get_world_size(), place, dist.group.WORLD, host, owned)

    def leave(self) -> None:
        if self.owned and dist.is_initialized():
            dist.destroy_process_group()

    # -- numbers of the host that must be the same on all ranks -----------------------------------------------------

    def from_first(self, number: int) -> int:
        """Rank 0's number, on all ranks."""
        return int(self._broadcast(torch.tensor(number, dtype=torch.int64)))

    def clock(self) -> float:
        """Rank 0's `time.monotonic`, on all ranks."""
        return float(self._broadcast(torch.tensor(time.monotonic(), dtype=torch.float64)))

    def least(self, number: int) -> int:
        """The least of all ranks' numbers, on all ranks."""
        value = torch.tensor(number, dtype=torch.int64)
        with rank_errors():
            dist.all_reduce(value, dist.ReduceOp.MIN, group=self.host_group)
        return int(value)

    def _broadcast(self, value: torch.Tensor) -> torch.Tensor:
        with rank_errors():
            dist.broadcast(value, 0, group=self.host_group)
        return value

    # -- parts that one rank may fail in ----------------------------------------------------------------------------

    @contextmanager
    def ends_alike(self, what: str) -> Iterator[None]:
        """A part that each rank runs without the others; the outcomes are exchanged before any rank continues.

        Out of memory on one rank is raised on all. Any other error is raised as it is on its rank, and as a
        `DeviceError` that names the rank on the others.
        """
        short: OutOfMemory | None = None
        try:
            yield
        except OutOfMemory as error:
            short = error
        except BaseException as error:
            with suppress(DeviceError):  # do not hide this rank's own error if the others no longer respond
                self._gathered(Ended(f"{type(error).__name__}: {first_line(error)}"))
            raise
        mine = Ended() if short is None else Ended(str(short), True, short.missing_bytes)
        worst = worst_end(what, self._gathered(mine))
        if worst is not None:
            raise worst from short

    def _gathered(self, mine: Ended) -> list[Ended]:
        """How it ended on every rank, by rank."""
        ended = [mine] * self.size
        with rank_errors():
            dist.all_gather_object(ended, mine, group=self.host_group)
        return ended

    # -- tensors of the device --------------------------------------------------------------------------------------

    def broadcast_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Rank 0's tokens, on all ranks. With NCCL this is queued on the device, and the host does not wait."""
        tokens = tokens.contiguous()
        dist.broadcast(tokens, 0, group=self.group)
        return tokens

    def split(self, loaded: LoadedModel) -> LoadedModel:
        """Reduce a whole model to this rank's shard, in place and on this rank's device."""
        split_model(loaded.model, self.rank, self.size, self.device)
        return replace(loaded, weight_bytes=local_bytes(loaded.model))


def worst_end(what: str, ended: list[Ended]) -> DeviceError | None:
    """What all ranks raise; None if it succeeded on all of them."""
    failed = [rank for rank, one in enumerate(ended) if one.problem]
    for rank in failed:
        if not ended[rank].out_of_memory:
            return DeviceError(
                f"tensor parallelism: rank {rank} failed in {what} ({ended[rank].problem}); it ends on all ranks"
            )
    if not failed:
        return None
    rank = max(failed, key=lambda rank: ended[rank].missing_bytes or 0)
    return OutOfMemory(f"rank {rank} of {len(ended)}, {what}: {ended[rank].problem}", ended[rank].missing_bytes)


def _place(kind: str, local_rank: int) -> torch.device:
    """The device of a rank."""
    if kind != "cuda":
        return torch.device(kind)
    if local_rank >= torch.cuda.device_count():
        raise DeviceError(
            f"tensor parallelism: rank {local_rank} has no device of its own, torch sees {torch.cuda.device_count()}; "
            "start as many processes as there are GPUs (--nproc-per-node)"
        )
    torch.cuda.set_device(local_rank)
    return torch.device("cuda", local_rank)


@contextmanager
def rank_errors() -> Iterator[None]:
    """Translate what torch.distributed and gloo raise when another rank has exited or timed out."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error):
            raise
        raise DeviceError(
            f"tensor parallelism: another rank has exited or timed out ({first_line(error)}); see its output"
        ) from error
