"""The replicas of one model behind a handle of Ray Serve's; Ray's errors are translated here, and nowhere else."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from brim.errors import first_line
from brim.ray.replica_facts import ReplicaFacts, ReplicaLost
from brim.ray.wire import Messages, Sending, Whole

if TYPE_CHECKING:
    from ray.serve.handle import DeploymentHandle

_EVERY_SECONDS = 10.0


class HandleReplicas:
    """All replicas of one deployment."""

    def __init__(self, handle: DeploymentHandle[Any]) -> None:
        self._handle = handle
        self._streaming = handle.options(stream=True, method_name="answer")

    async def stream(self, sending: Sending, scope: dict[str, Any], body: bytes) -> AsyncGenerator[Messages, None]:
        response = self._streaming.remote(sending, scope, body)
        done = False
        try:
            async for messages in response:
                yield messages
            done = True
        except (RayError, RayServeException) as error:
            done = True
            raise ReplicaLost(_said(error)) from error
        finally:
            if not done:
                response.cancel()

    async def every(self, scope: dict[str, Any], body: bytes) -> list[Whole]:
        try:
            found = await self._handle.broadcast("whole", scope, body).results_async(
                timeout_s=_EVERY_SECONDS, return_exceptions=True
            )
        except (TimeoutError, RayError, RayServeException):
            return []
        return [one for one in found if isinstance(one, Whole)]

    async def facts(self) -> ReplicaFacts:
        try:
            found: ReplicaFacts = await self._handle.facts.remote()
        except (RayError, RayServeException) as error:
            raise ReplicaLost(_said(error)) from error
        return found


def _said(error: Exception) -> str:
    """Ray's messages are pages long."""
    if isinstance(error, RayTaskError):
        return first_line(error.cause) if isinstance(error.cause, BaseException) else "an error inside of it"
    return type(error).__name__
