"""Both databases: every test that takes ``store_url`` or ``store`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from firstchair.gateway.control import tables
from firstchair.gateway.control.store import ControlStore


class Clock:
    """Time that moves when the test says so."""

    def __init__(self) -> None:
        self.now_us = 1_800_000_000_000_000

    def __call__(self) -> int:
        return self.now_us

    def pass_s(self, seconds: float) -> None:
        self.now_us += int(seconds * 1e6)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database, once on each kind."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'gateway.db'}"
        return
    url = request.getfixturevalue("postgres_database")
    yield url
    # Emptying is ten times quicker than making the tables anew.
    engine = create_engine(url)
    names = ", ".join(name for name in tables.metadata.tables if name != "gateway_info")
    with engine.begin() as connection:
        if inspect(connection).has_table("gateway_info"):
            connection.execute(text(f"TRUNCATE {names}"))
            connection.execute(text("UPDATE gateway_info SET number = 0"))
    engine.dispose()


@pytest.fixture
def store(store_url: str, clock: Clock) -> Iterator[ControlStore]:
    """An empty control database, once on each kind."""
    with ControlStore.open(store_url, now_us=clock) as opened:
        yield opened
