"""The order in which requests of many groups go to a server, so that its prefix cache hits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Item = TypeVar("Item")


class GroupQueue(Generic[Item]):
    """First in, first out within a group; across groups, one request of each first.

    Requests of one group share a prefix. Sent at the same moment they would all compute it; sent one after
    another the later ones find it in the server's cache. So ``take`` prefers a group that has been started and
    has nothing in flight, then a group not started yet, and only then a second request of a busy group.

        q = GroupQueue(); q.put("a", 1); q.put("a", 2); q.put("b", 3)
        q.take() -> ("a", 1), q.take() -> ("b", 3), q.take() -> ("a", 2)
    """

    def __init__(self) -> None:
        self._waiting: dict[Hashable, deque[Item]] = {}
        self._in_flight: dict[Hashable, int] = {}
        self._idle: deque[Hashable] = deque()
        self._fresh: deque[Hashable] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def put(self, group: Hashable, item: Item) -> None:
        """Add one item at the end of its group."""
        if group not in self._waiting:
            self._waiting[group] = deque()
            self._in_flight[group] = 0
            self._fresh.append(group)
        self._waiting[group].append(item)
        self._size += 1

    def take(self) -> tuple[Hashable, Item]:
        """The next item and its group, counted as in flight until ``done``. Raises ``IndexError`` when empty."""
        group = self._next_group()
        self._in_flight[group] += 1
        self._size -= 1
        return group, self._waiting[group].popleft()

    def done(self, group: Hashable) -> None:
        """One item of ``group`` is finished."""
        self._in_flight[group] -= 1
        if self._in_flight[group]:
            return
        if self._waiting[group]:
            self._idle.append(group)
        else:
            del self._waiting[group], self._in_flight[group]

    def _next_group(self) -> Hashable:
        for queue in (self._idle, self._fresh):
            while queue:
                group = queue.popleft()
                if self._waiting.get(group):
                    return group
        busy = [group for group, items in self._waiting.items() if items]
        if not busy:
            raise IndexError("the queue is empty")
        return min(busy, key=lambda group: self._in_flight[group])


class GroupGate:
    """Lets at most ``slots`` requests through at once, in the order of a ``GroupQueue``."""

    def __init__(self, slots: int):
        self._free = slots
        self._queue: GroupQueue[asyncio.Future[None]] = GroupQueue()

    @asynccontextmanager
    async def turn(self, group: Hashable) -> AsyncIterator[None]:
        """Wait for a slot and hold it for the length of the block."""
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        self._queue.put(group, granted)
        # Not at once: every request of a batch must stand in the queue before the first slot is given.
        loop.call_soon(self._grant)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._leave(group)
            raise
        try:
            yield
        finally:
            self._leave(group)

    def _leave(self, group: Hashable) -> None:
        self._queue.done(group)
        self._free += 1
        self._grant()

    def _grant(self) -> None:
        while self._free and len(self._queue):
            group, granted = self._queue.take()
            if granted.cancelled():
                self._queue.done(group)
                continue
            self._free -= 1
            granted.set_result(None)
