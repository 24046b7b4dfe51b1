"""The answers that are not complete: events of the loop go in, updates for clients come out.

An event is gone when its update has been made, and nothing that became known is lost where making one raises.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from brim.engine.front.answers import Answer, Update
from brim.engine.requests.request import FinishReason
from brim.engine.schedule.events import SequenceEvent
from brim.errors import InvalidRequest

if TYPE_CHECKING:
    from brim.engine.schedule.scheduler import Scheduler


class OpenAnswers:
    """Answers by the id of their request."""

    def __init__(self) -> None:
        self.updates: list[Update] = []  # made, and not handed out yet
        self._answers: dict[str, Answer] = {}
        self._numbers = iter(range(1 << 62))

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._answers

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(self._answers)

    def free_id(self, wanted: str | None) -> str:
        """The id that was asked for, or a new one; one that is in use is refused."""
        if wanted is None:
            return next(name for number in self._numbers if (name := f"request-{number}") not in self._answers)
        if not isinstance(wanted, str) or not wanted:
            raise InvalidRequest(f"request_id {wanted!r}: a name that is not empty is needed")
        if wanted in self._answers:
            raise InvalidRequest(f"request_id '{wanted}' is in use by a request that has not ended")
        return wanted

    def add(self, answer: Answer) -> None:
        self._answers[answer.request_id] = answer

    def cancel(self, request_id: str, scheduler: Scheduler) -> None:
        """End a request, whatever has become of it."""
        for index in range(self._answers[request_id].count):
            sequence = scheduler.find((request_id, index))
            if sequence is not None:
                scheduler.finish(sequence, FinishReason.CANCELLED)
        del self._answers[request_id]

    def take_in(self, events: deque[SequenceEvent], scheduler: Scheduler) -> None:
        """Make an update of each event."""
        while events:
            event = events[0]
            answer = self._answers.get(event.sequence.request.id)
            if answer is None or not answer.awaits(event.sequence.request):
                events.popleft()  # it ended in the meantime
                continue
            self._settle(events, answer, answer.settled(event), scheduler)

    def _settle(self, events: deque[SequenceEvent], answer: Answer, update: Update, scheduler: Scheduler) -> None:
        """The event has been taken: hand its update out, and let go of what has ended. Cannot fail."""
        event = events.popleft()
        self.updates.append(update)
        if update.completion is not None:
            scheduler.finish(event.sequence, update.completion.finish_reason)
        if answer.complete:
            del self._answers[answer.request_id]

    def hand_out(self) -> list[Update]:
        """The updates that were made since the last call."""
        updates, self.updates = self.updates, []
        return updates
