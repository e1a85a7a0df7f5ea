from __future__ import annotations

import pytest

from firstchair.data.golden import BuildOptions, GoldenSet, build
from firstchair.testing.sessions import trip_session, trip_tools


@pytest.fixture
def golden(tmp_path) -> GoldenSet:
    """Twelve small sessions of five decisions; gold is what was observed."""
    path = tmp_path / "golden"
    options = BuildOptions(name="trips", created_at="2026-02-03T00:00:00Z")
    build([trip_session(number) for number in range(12)], lambda _: trip_tools(), path, options)
    return GoldenSet.load(path, draft=True)
