"""A database that hangs while keys have budgets and rates: bounded waits, bounded memory, and no dollar twice."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import create_engine, text

from firstchair.gateway import limits
from firstchair.gateway.control.keys import KeyLimits
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Reply, Script

CALLS = 30
COST = 10 * 3000 + 5 * 15_000
"""Nano-USD of a scripted answer: 10 tokens in, 5 out, at Sonnet's prices."""
BODY = {"model": "main", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}


@pytest.fixture(params=["sqlite", "postgres"])
def database(request, tmp_path):
    if request.param == "sqlite":
        return str(tmp_path / "gateway.db")
    return request.getfixturevalue("gateway_postgres")


@contextmanager
def blocked(database):
    """Somebody else holds what every budget is read from."""
    if "://" in database:
        engine = create_engine(database)
        with engine.connect() as connection, connection.begin() as transaction:
            connection.execute(text("LOCK TABLE gateway_budgets, gateway_info IN ACCESS EXCLUSIVE MODE"))
            yield
            transaction.rollback()
        engine.dispose()
    else:
        other = sqlite3.connect(database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
        other.close()


def ask(running, key=None, **more):
    return httpx.post(running.url + "/v1/messages", json={**BODY, **more}, headers={"x-api-key": key or running.key})


def gateway(tmp_path, upstream, database, key_limits, policy):
    slot = {"slot": "main", "primary": {"provider": "up", "model": "claude-sonnet-4-6"}}
    auth = {"on_unreadable_budget": policy}
    providers = {"up": provider(upstream.base_url, "anthropic")}
    return running_gateway(tmp_path, providers, [slot], key_limits, database=database, auth=auth)


def spend(running):
    return running.store.spend(running.store.snapshot().key(running.key).key_id)


@pytest.mark.parametrize("policy", ["refuse", "allow"])
def test_a_budget_that_cannot_be_read_holds_no_call_and_is_right_again_afterwards(
    tmp_path, upstream, database, monkeypatch, policy
):
    monkeypatch.setattr(limits, "BOOK_WAIT_S", 0.2)
    monkeypatch.setattr(limits, "MAX_ASKING", 8)
    budget = KeyLimits(budget_nano=10**9)
    with gateway(tmp_path, upstream, database, budget, policy) as running:
        free = running.store.create_key("free", who="test").secret
        assert running.store.wait_for_workers(running.store.revision(), 60) == ()
        with blocked(database):
            with ThreadPoolExecutor(CALLS) as pool:
                statuses = [answer.status_code for answer in pool.map(lambda _: ask(running), range(CALLS))]
            assert statuses == [500 if policy == "refuse" else 200] * CALLS
            # Nobody else waits, a large body least of all: its record is written off the event loop.
            large = {"messages": [{"role": "user", "content": "x" * 1_100_000}]}
            assert [ask(running, free).status_code, ask(running, free, **large).status_code] == [200, 200]
            assert len(running.worker.budgets._asking) <= 8
            assert running.worker.counters["budget_unreadable"] >= CALLS
        monkeypatch.setattr(limits, "BOOK_WAIT_S", 60)  # it can be read again: a busy machine may take its time
        running.wait_until(lambda: not running.worker.budgets._asking and not running.worker.budgets._owed)
        assert ask(running).status_code == 200
        cost = COST * (CALLS + 1 if policy == "allow" else 1)
        running.wait_until(lambda: spend(running) == (cost, 0))
        assert len(upstream.requests) == CALLS * (policy == "allow") + 3


def test_what_cannot_be_settled_stays_set_aside_until_it_can(tmp_path, upstream, database):
    """An answer comes while the database hangs: its cost is neither lost nor counted twice."""
    upstream.script = Script((Reply(text="Hello.", fault=Fault("hang_before_headers")),))
    with (
        gateway(tmp_path, upstream, database, KeyLimits(budget_nano=10**9), "refuse") as running,
        ThreadPoolExecutor(3) as pool,
    ):
        calls = [pool.submit(ask, running) for _ in range(3)]
        upstream.wait_until(lambda it: it.holding == 3, 60)
        aside = spend(running).reserved_nano
        with blocked(database):
            upstream.release()
            assert [call.result().status_code for call in calls] == [200] * 3
        running.wait_until(lambda: spend(running) == (3 * COST, 0))
        assert aside >= 3 * COST


def test_a_rate_is_kept_while_the_budget_cannot_be_read(tmp_path, upstream, database, monkeypatch):
    monkeypatch.setattr(limits, "BOOK_WAIT_S", 0.1)
    rate = KeyLimits(budget_nano=10**9, requests_per_minute=3)
    with gateway(tmp_path, upstream, database, rate, "allow") as running, blocked(database):
        statuses = [ask(running).status_code for _ in range(5)]
    assert statuses == [200] * 3 + [429] * 2
