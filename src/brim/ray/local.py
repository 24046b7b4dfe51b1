"""`brim serve --replicas N`: a Ray of this process' own, on this machine, until it is stopped.

In: the words of the command. The first SIGTERM or SIGINT drains, as without replicas: Ray Serve takes nothing new and
waits for answers under way. The second one ends at once.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import ray
from ray import serve

from brim.errors import DeviceError, InvalidRequest
from brim.ray.application import app
from brim.ray.arguments import AppArguments
from brim.units import MIB

_OBJECT_STORE_BYTES = 128 * MIB  # messages are small: what is streamed does not pass through it
_INTERRUPTED = 130
_OWN = ("--replicas", "--tp", "--config")  # of the application, and not of a replica as they are written


def serve_replicas(options: argparse.Namespace, words: Sequence[str], say: Callable[[str], object]) -> int:
    """Serve until a signal; the exit code. `words` are those of the command, without `brim serve`."""
    if options.port == 0:
        raise InvalidRequest("port is 0; with --replicas, give one that is free")
    arguments = _arguments(options, words)
    _start_ray(arguments)
    stopping = _stopped_by_signals()
    try:
        serve.start(http_options={"host": options.host, "port": options.port})
        say(f"starting {options.replicas} replicas of {options.model}; http://{options.host}:{options.port}/health")
        serve.run(app(arguments), route_prefix="/", blocking=False)
        say(f"ready: {options.replicas} replicas on http://{options.host}:{options.port}")
        stopping.wait()
        say("draining; a second signal ends at once")
        serve.shutdown()
    except RuntimeError as error:  # Ray Serve's word for a deployment that failed
        raise DeviceError(f"the replicas could not be started: {error}") from error
    finally:
        ray.shutdown()
    say("stopped")
    return 0


def _arguments(options: argparse.Namespace, words: Sequence[str]) -> AppArguments:
    """The application of this command: what is not the application's own goes to each replica as it was written."""
    own = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in _OWN:
        own.add_argument(name)
    _, others = own.parse_known_args(list(words))
    if options.model in others:
        others.remove(options.model)
    if options.config is not None:  # a replica need not have this folder as its own
        others += ["--config", str(options.config.absolute())]
    return AppArguments(
        model=options.model,
        options=shlex.join(others),
        replicas=options.replicas,
        gpus=1.0 if _gpus() else 0.0,
        cpus=0.0,  # this machine is shared by all of it
        tensor_parallel=options.tp,
    )


def _gpus() -> int:
    import torch

    return int(torch.cuda.device_count())


def _start_ray(arguments: AppArguments) -> None:
    needed, there = arguments.gpus * arguments.tensor_parallel * arguments.replicas, _gpus()
    if needed > there:
        raise InvalidRequest(
            f"replicas is {arguments.replicas}, which take {needed:g} GPUs, and there are {there}; ask for fewer"
        )
    ray.init(
        num_cpus=max(1, os.cpu_count() or 1),
        num_gpus=there,
        include_dashboard=False,
        object_store_memory=_OBJECT_STORE_BYTES,
        log_to_driver=True,
        logging_level="ERROR",
    )


def _stopped_by_signals() -> threading.Event:
    stopping = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if stopping.is_set():
            os._exit(_INTERRUPTED)
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    return stopping
