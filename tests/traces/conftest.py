"""Both databases: every test that takes ``store`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, inspect, text

from firstchair.traces import schema
from firstchair.traces.store import TraceStore


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty store, once on each database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'traces.db'}"
        return
    url = request.getfixturevalue("postgres_database")
    yield url
    # Emptying is ten times quicker than making the tables anew.
    engine = create_engine(url)
    tables = ", ".join(name for name in schema.metadata.tables if name != "store_info")
    with engine.begin() as connection:
        if inspect(connection).has_table("sessions"):
            connection.execute(text(f"TRUNCATE {tables}"))
    engine.dispose()


@pytest.fixture
def store(store_url: str) -> Iterator[TraceStore]:
    """An empty store, once on each database."""
    with TraceStore.open(store_url) as opened:
        yield opened
