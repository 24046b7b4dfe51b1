"""The images of a dialogue that are elsewhere, fetched in processes of their own: a server far away may be slow.

What comes back is a data URI in the place of each URL, so all that is decoded has come the same way.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from concurrent.futures.process import BrokenProcessPool
from functools import partial

from brim.errors import DeviceError
from brim.serve.prepare.processes import processes
from brim.serve.prepare.remote.fetch import RemoteFile, Ways, fetch_all
from brim.serve.requests.dialogue import Dialogue
from brim.serve.settings import RequestLimits

_AT_ONCE = 8  # requests whose images are fetched at once; a process starts when the others are busy


class Fetching:
    """Fetches for all requests; processes start when they are first needed."""

    def __init__(self, new_pool: Callable[[], Executor] | None = None, ways: Ways | None = None) -> None:
        self._new_pool = new_pool or partial(processes, _AT_ONCE)
        self._ways = ways or Ways()
        self._pool: Executor | None = None

    async def fetched(self, dialogue: Dialogue, limits: RequestLimits) -> Dialogue:
        """The dialogue with all of its images in it."""
        wanted = {one.uri: RemoteFile(one.uri, one.path) for one in dialogue.images if one.remote}
        if not wanted:
            return dialogue
        self._pool = pool = self._pool or self._new_pool()
        work = partial(fetch_as_data, list(wanted.values()), limits, self._ways)
        try:
            found = await asyncio.get_running_loop().run_in_executor(pool, work)
        except BrokenProcessPool:
            self.close()
            raise DeviceError("a process that fetches images has died; ask again") from None
        return dialogue.with_uris(dict(zip(wanted, found, strict=True)))

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


def fetch_as_data(files: Sequence[RemoteFile], limits: RequestLimits, ways: Ways) -> list[str]:
    """In a process: the files as data URIs; their kind is found when they are decoded."""
    found = asyncio.run(
        fetch_all(files, ways, each=limits.image_bytes, together=limits.body_bytes, seconds=limits.fetch_seconds)
    )
    return [f"data:image/unknown;base64,{base64.b64encode(file).decode('ascii')}" for file in found]
