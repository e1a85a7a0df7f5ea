"""Time as an argument, so that tests and the embedded world can stop it."""

from __future__ import annotations

from datetime import UTC, datetime


def utc_now() -> str:
    """Now as ISO 8601 UTC with microseconds, ``2026-01-31T12:00:00.000000Z``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
