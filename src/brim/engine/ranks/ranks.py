"""Tensor parallelism on one machine: the same engine on every rank, each with its shard of the model.

In: the processes that torchrun started (`Ranks`), and a whole model. Out: this rank's shard of the model
(`split_model`, by transformers' own plan), and ranks in lockstep (`InStep`): tokens are sampled on rank 0 and
broadcast, and digests of the steps are compared. Every rank must be given the same requests in the same order.

What fails on one rank ends the same way on all of them (`Ranks.ends_alike`), and no rank waits inside a collective for
one that has failed. Builds and stress steps are first run by each rank without the others (`local_collectives.py`). In
a step of serving, a rank that fails takes part in the rest of its collectives without a result (`failed_rank.py`).

Knows nothing of several machines, nor of how requests reach the ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from struct import Struct
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from brim.engine.ranks.sharding import local_bytes, split_model
from brim.engine.weights.load import LoadedModel
from brim.errors import DeviceError, InvalidRequest, OutOfMemory, first_line

TIMEOUT_SECONDS = 600.0  # how long a rank waits for another; one that has exited is noticed at once
_WORDS = 495  # bytes of what is said of a problem
_ENDED = Struct(f"<?q{_WORDS}s")
_SET_BY_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """How a part that each rank runs without the others ended on one rank."""

    problem: str = ""  # empty: it succeeded
    out_of_memory: bool = False
    missing_bytes: int | None = None

    def packed(self) -> bytes:
        """The same number of bytes for each: long words are cut."""
        words = self.problem.encode(errors="replace")[:_WORDS].decode(errors="ignore").encode()
        return _ENDED.pack(self.out_of_memory, -1 if self.missing_bytes is None else self.missing_bytes, words)

    @classmethod
    def unpacked(cls, sent: bytes) -> RankOutcome:
        out_of_memory, missing, words = _ENDED.unpack(sent)
        return cls(words.rstrip(b"\0").decode(), out_of_memory, None if missing < 0 else missing)


class RankMessages:
    """What the hosts send each other, in memory that is made once: there may be none left when it is needed.

    Arrays of the host, each with the tensor that is sent. No probe counts them, even if the device is the CPU.
    """

    def __init__(self, ranks: int) -> None:
        self.number = np.zeros(1, dtype=np.int64)
        self.seconds = np.zeros(1, dtype=np.float64)
        self.ended = np.zeros(_ENDED.size, dtype=np.uint8)
        self.all = np.zeros(ranks * _ENDED.size, dtype=np.uint8)
        self.digest = np.zeros(2, dtype=np.int64)
        self.digests = np.zeros(2 * ranks, dtype=np.int64)
        self.number_sent, self.seconds_sent = torch.from_numpy(self.number), torch.from_numpy(self.seconds)
        self.ended_sent, self.all_sent = torch.from_numpy(self.ended), torch.from_numpy(self.all)
        self.digest_sent, self.digests_sent = torch.from_numpy(self.digest), torch.from_numpy(self.digests)


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that share a model, seen from one of them."""

    rank: int
    size: int
    device: torch.device
    group: Any  # for tensors on the device: NCCL, or gloo on the CPU
    host_group: Any  # for numbers on the host: gloo
    owned: bool  # created here, hence destroyed here
    letters: RankMessages  # between the hosts

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
        size = dist.get_world_size()
        return cls(dist.get_rank(), size, place, dist.group.WORLD, host, owned, RankMessages(size))

    def leave(self) -> None:
        if self.owned and dist.is_initialized():
            dist.destroy_process_group()

    # -- numbers of the host that must be the same on all ranks -----------------------------------------------------

    def from_first(self, number: int) -> int:
        """Rank 0's number, on all ranks."""
        self.letters.number[0] = number
        return int(self._broadcast(self.letters.number_sent)[0])

    def clock(self) -> float:
        """Rank 0's `time.monotonic`, on all ranks."""
        self.letters.seconds[0] = time.monotonic()
        return float(self._broadcast(self.letters.seconds_sent)[0])

    def least(self, number: int) -> int:
        """The least of all ranks' numbers, on all ranks."""
        self.letters.number[0] = number
        with rank_errors():
            dist.all_reduce(self.letters.number_sent, dist.ReduceOp.MIN, group=self.host_group)
        return int(self.letters.number[0])

    def most(self, number: int) -> int:
        """The largest of all ranks' numbers, on all ranks."""
        return -self.least(-number)

    def all(self, condition: bool) -> bool:
        """Whether it holds on all ranks."""
        return bool(self.least(condition))

    def problem(self, mine: str) -> str:
        """What is wrong on some rank, in words that are the same on all; nothing where all is well everywhere."""
        found = [
            f"rank {rank}: {one.problem}" for rank, one in enumerate(self._gathered(RankOutcome(mine))) if one.problem
        ]
        return "; ".join(found)

    def broadcast_host(self, sent: torch.Tensor) -> list[int]:
        """The first rank's bytes of the host, on all ranks; all give a tensor of that size."""
        with rank_errors():
            dist.broadcast(sent, 0, group=self.host_group)
        return [int(one) for one in sent.tolist()]

    def broadcast_rows(self, rows: torch.Tensor) -> None:
        """The first rank's rows of a tensor on the device, into those of all ranks."""
        with rank_errors():
            dist.broadcast(rows, 0, group=self.group)

    def _broadcast(self, value: torch.Tensor) -> list[float]:
        with rank_errors():
            dist.broadcast(value, 0, group=self.host_group)
        return value.tolist()

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
            if not of_another_rank(error):
                with suppress(DeviceError):  # do not hide this rank's own error if the others no longer respond
                    self._gathered(RankOutcome(f"{type(error).__name__}: {first_line(error)}"))
            raise
        mine = RankOutcome() if short is None else RankOutcome(str(short), True, short.missing_bytes)
        worst = worst_end(what, self._gathered(mine))
        if worst is not None:
            raise worst from short

    def _gathered(self, mine: RankOutcome) -> list[RankOutcome]:
        """How it ended on every rank, by rank."""
        letters = self.letters
        letters.ended[:] = np.frombuffer(mine.packed(), dtype=np.uint8)
        with rank_errors():
            dist.all_gather_into_tensor(letters.all_sent, letters.ended_sent, group=self.host_group)
        return [RankOutcome.unpacked(one.tobytes()) for one in letters.all.reshape(self.size, -1)]

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


def worst_end(what: str, ended: list[RankOutcome]) -> DeviceError | None:
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
        if not of_another_rank(error):
            raise
        raise DeviceError(
            f"tensor parallelism: another rank has exited or timed out ({first_line(error)}); see its output"
        ) from error


def of_another_rank(error: BaseException) -> bool:
    """Whether torch.distributed or gloo raised this, because another rank has exited or timed out."""
    return isinstance(error, RuntimeError) and (isinstance(error, dist.DistError) or "gloo" in str(error))
