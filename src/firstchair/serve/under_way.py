"""The requests under way, and their end: by themselves, because a client leaves, or because the process ends.

drain ─► no new ones ─► those under way end, for a while ─► what is left is cut short, and tells its client
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from starlette.types import Receive

CUT_S = 5.0
"""How long requests that were cut short may take to tell their clients."""

Result = TypeVar("Result")


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


class CutShort(Exception):
    """The process ends, and cannot wait for the answer any more."""


class UnderWay:
    """The requests of one server, on its event loop."""

    def __init__(self) -> None:
        self.is_stopping = False
        """No new request may begin."""
        self.cut = 0
        """Requests that the end of the process cut short."""
        self._requests: set[asyncio.Task[Any]] = set()
        self._works: set[asyncio.Future[Any]] = set()

    @property
    def running(self) -> int:
        """How many requests are under way."""
        return len(self._requests)

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """The task that this is called in answers a request."""
        task = asyncio.current_task()
        assert task is not None
        self._requests.add(task)
        try:
            yield
        finally:
            self._requests.discard(task)

    async def while_there(self, work: Coroutine[Any, Any, Result], receive: Receive) -> Result:
        """The result of ``work``. Raises ``ClientLeft`` when the client leaves before and ``CutShort`` at the end of
        ``drain``; then, and when it is cancelled itself, ``work`` is cancelled and has ended.
        """
        task, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_left(receive))
        self._works.add(task)
        try:
            await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ClientLeft
            if task.cancelled():
                raise CutShort
            return task.result()
        finally:
            self._works.discard(task)
            for one in (task, leaving):
                one.cancel()
            await asyncio.gather(task, leaving, return_exceptions=True)

    async def drain(self, within_s: float) -> None:
        """Let no new request begin, wait for those under way, and cut short what is left after ``within_s``."""
        self.is_stopping = True
        await self._wait(within_s)
        self.cut = len(self._works)
        for work in self._works:
            work.cancel()
        await self._wait(CUT_S)

    async def _wait(self, within_s: float) -> None:
        if self._requests:
            await asyncio.wait(self._requests, timeout=within_s)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
