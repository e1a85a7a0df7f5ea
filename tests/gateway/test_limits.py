"""Rates per key in a worker, and budgets through the book that all workers share."""

import asyncio

from firstchair.core.errors import UpstreamError
from firstchair.gateway.control.snapshot import Key
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.limits import Budgets, RateLimits, Reservation


def key(**fields) -> Key:
    return Key(key_id="k1", name="n", digest=b"\1" * 32, scopes=frozenset({"call"}), **fields)


def test_requests_are_refused_when_the_minute_is_used_up_and_come_back_evenly():
    limits, who = RateLimits(workers=1), key(requests_per_minute=3)
    assert [limits.admit(who, 0, 0.0) for _ in range(3)] == [None] * 3
    refused = limits.admit(who, 0, 0.0)
    assert refused is not None
    assert refused.kind is FailureKind.RATE_LIMIT
    assert refused.retry_after_s == 20
    assert limits.admit(who, 0, 20.0) is None
    assert limits.admit(who, 0, 20.0) is not None


def test_a_rate_is_divided_by_the_workers():
    limits, who = RateLimits(workers=4), key(requests_per_minute=8)
    assert [limits.admit(who, 0, 0.0) is None for _ in range(3)] == [True, True, False]


def test_tokens_are_counted_by_what_was_used_in_the_end():
    limits, who = RateLimits(workers=1), key(tokens_per_minute=600)
    assert limits.admit(who, 500, 0.0) is None
    limits.settle(who, 500, 100)
    assert limits.admit(who, 490, 0.0) is None
    limits.settle(who, 490, 700)
    refused = limits.admit(who, 1, 0.0)
    assert refused is not None
    assert "600 tokens" in refused.message
    assert limits.admit(who, 1, 21.0) is None


def test_a_prompt_longer_than_a_minute_passes_and_the_next_one_waits():
    limits, who = RateLimits(workers=1), key(tokens_per_minute=60)
    assert limits.admit(who, 600, 0.0) is None
    assert limits.admit(who, 1, 60.0) is not None
    assert limits.admit(who, 1, 541.0) is None


def test_a_key_without_limits_is_never_refused_and_costs_no_memory():
    limits, who = RateLimits(workers=1), key()
    assert all(limits.admit(who, 10**9, 0.0) is None for _ in range(1000))
    assert not limits._requests
    assert not limits._tokens


def test_a_changed_limit_counts_from_the_next_request():
    limits = RateLimits(workers=1)
    assert limits.admit(key(requests_per_minute=1), 0, 0.0) is None
    assert limits.admit(key(requests_per_minute=1), 0, 0.0) is not None
    assert limits.admit(key(requests_per_minute=2), 0, 0.0) is None


class Book:
    """A budget of ``left`` nano-dollars; ``gone`` when the database is."""

    def __init__(self, left: int, gone: bool = False):
        self.left, self.gone = left, gone

    def reserve(self, key_id: str, nano: int) -> bool:
        if self.gone:
            raise UpstreamError("no database")
        if nano > self.left:
            return False
        self.left -= nano
        return True

    def settle(self, key_id: str, reserved: int, actual: int) -> None:
        if self.gone:
            raise UpstreamError("no database")
        self.left += reserved - actual


def test_a_budget_sets_the_estimate_aside_and_settles_for_the_cost():
    book, fired = Book(100), []
    budgets = Budgets(book, "refuse", lambda: fired.append(1))

    async def run():
        first = await budgets.reserve(key(), 80)
        assert first == Reservation("k1", 80)
        second = await budgets.reserve(key(), 30)
        assert second.kind is FailureKind.BUDGET
        budgets.settle(first, 50)
        await budgets.close()
        assert book.left == 50

    asyncio.run(run())
    assert not fired


def test_an_unreadable_budget_follows_the_rule_and_is_counted():
    fired = []
    closed = Budgets(Book(100, gone=True), "refuse", lambda: fired.append("refuse"))
    opened = Budgets(Book(100, gone=True), "allow", lambda: fired.append("allow"))

    async def run():
        refused = await closed.reserve(key(), 1)
        assert refused.kind is FailureKind.SERVER_ERROR
        allowed = await opened.reserve(key(), 1)
        assert allowed == Reservation("k1", None)
        opened.settle(allowed, 5)
        await opened.close()

    asyncio.run(run())
    assert fired == ["refuse", "allow", "allow"]
