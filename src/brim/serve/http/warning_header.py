"""An application whose responses say in a header what was ignored of their requests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from brim.serve.requests.answer_warnings import collected_warnings

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

WARNING_HEADER = b"x-brim-warning"


class WarningHeaderApp:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with collected_warnings() as found:

            async def send_warned(message: Message) -> None:
                if message["type"] == "http.response.start" and found.texts:
                    message = {**message, "headers": [*message["headers"], (WARNING_HEADER, found.header)]}
                await send(message)

            await self._app(scope, receive, send_warned)
