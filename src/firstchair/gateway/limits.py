"""What a key may use: requests and tokens per minute, counted in each worker, and money, counted in the database.

A rate of a key is divided by the number of workers, because the kernel spreads connections over them. So a limit of
60 a minute on 4 workers is 15 in each: never more than 60 together, sometimes fewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from firstchair.core.errors import FirstchairError
from firstchair.gateway.control.snapshot import Key
from firstchair.gateway.dialects.base import Failure, FailureKind

MINUTE_S = 60.0
BOOK_WAIT_S = 5.0
"""How long a call waits for the database to say what is left of its key's budget."""
_BOOK_THREADS = 4
MAX_ASKING = 256
"""Calls that have asked a book which hangs; further ones do not ask."""
_PAY_AGAIN_S = 1.0
_MAX_OWED_NANO = 10**18
"""A billion dollars: the database holds 64 bits."""
T = TypeVar("T")


class _Bucket:
    """Fills evenly up to ``capacity`` a minute; may be overdrawn, because what a call costs is known at its end."""

    __slots__ = ("_at", "_level", "capacity")

    def __init__(self, capacity: float, now: float):
        self.capacity = self._level = capacity
        self._at = now

    def wait_s(self, need: float, now: float) -> float:
        """Seconds until ``need`` is there; 0: now."""
        self._level = min(self.capacity, self._level + (now - self._at) * self.capacity / MINUTE_S)
        self._at = now
        missing = min(need, self.capacity) - self._level
        return missing * MINUTE_S / self.capacity if missing > 1e-9 else 0.0

    def take(self, amount: float) -> None:
        self._level = min(self.capacity, self._level - amount)


class RateLimits:
    """Rates of all keys in one worker. Times in seconds."""

    def __init__(self, workers: int):
        self._workers = workers
        self._requests: dict[str, _Bucket] = {}
        self._tokens: dict[str, _Bucket] = {}

    def admit(self, key: Key, tokens: int | None, now: float) -> Failure | None:
        """Count one request of about ``tokens``, ``None``: of one that uses none; the failure when it must wait."""
        requests = self._bucket(self._requests, key.key_id, key.requests_per_minute, now)
        minute = self._bucket(self._tokens, key.key_id, key.tokens_per_minute, now) if tokens is not None else None
        wait_s = requests.wait_s(1, now) if requests else 0.0
        what = f"{key.requests_per_minute} requests"
        # A prompt that is longer than a minute's worth has to pass at some time: one token left is enough.
        if minute and (wait := minute.wait_s(1, now)) > wait_s:
            wait_s, what = wait, f"{key.tokens_per_minute} tokens"
        if wait_s:
            return Failure(
                kind=FailureKind.RATE_LIMIT,
                message=f"this key may use {what} a minute; wait {wait_s:.1f} s",
                retry_after_s=wait_s,
            )
        if requests:
            requests.take(1)
        if minute and tokens is not None:
            minute.take(tokens)
        return None

    def settle(self, key: Key, admitted: int, used: int) -> None:
        """Replace the estimate by what the call has used."""
        bucket = self._tokens.get(key.key_id)
        if bucket:
            bucket.take(used - admitted)

    def _bucket(self, buckets: dict[str, _Bucket], key_id: str, per_minute: int | None, now: float) -> _Bucket | None:
        if per_minute is None:
            buckets.pop(key_id, None)
            return None
        capacity = max(1.0, per_minute / self._workers)
        bucket = buckets.get(key_id)
        if bucket is None or bucket.capacity != capacity:
            bucket = buckets[key_id] = _Bucket(capacity, now)
        return bucket


class BudgetBook(Protocol):
    """The part of the control store that keeps budgets."""

    def reserve(self, key_id: str, nano: int) -> bool: ...

    def settle(self, key_id: str, reserved: int, actual: int) -> None: ...


class Reservation(NamedTuple):
    """Money set aside for a running call; ``nano`` is ``None`` when the book could not be read."""

    key_id: str
    nano: int | None


class Budgets:
    """Admission of calls whose key has a budget: set an estimate aside, put what it really was in its place.

        reserve ── at most ``BOOK_WAIT_S`` ──▶ threads of its own ──▶ book      late: given back
        settle ──▶ what is owed, a sum a key ── one at a time, until it works ──▶ book

    So a book that hangs holds no call for longer, takes no thread from anybody else, and fills no memory.
    """

    def __init__(
        self, book: BudgetBook, when_unreadable: Literal["allow", "refuse"], on_unreadable: Callable[[], None]
    ):
        self._book = book
        self._allow = when_unreadable == "allow"
        self._on_unreadable = on_unreadable
        self._threads = ThreadPoolExecutor(_BOOK_THREADS, thread_name_prefix="budgets")
        self._asking: set[asyncio.Future[bool]] = set()
        self._owed: dict[str, tuple[int, int]] = {}
        """Reserved and spent, by key, that the book has not heard of."""
        self._payer: asyncio.Task[None] | None = None
        self._closing = False

    async def reserve(self, key: Key, nano: int) -> Reservation | Failure:
        """Set ``nano`` aside."""
        granted = await self._ask(key.key_id, nano)
        if granted is None:
            self._on_unreadable()
            if self._allow:
                return Reservation(key.key_id, None)
            return Failure(
                kind=FailureKind.SERVER_ERROR, message="the budget of this key cannot be read just now; try again"
            )
        if granted:
            return Reservation(key.key_id, nano)
        return Failure(kind=FailureKind.BUDGET, message="the budget of this key is used up; ask for a larger one")

    def settle(self, reservation: Reservation, actual_nano: int) -> None:
        """Replace the reservation by the cost, soon."""
        self._owe(reservation.key_id, reservation.nano or 0, actual_nano)

    async def close(self) -> None:
        """Settle what is owed, if the book takes it; what stays reserved counts as spent once the worker is gone."""
        self._closing = True
        if self._payer is not None:
            await asyncio.wait({self._payer}, timeout=BOOK_WAIT_S)

    async def _ask(self, key_id: str, nano: int) -> bool | None:
        """Whether it was set aside; ``None`` when the book does not say."""
        if len(self._asking) >= MAX_ASKING:
            return None
        asked = self._in_thread(self._book.reserve, key_id, nano)
        self._asking.add(asked)
        asked.add_done_callback(self._asking.discard)
        try:
            await asyncio.wait({asked}, timeout=BOOK_WAIT_S)
        finally:
            if not asked.done():
                asked.add_done_callback(partial(self._came_late, key_id, nano))
        if not asked.done() or isinstance(asked.exception(), FirstchairError):
            return None
        return asked.result()

    def _came_late(self, key_id: str, nano: int, asked: asyncio.Future[bool]) -> None:
        if not asked.cancelled() and asked.exception() is None and asked.result():
            self._owe(key_id, nano, 0)

    def _owe(self, key_id: str, reserved: int, actual: int) -> None:
        if not reserved and not actual:
            return
        before = self._owed.get(key_id, (0, 0))
        self._owed[key_id] = (before[0] + reserved, min(before[1] + actual, _MAX_OWED_NANO))
        if self._payer is None or self._payer.done():
            self._payer = asyncio.get_running_loop().create_task(self._pay())

    async def _pay(self) -> None:
        while self._owed:
            key_id, (reserved, actual) = self._owed.popitem()
            try:
                await self._in_thread(self._book.settle, key_id, reserved, actual)
            except FirstchairError:
                self._on_unreadable()
                self._owe(key_id, reserved, actual)
                if self._closing:
                    return
                await asyncio.sleep(_PAY_AGAIN_S)

    def _in_thread(self, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        return asyncio.wrap_future(self._threads.submit(work, *args))
