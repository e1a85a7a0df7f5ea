"""How fast the desk's teacher is recorded over HTTP: sessions and calls a second, and the CPU of both processes.

    python bench/recording.py --sessions 1700

The client (harness loop, environments, HTTP client) and the server (HTTP server, teacher) are one process each.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from contextlib import aclosing

import psutil

from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.server import running_teacher
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.recording import record_sessions


async def record(url: str, sessions: int, connections: int) -> tuple[int, int, int]:
    """Sessions, calls and errors of one recording."""
    tasks, calls, done, errors = make_tasks(sessions, 0), 0, 0, 0
    recording = record_sessions(url, tasks, DeskEnvironment, concurrency=connections)
    async with aclosing(recording) as episodes:
        async for episode in episodes:
            done += 1
            errors += episode.error is not None
            calls += len(episode.session.calls)
    return done, calls, errors


def main() -> None:
    """Print one line a round."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with running_teacher(mistake_rate=0.1, seed=1) as server:
        assert server.pid is not None
        process = psutil.Process(server.pid)
        for _ in range(options.rounds):
            before = process.cpu_times()
            mine, clock = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
            done, calls, errors = asyncio.run(record(server.openai_url, options.sessions, options.connections))
            wall = time.perf_counter() - clock
            used, after = resource.getrusage(resource.RUSAGE_SELF), process.cpu_times()
            client = used.ru_utime + used.ru_stime - mine.ru_utime - mine.ru_stime
            served = after.user + after.system - before.user - before.system
            print(
                f"{done} sessions, {calls} calls, {errors} errors in {wall:.1f} s: {calls / wall:,.0f} calls/s; "
                f"CPU per call: client {1000 * client / calls:.2f} ms, server {1000 * served / calls:.2f} ms"
            )


if __name__ == "__main__":
    main()
