"""The other ranks of a replica that is split over several GPUs: actors in the replica's placement group.

The replica is rank 0. Each actor loads, fits and builds its part beside it, on this machine or on another one: ranks
meet over TCP and agree on the smallest size (`brim.fit.ranks`). Then they do what the first does, in the order of its
calls. Actors end with the replica; a replica whose rank has ended is not healthy, and is started again as a whole.
"""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from brim.errors import BrimError, DeviceError
from brim.ray.arguments import ModelArguments
from brim.records.progress import silent

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup

_UNCHECKED = 64  # orders: their results are looked at as they come


def rank_environment(rank: int, ranks: int, address: str, port: int) -> dict[str, str]:
    """What torchrun would set; not how many are on one machine, which Ray decides.

    Ray shows each process its own GPU only, which is the first it sees.
    """
    return {
        "RANK": str(rank),
        "LOCAL_RANK": "0",
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


class RankActor:
    """One rank: an engine that follows."""

    def __init__(self, arguments: dict[str, Any], environment: dict[str, str]) -> None:
        os.environ.update(environment)
        self._arguments = ModelArguments(**arguments)
        self._leased = ExitStack()
        self._engine: Any = None

    def start(self) -> None:
        """Load and fit beside the other ranks."""
        from brim.cli.fit import fit_wishes
        from brim.cli.serve import EngineStarter
        from brim.serve.service import Loaded

        options = self._arguments.serve_options()
        starter = EngineStarter(options, fit_wishes(options), self._leased, lambda line: None)
        loaded = starter.load(silent)
        assert isinstance(loaded, Loaded), "a model that embeds or scores has one rank"
        starter.fit(loaded, silent)
        self._engine = self._leased.enter_context(loaded.engine)

    def do(self, name: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        try:
            getattr(self._engine, name)(*arguments, **options)
        except BrimError:
            if name == "step":
                raise  # a request that is refused here is refused by the first rank too

    def close(self) -> None:
        self._leased.close()


class RankActors:
    """All ranks but the first."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors
        self._pending: list[Any] = [actor.start.remote() for actor in actors]

    @classmethod
    def start(cls, chosen: ModelArguments) -> RankActors:
        """This process becomes rank 0; a rank starts in each other bundle of its placement group."""
        group = ray.util.get_current_placement_group()
        ranks = chosen.tensor_parallel
        if group is None or len(group.bundle_specs) < ranks:
            raise DeviceError(f"tensor_parallel is {ranks}, and the replica's placement group has no bundle for each")
        address, port = ray.util.get_node_ip_address(), _free_port()
        os.environ.update(rank_environment(0, ranks, address, port))
        made = ray.remote(RankActor)
        actors = [
            made.options(num_cpus=chosen.cpus, num_gpus=chosen.gpus, scheduling_strategy=_bundle(group, rank)).remote(
                chosen.model_dump(), rank_environment(rank, ranks, address, port)
            )
            for rank in range(1, ranks)
        ]
        return cls(actors)

    def tell(self, name: str, *arguments: Any, **options: Any) -> None:
        """Have all of them do it. Ray keeps the order of one caller's calls."""
        self._pending += [actor.do.remote(name, arguments, options) for actor in self._actors]
        if len(self._pending) > _UNCHECKED:
            self.check()

    def check(self) -> None:
        """Raise where a rank has failed or ended."""
        if not self._pending:
            return
        done, self._pending = ray.wait(self._pending, num_returns=len(self._pending), timeout=0)
        try:
            ray.get(done)
        except ray.exceptions.RayError as error:
            raise DeviceError(f"another rank has failed or ended: {error}") from error

    def close(self) -> None:
        for actor in self._actors:
            ray.kill(actor)


def _bundle(group: PlacementGroup, rank: int) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)


def _free_port() -> int:
    """On this machine, for the ranks to meet at."""
    with socket.socket() as found:
        found.bind(("", 0))
        return int(found.getsockname()[1])
