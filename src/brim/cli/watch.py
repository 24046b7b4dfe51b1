"""`brim watch`: a recording of a server that has no Brim in it, for `brim explain`."""

from __future__ import annotations

import argparse
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli.top import KEY_VARIABLE
from brim.errors import BrimError, InvalidRequest
from brim.folders import recordings_folder
from brim.monitor.server import DEFAULT_URL, checked_url
from brim.probes.visible import visible_gpus

if TYPE_CHECKING:
    from brim.cli.options import Commands
    from brim.probes.visible import VisibleGpu

_NOT_THERE = 1


def add_command(commands: Commands) -> None:
    parser = commands.add_parser(
        "watch",
        help="record a server from outside: its metrics, the device and its log",
        description="Beside a server without Brim: once a second its /metrics, who holds what of the GPU by NVML, and "
        "lines of its log that are about memory, as a recording for brim explain. Ends with Ctrl-C, or --seconds.",
    )
    parser.set_defaults(run=run)
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=f"the server ({DEFAULT_URL})")
    parser.add_argument("--api-key", metavar="KEY", help=f"its key, where it has one ({KEY_VARIABLE})")
    parser.add_argument("--pid", type=int, metavar="PID", help="its process: who else is on the GPU is then known")
    parser.add_argument("--log", type=Path, metavar="FILE", help="its log, read as it grows")
    parser.add_argument("--gpu", type=int, default=0, metavar="N", help="which GPU of this machine (0)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="where (a file among those that Brim keeps)")
    parser.add_argument("--engine", default="vllm", metavar="NAME", help="what it is (vllm)")
    parser.add_argument("--seconds", type=float, metavar="S", help="end after so long")


def run(options: argparse.Namespace) -> int:
    from brim.explain.watching import EVERY_SECONDS, ServerRecorder, metrics_of
    from brim.record.writer import open_in_folder, open_recording

    url, key = checked_url(options.url), options.api_key or os.environ.get(KEY_VARIABLE)
    if options.log is not None and not options.log.is_file():
        raise InvalidRequest(f"log '{options.log}' is no file; name the log that the server writes")
    if options.seconds is not None and not options.seconds > 0:
        raise InvalidRequest(f"seconds is {options.seconds:g}; it must be above 0")
    gpu = _gpu(options.gpu)
    made = open_in_folder(recordings_folder(), "watch") if options.record is None else open_recording(options.record)
    recorder = ServerRecorder(
        made, partial(metrics_of, url, key), gpu=gpu.uuid if gpu else None, pid=options.pid, log=options.log
    )
    print(f"recording {url} in {made.path}", file=sys.stderr)
    until = None if options.seconds is None else time.monotonic() + options.seconds
    answered = False
    try:
        recorder.start(options.engine, "", gpu.total_bytes if gpu else 0)
        while until is None or time.monotonic() < until:
            answered = recorder.look() or answered
            time.sleep(EVERY_SECONDS)
    except KeyboardInterrupt:
        pass
    finally:
        recorder.close()
    if not answered:
        print(f"brim watch: {url}/metrics never answered; say where the server is with --url", file=sys.stderr)
    return 0 if answered else _NOT_THERE


def _gpu(number: int) -> VisibleGpu | None:
    """A GPU of this machine; None, with a line on standard error, where there is no driver to ask."""
    try:
        found = visible_gpus()
    except BrimError as error:
        print(f"brim watch: the device is not recorded: {error}", file=sys.stderr)
        return None
    if not 0 <= number < len(found):
        raise InvalidRequest(f"gpu is {number}; this machine shows {len(found)}, from 0")
    return found[number]
