"""Encoders of an engine that is split over ranks: the first rank has them, and all learn the same at the same turn.

Every rank's store asks for the same media in the same order, so that a part is known by its number. What has become of
parts is told by the first rank whenever requests wait for features (`poll`, which all ranks then call); the features
themselves are sent by the store, from its memory to that of the others. A start that failed is not looked at where
requests are taken, where ranks would see it at different times: their media fail instead, on all ranks alike.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from brim.engine.encoders.pool import Encoded, EncoderFigures, Encoders, Job, NotEncoded
from brim.engine.encoders.records import TowerFacts
from brim.engine.media.parts import MediaPart

if TYPE_CHECKING:
    from brim.engine.ranks.ranks import Ranks


_NOBODYS = "nobody waits for it"


def _nothing() -> None:
    """There is no memory to give back."""


def _known(job: Job, numbers: Mapping[int, int]) -> Job:
    return job if id(job) in numbers else replace(job, key=_NOBODYS)


class RankEncoders:
    """The encoders as one rank sees them; `encoders` is None on all but the first."""

    refusal = ""

    def __init__(self, ranks: Ranks, encoders: Encoders | None) -> None:
        self._ranks = ranks
        self._encoders = encoders
        self._jobs: dict[int, Job] = {}  # by number: asked for, and nothing has become of them
        self._asked = 0
        facts = None if encoders is None else encoders.facts.to_json()
        self.facts = TowerFacts.from_json(self._from_first(facts))

    @property
    def figures(self) -> EncoderFigures:
        return EncoderFigures() if self._encoders is None else self._encoders.figures

    @property
    def problem(self) -> str:
        return "" if self._encoders is None else self._encoders.problem

    @property
    def working(self) -> bool:
        return bool(self._jobs)

    def submit(self, job: Job) -> None:
        self._asked += 1
        self._jobs[self._asked] = job
        if self._encoders is not None:
            self._encoders.submit(job)

    def drop(self, key: Hashable) -> None:
        self._jobs = {number: job for number, job in self._jobs.items() if job.key != key}
        if self._encoders is not None:
            self._encoders.drop(key)

    def tend(self) -> None:
        """Nobody waits: look after the encoders, where they are, and leave what they still made."""
        if self._encoders is not None:
            for encoded in self._encoders.poll()[0]:
                encoded.release()

    def poll(self) -> tuple[list[Encoded], list[NotEncoded]]:
        """What has come back, the same on all ranks; only the first has features of it."""
        done, failed = ([], []) if self._encoders is None else self._encoders.poll()
        numbers = {id(job): number for number, job in self._jobs.items()}
        told = self._from_first(
            {
                "done": [[numbers.get(id(job), 0) for job in one.jobs] for one in done],
                "failed": [[numbers.get(id(one.job), 0), one.why, one.passing] for one in failed],
            }
            if done or failed
            else None
        )
        if told is None:
            return [], []
        if self._encoders is None:
            done = [Encoded(tuple(self._job(one) for one in batch), None, _nothing) for batch in told["done"]]
        else:  # what was dropped and is asked for again is another part: the others know the new one only
            done = [replace(one, jobs=tuple(_known(job, numbers) for job in one.jobs)) for one in done]
        failed = [NotEncoded(self._job(number), why, passing) for number, why, passing in told["failed"]]
        for number in (*(one for batch in told["done"] for one in batch), *(one[0] for one in told["failed"])):
            self._jobs.pop(number, None)
        return done, failed

    def wait(self, seconds: float) -> None:
        if self._encoders is not None:  # the others wait for the first
            self._encoders.wait(seconds)

    def close(self) -> None:
        if self._encoders is not None:
            self._encoders.close()

    def _job(self, number: int) -> Job:
        return self._jobs.get(number) or Job(_NOBODYS, MediaPart({}, 0))

    def _from_first(self, said: Any) -> Any:
        """What the first rank says, on all of them."""
        words = b"" if said is None else json.dumps(said).encode()
        size = self._ranks.from_first(len(words))
        if size == 0:
            return None
        sent = torch.frombuffer(bytearray(words.ljust(size, b"\0")), dtype=torch.uint8)
        return json.loads(bytes(self._ranks.broadcast_host(sent)))
