"""Both databases: every test that takes ``store_url`` or ``store`` runs on SQLite and on a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

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
    yield request.getfixturevalue("gateway_postgres")


@pytest.fixture
def store(store_url: str, clock: Clock) -> Iterator[ControlStore]:
    """An empty control database, once on each kind."""
    with ControlStore.open(store_url, now_us=clock) as opened:
        yield opened
