"""Two gateways on one PostgreSQL: what is changed through one holds on the next request of the other."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from sqlalchemy import create_engine, text

from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.control.slots import Route
from firstchair.testing.gateway_server import RunningGateway, provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Reply, Script

BODY = {"model": "main", "max_tokens": 1000, "messages": [{"role": "user", "content": "Hi"}]}
SPARE = Route(provider="spare", model="second")


@pytest.fixture
def database(gateway_postgres) -> str:
    return gateway_postgres


@contextmanager
def two_gateways(tmp_path, database, upstream, backup, **options) -> Iterator[tuple[RunningGateway, RunningGateway]]:
    providers = {"up": provider(upstream.base_url, "anthropic"), "spare": provider(backup.base_url, "anthropic")}
    slots = [{"slot": "main", "primary": {"provider": "up", "model": "claude-sonnet-4-6"}}]

    def one(name):
        return running_gateway(tmp_path / name, providers, slots, name=name, database=database, **options)

    with one("a") as first, one("b") as second:
        yield first, second


def ask(gateway, key=None, **more):
    headers = {"x-api-key": key or gateway.key}
    return httpx.post(gateway.url + "/v1/messages", json={**BODY, **more}, headers=headers, timeout=60)


def test_a_promotion_and_a_rollback_hold_on_the_next_request_of_the_other(tmp_path, database, upstream, backup):
    with two_gateways(tmp_path, database, upstream, backup) as (first, second):
        assert ask(first).headers["x-firstchair-provider"] == "up/claude-sonnet-4-6"
        assert ask(second).headers["x-firstchair-provider"] == "up/claude-sonnet-4-6"
        change = first.store.promote("main", SPARE, who="test", override="a test")
        assert first.store.wait_for_workers(change.revision, 60.0) == ()
        assert ask(second).headers["x-firstchair-provider"] == "spare/second"
        assert ask(first).headers["x-firstchair-provider"] == "spare/second"
        back = second.store.rollback("main", who="test")
        assert second.store.wait_for_workers(back.revision, 60.0) == ()
        assert ask(first).headers["x-firstchair-provider"] == "up/claude-sonnet-4-6"
        versions = [record.slot_version for record in first.records(3)]
        assert versions == sorted(set(versions))


def test_a_key_made_here_opens_there_and_revoked_there_it_opens_nowhere(tmp_path, database, upstream, backup):
    with two_gateways(tmp_path, database, upstream, backup) as (first, second):
        new = first.store.create_key("new", who="test")
        first.store.wait_for_workers(first.store.revision(), 60.0)
        assert ask(second, new.secret).status_code == 200
        second.store.revoke_key(new.key.key_id, who="test")
        second.store.wait_for_workers(second.store.revision(), 60.0)
        assert ask(first, new.secret).status_code == 401


def test_two_gateways_never_spend_one_dollar_twice(tmp_path, database, upstream, backup):
    """Every call may cost 1,000 output tokens at $15 a million: 15 million nano-USD, and a little for its prompt."""
    upstream.script = Script((Reply(text="Hello.", fault=Fault("hang_before_headers")),))
    with two_gateways(tmp_path, database, upstream, backup) as (first, second):
        limits = KeyLimits(budget_nano=50_000_000)
        poor = first.store.create_key("poor", limits=limits, who="test")
        first.store.wait_for_workers(first.store.revision(), 60.0)
        refused = threading.Semaphore(0)

        def call(gateway):
            response = ask(gateway, poor.secret)
            if response.status_code == 402:
                refused.release()
            return response

        with ThreadPoolExecutor(10) as pool:
            running = [pool.submit(call, gateway) for gateway in (first, second) * 5]
            for _ in range(7):
                assert refused.acquire(timeout=60)
            upstream.wait_until(lambda it: it.holding == 3, 60)
            upstream.release()
            statuses = sorted(future.result().status_code for future in running)
        assert statuses == [200] * 3 + [402] * 7
        key_id = poor.key.key_id
        costs = [record.cost_nano for gateway in (first, second) for record in gateway.records(0)]
    assert spend(database, key_id) == (sum(costs), 0)


def spend(database, key_id):
    engine = create_engine(database)
    with engine.connect() as connection:
        row = connection.execute(
            text("SELECT spent_nano, reserved_nano FROM gateway_budgets WHERE key_id = :key"), {"key": key_id}
        ).one()
    engine.dispose()
    return tuple(row)
