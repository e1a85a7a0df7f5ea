"""What an operator sees of breakers, budgets and losses: of a real gateway whose one provider is down."""

from __future__ import annotations

import re

import httpx
import pytest
from starlette.testclient import TestClient
from tests.gateway.console.conftest import Admin

from firstchair.gateway.console.app import admin_app
from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.spool import SpoolWriter
from firstchair.testing.gateway_server import provider, running_gateway

SLOT = {
    "slot": "main",
    "primary": {"provider": "down", "model": "big"},
    "fallbacks": [{"provider": "up", "model": "small"}],
    "shadow": [{"provider": "up", "model": "candidate"}],
    "retries": {"attempts": 1},
}
BODY = {"model": "main", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture
def troubled(tmp_path, upstream, backup):
    """The admin application beside a gateway that went through two failed tries, a lost record and a dropped copy."""
    backup.close_port()
    providers = {
        "up": provider(upstream.base_url),
        "down": provider(backup.base_url),
        "idle": provider("http://[::1]:9"),
    }
    settings = {"breaker": {"failures": 2}, "shadow": {"queue_mb": 1e-6}}
    with running_gateway(tmp_path, providers, [SLOT], KeyLimits(budget_nano=10**9), **settings) as running:
        for _ in range(2):
            answer = httpx.post(
                running.url + "/v1/chat/completions",
                json=BODY,
                headers={"authorization": f"Bearer {running.key}"},
                timeout=60,
            )
            assert answer.status_code == 200
        running.records(2)
        closed = SpoolWriter(running.config.spool, "w9")
        closed.close()
        assert not closed.append(b"too late")
        running.wait_until(lambda: running.app.shadows.dropped.total() == 2)
        running.app.reports.metrics.write()
        app = admin_app(
            running.store,
            traces=running.config.recording.store,
            spool=running.config.spool,
            wait_s=0.0,
        )
        with TestClient(app, base_url="http://localhost:8401") as client:
            yield Admin(running.store, client)


def test_breakers_failed_tries_and_losses_are_told_by_api_and_page(troubled):
    status = troubled.ask("GET", "/api/status").json()
    assert [one["provider"] for one in status["providers"]] == ["down", "idle", "up"]
    down, _, up = status["providers"]
    assert (down["breaker"], down["failed_tries"]) == ({"open": 1}, {"connect": 2})
    assert (up["breaker"], up["failed_tries"]) == ({"closed": 1}, {})
    assert status["lost"] == {"closed": 1}
    assert status["shadow_dropped"] == {"queue_bytes": 2}
    troubled.client.post("/login", data={"key": troubled.secrets["admin"]})
    page = re.sub(r"(<[^>]+>|\s)+", " ", troubled.client.get("/").text)
    assert " down open on 1 worker 2 connect " in page
    assert " up closed on 1 worker none " in page
    assert " Lost records 1 " in page
    assert " Records lost, by reason 1 closed " in page
    assert " Shadow copies never asked 2 queue bytes " in page


def test_a_budget_that_is_used_up_says_so(troubled):
    troubled.client.post("/login", data={"key": troubled.secrets["admin"]})
    assert "used up" not in troubled.client.get("/keys").text
    troubled.store.create_key("spent", ["call"], KeyLimits(budget_nano=0), who="ops")
    assert "used up" in troubled.client.get("/keys").text
