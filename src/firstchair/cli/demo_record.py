"""The demo's first stage: the desk's sessions with the teacher, as the gateway recorded them.

harness ──► gateway ──► teacher          harness: what was said, how it ended
               └─► ledger, sessions ──┬──┘
                                      └─► sessions with labels, equal message by message
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from firstchair.cli.demo_gateway import (
    INCUMBENT,
    SESSION_HEADER,
    GatewayFiles,
    ledger_rows,
    recorded_sessions,
    running_gateway,
)
from firstchair.core.errors import RunFailed
from firstchair.core.progress import progress
from firstchair.gateway.control.store import ControlStore
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.server import running_teacher
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.episodes import Episode
from firstchair.rollout.recording import record_sessions
from firstchair.traces.session import Session
from firstchair.traces.store import TraceStore


@dataclass(frozen=True)
class Recording:
    """The stage in figures."""

    calls: int
    """What the harness asked; as many stand in the ledger and in the recorded sessions."""
    sessions: int
    seconds: dict[str, float]

    def __str__(self) -> str:
        return (
            f"{self.calls:,} calls of the harness = {self.calls:,} rows in the ledger = {self.calls:,} calls in "
            f"{self.sessions:,} recorded sessions, each message as the harness saw it"
        )


def record(
    tasks: Mapping[int, Sequence[DeskTask]], files: GatewayFiles, *, mistake_rate: float, seed: int
) -> tuple[dict[int, list[Session]], Recording]:
    """Play ``tasks`` (by purpose) against the teacher; the sessions that the gateway recorded, by purpose and task.

    Raises ``RunFailed`` unless ledger and sessions hold exactly what the harness saw.
    """
    seconds: dict[str, float] = {}
    began = time.monotonic()
    with running_teacher(mistake_rate=mistake_rate, seed=seed) as teacher:
        files.write({INCUMBENT.provider: teacher.openai_url})
        with running_gateway(files) as gateway:
            seconds["start"] = time.monotonic() - began
            episodes = asyncio.run(_play(gateway.openai_url, [task for some in tasks.values() for task in some]))
            calls = sum(len(episode.session.calls) for episode in episodes)
            seconds["sessions"] = time.monotonic() - began - sum(seconds.values())
            gateway.wait_for_rows(calls)
    seconds["drain"] = time.monotonic() - began - sum(seconds.values())
    with TraceStore.open(files.traces, must_exist=True) as store:
        sessions = recorded_sessions(store, episodes, source="scripted")
    with ControlStore.open(files.database, must_exist=True) as control:
        check_counts(calls, ledger_rows(control), sessions)
    seconds["labels"] = time.monotonic() - began - sum(seconds.values())
    of_task = {session.session_id: session for session in sessions}
    recorded = {
        purpose: [of_task[name] for name in sorted(task.task_id for task in some)] for purpose, some in tasks.items()
    }
    return recorded, Recording(calls, len(sessions), {name: round(value, 2) for name, value in seconds.items()})


async def _play(base_url: str, tasks: Sequence[DeskTask]) -> list[Episode]:
    """The harness at work; episodes in the order of their tasks."""
    found: list[Episode] = []
    with progress("record", len(tasks), unit="sessions") as bar:
        run = record_sessions(base_url, tasks, DeskEnvironment, session_header=SESSION_HEADER)
        async with aclosing(run) as episodes:
            async for episode in episodes:
                if episode.error is not None:
                    raise RunFailed(f"recording {episode.task_id} failed: {episode.error}")
                found.append(episode)
                bar.advance()
    return sorted(found, key=lambda episode: episode.number)


def check_counts(calls: int, rows: int, sessions: Sequence[Session], *, before: int = 0) -> None:
    """Raise ``RunFailed`` unless the ledger has a row, and ``sessions`` a call, for each call of the harness;
    ``before`` of them were checked earlier.
    """
    recorded = before + sum(len(session.calls) for session in sessions)
    if not calls == rows == recorded:
        raise RunFailed(
            f"the harness made {calls:,} calls; found {rows:,} rows in the ledger and {recorded:,} calls in sessions"
        )
