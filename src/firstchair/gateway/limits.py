"""What a key may use: requests and tokens per minute, counted in each worker, and money, counted in the database.

A rate of a key is divided by the number of workers, because the kernel spreads connections over them. So a limit of
60 a minute on 4 workers is 15 in each: never more than 60 together, sometimes fewer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Literal, NamedTuple, Protocol

from firstchair.core.errors import FirstchairError
from firstchair.gateway.control.snapshot import Key
from firstchair.gateway.dialects.base import Failure, FailureKind

MINUTE_S = 60.0


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
    """Admission of calls whose key has a budget: set an estimate aside, put what it really was in its place."""

    def __init__(
        self, book: BudgetBook, when_unreadable: Literal["allow", "refuse"], on_unreadable: Callable[[], None]
    ):
        self._book = book
        self._allow = when_unreadable == "allow"
        self._on_unreadable = on_unreadable

    async def reserve(self, key: Key, nano: int) -> Reservation | Failure:
        """Set ``nano`` aside."""
        try:
            granted = await asyncio.to_thread(self._book.reserve, key.key_id, nano)
        except FirstchairError:
            self._on_unreadable()
            if self._allow:
                return Reservation(key.key_id, None)
            return Failure(
                kind=FailureKind.SERVER_ERROR, message="the budget of this key cannot be read just now; try again"
            )
        if granted:
            return Reservation(key.key_id, nano)
        return Failure(kind=FailureKind.BUDGET, message="the budget of this key is used up; ask for a larger one")

    async def settle(self, reservation: Reservation, actual_nano: int) -> None:
        """Replace the reservation by the cost."""
        if reservation.nano is None and not actual_nano:
            return
        try:
            await asyncio.to_thread(self._book.settle, reservation.key_id, reservation.nano or 0, actual_nano)
        except FirstchairError:
            self._on_unreadable()
