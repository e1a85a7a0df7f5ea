"""Fixtures of the gateway's own tests: scripted upstreams and clients of both vendors."""

from collections.abc import Iterator

import pytest

from firstchair.testing.scripted_upstream import Reply, Script, ScriptedUpstream, scripted_upstream


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script((Reply(text="Hello."),))) as running:
        yield running


@pytest.fixture
def backup() -> Iterator[ScriptedUpstream]:
    with scripted_upstream(Script((Reply(text="From the backup."),))) as running:
        yield running
