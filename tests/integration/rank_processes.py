"""Ranks in processes of their own, and what they tell a test, through a pipe each. None outlives the listening."""

from __future__ import annotations

import gc
import multiprocessing
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

LIMIT_SECONDS = 90.0  # no test takes a tenth of it on a machine of its own
PRELOADED = [
    "torch._dynamo",
    "transformers.distributed.tensor_parallel",
    "transformers.models.llama.modeling_llama",
    "tests.integration.rescue_ranks",
]


def forked() -> Any:
    """Processes are forked from one that has imported all that takes long, and started nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    return context


def on_ranks(
    context: Any, size: int, folder: Path, *tasks: tuple[Any, ...], limit_seconds: float = LIMIT_SECONDS
) -> list[dict[str, Any]]:
    """What each rank reports, by task (a name, what to call, its arguments)."""
    found: list[dict[str, Any]] = [{} for _ in range(size)]
    ends: dict[Any, int] = {}
    processes, holds = [], []
    for rank in range(size):
        here, there = context.Pipe(duplex=False)
        held, hold = context.Pipe(duplex=False)
        arguments = (rank, size, str(folder / "meeting"), tasks, there, held)
        processes.append(context.Process(target=run, args=arguments, daemon=True))
        processes[-1].start()
        there.close()
        ends[here] = rank
        holds.append(hold)
    listen(
        processes,
        ends,
        limit_seconds,
        lambda rank, said: found[rank].update([said]),
        enough=lambda: all(len(one) == len(tasks) for one in found),
    )
    return found


def said_of(reports: list[dict[str, Any]], task: str) -> list[Any]:
    """What all ranks said of a task, if all of them came to its end."""
    found = [report.get(task, "nothing was said") for report in reports]
    assert not [one for one in found if isinstance(one, str)], "\n".join(map(str, found))
    return found


def run(rank: int, size: int, meeting: str, tasks: tuple[Any, ...], reports: Connection, held: Connection) -> None:
    """A rank: do the tasks (a name, what to call, its arguments), report of each, and stay until the test is over."""
    import torch
    import torch.distributed as dist

    gc.freeze()  # all that was imported: collecting takes most of a small engine's time otherwise
    warnings.simplefilter("ignore", FutureWarning)  # names of collectives that torch is about to change
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=size)
    for name, task, *arguments in tasks:
        try:
            reports.send((name, task(rank, *arguments)))
        except BaseException:
            reports.send((name, traceback.format_exc()))
            raise
    held.recv()


def listen(
    processes: Sequence[Any],
    ends: dict[Any, int],
    seconds: float,
    hear: Callable[[int, Any], None],
    *,
    enough: Callable[[], bool] = lambda: False,
    gone: Callable[[int], None] = lambda rank: None,
) -> None:
    """Hand on what comes through `ends` (a pipe's end: its rank), until it is enough, all are gone, or time is up."""
    left = dict(ends)
    over = time.monotonic() + seconds
    try:
        while left and not enough() and time.monotonic() < over:
            ready: list[Any] = wait(list(left), timeout=over - time.monotonic())
            for end in ready:
                try:
                    said = end.recv()
                except EOFError:
                    gone(left.pop(end))
                else:
                    hear(left[end], said)
    finally:
        for process in processes:
            process.kill()
            process.join()
