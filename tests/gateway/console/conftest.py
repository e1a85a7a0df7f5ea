"""An admin application on a real control store and trace store that some calls went through."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.gateway.console.traffic import fill

from firstchair.gateway.config import Provider
from firstchair.gateway.console.app import admin_app
from firstchair.gateway.control.snapshot import Budget
from firstchair.gateway.control.store import ControlStore

PROVIDERS = {
    name: Provider(type="openai-compatible", base_url="http://127.0.0.1:9/v1") for name in ("anthropic", "local")
}


class Admin:
    """The application, a client without a key, and the keys there are."""

    def __init__(self, store: ControlStore, client: TestClient):
        self.store, self.client = store, client
        self.secrets = {
            scope: store.create_key(f"{scope}-key", [scope], who="test").secret
            for scope in ("call", "traces", "admin")
        }

    def ask(self, method: str, path: str, *, scope: str = "admin", **options):
        headers = {"x-api-key": self.secrets[scope], **options.pop("headers", {})}
        return self.client.request(method, path, headers=headers, **options)

    def log_in(self) -> str:
        """Log the client in; the token of its forms."""
        answer = self.client.post("/login", data={"key": self.secrets["admin"]}, follow_redirects=False)
        assert answer.status_code == 303
        return self.token()

    def token(self) -> str:
        page = self.client.get("/slots/desk/promote?route=local/orchestrator-4b").text
        return page.split('name="token" value="')[1].split('"')[0]


@contextlib.contextmanager
def admin(folder: Path, *, require_keys: bool = True, calls: int = 40) -> Iterator[Admin]:
    traces = str(folder / "traces.db")
    with ControlStore.open(folder / "gateway.db", providers=PROVIDERS) as store:
        fill(store, traces, calls=calls)
        app = admin_app(
            store,
            traces=traces,
            spool=folder / "spool",
            shadow_budget=lambda: Budget(5 * 10**8, "day"),
            require_keys=require_keys,
            wait_s=0.0,
        )
        with TestClient(app, base_url="http://localhost:8401", raise_server_exceptions=False) as client:
            yield Admin(store, client)


@pytest.fixture
def console(tmp_path: Path) -> Iterator[Admin]:
    with admin(tmp_path) as made:
        yield made


@pytest.fixture
def open_console(tmp_path: Path) -> Iterator[Admin]:
    """Without keys."""
    with admin(tmp_path, require_keys=False) as made:
        yield made
