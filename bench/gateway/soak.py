"""Mixed traffic with clients that leave and databases that fail, and then the books are checked.

    python bench/gateway/soak.py [--calls 20000 | --minutes 30]

All three dialects, whole and streamed, every tenth client leaves before or during its answer. In the second quarter
the trace store is locked, in the third the ledger's database is, each for as long as half a quarter takes. Then the
gateway is stopped, and it must hold that: every request is one row of the ledger and one recording, every recording
is in a session or says why not, no loss is counted, the memory of the last quarter is that of the first (of the sink
only in a run long enough for its sessions to come and go), and nothing is left running. Exit code 1 when one of
these does not hold.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import psutil
import targets
import uvloop
from bench import agent, chat
from load_generator import Ask, Measured, drive
from upstream import CALLS, LONG, USAGE

from firstchair.gateway.sink import read_status
from firstchair.gateway.spool import losses_of
from firstchair.gateway.stitch import IDLE_S
from firstchair.testing.scripted_upstream import Fault, Reply, Script, scripted_upstream

Leave = Literal["", "before", "during"]
CONCURRENCY = 16
SLICES = 40
"""Pieces of the run; memory is looked at after each, and locks begin and end between them."""
GROWTH = 1.10
"""Largest memory of the last quarter, as a multiple of the first's."""
SLACK_MB = 5.0
BEHIND_S = 900.0
"""How long the sink may take to read what has piled up: on two busy cores calls come first."""


@dataclass
class Soak:
    """What is counted on the way."""

    sent: int = 0
    left: int = 0
    done: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    worker_mb: list[float] = field(default_factory=list)
    sink_mb: list[float] = field(default_factory=list)
    wall_s: float = 0.0

    def add(self, measured: Measured) -> None:
        self.sent += measured.sent
        self.left += measured.left
        self.done += measured.done
        self.wall_s += measured.wall_s
        for error, count in measured.errors.items():
            self.errors[error] = self.errors.get(error, 0) + count


def asks(headers: dict[str, str]) -> dict[Leave, list[Ask]]:
    """Kinds of requests, by when their client leaves; of those that stay, every dialect whole and streamed alike."""
    bodies = {
        "/v1/chat/completions": (chat(), b"[DONE]"),
        "/v1/responses": ({"input": "When does my flight leave? ($N)", "store": False}, b"response.completed"),
        "/v1/messages": (agent(), b"message_stop"),
    }
    found: dict[Leave, list[Ask]] = {"": [], "before": [], "during": []}
    for path, (body, terminal) in bodies.items():
        for stream in (False, True):
            for model in ("paced", "tools", "silent"):
                text = json.dumps({"model": model, "stream": stream, **body}).encode()
                leave: Leave = "before" if model == "silent" else ""
                ask = Ask(path, text, headers, terminal if stream else b"", leave)
                found[leave].append(ask)
                if model == "paced" and stream:
                    found["during"].append(replace(ask, leave="during"))
    return found


def picker(kinds: dict[Leave, list[Ask]], start: int) -> Callable[[int], Ask]:
    """Every tenth request leaves, in turn before and during its answer."""

    def pick(number: int) -> Ask:
        place = start + number
        leave: Leave = "" if place % 10 else "before" if place % 20 else "during"
        return kinds[leave][place // 10 % len(kinds[leave])] if leave else kinds[""][place % len(kinds[""])]

    return pick


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Nobody else can write to this SQLite file."""
    connection = sqlite3.connect(path, timeout=60, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def lock_of(number: int, folder: Path) -> contextlib.AbstractContextManager[None]:
    """What fails during this slice."""
    eighth = number * 8 // SLICES
    if eighth == 2:
        return locked(folder / "traces.db")
    return locked(folder / "gateway.db") if eighth == 4 else contextlib.nullcontext()


def drive_slice(
    target: targets.Target, kinds: dict[Leave, list[Ask]], soak: Soak, count: int, limit_s: float
) -> None:
    pick, port = picker(kinds, soak.sent), target.ports["paced"]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        soak.add(runner.run(drive("127.0.0.1", port, pick, count=count, concurrency=CONCURRENCY, limit_s=limit_s)))


def run(target: targets.Target, folder: Path, options: argparse.Namespace) -> Soak:
    """The traffic, slice by slice."""
    soak, kinds = Soak(), asks(dict(target.headers))
    limit_s = options.minutes * 60 / SLICES if options.minutes else float("inf")
    count = 1_000_000_000 if options.minutes else max(CONCURRENCY, options.calls // SLICES)
    locks: contextlib.ExitStack = contextlib.ExitStack()
    was = -1
    for number in range(SLICES):
        if (eighth := number * 8 // SLICES) != was:
            locks.close()
            locks.enter_context(lock_of(number, folder))
            was = eighth
        drive_slice(target, kinds, soak, count, limit_s)
        worker, sink = target.rss_mb()
        soak.worker_mb.append(worker)
        soak.sink_mb.append(sink)
        status = target.status()
        told = status.error.splitlines()[0][:60] if status is not None and status.error else ""
        print(
            f"{number + 1}/{SLICES}: {soak.sent} sent, worker {worker:.0f} MB, sink {sink:.0f} MB {told}", flush=True
        )
    locks.close()
    return soak


def check(soak: Soak, folder: Path, first: int, exit_code: int) -> list[str]:
    """What does not hold. ``first``: calls before the soak."""
    with contextlib.closing(sqlite3.connect(folder / "gateway.db")) as database:

        def number(sql: str) -> int:
            return int(database.execute(sql).fetchone()[0])

        rows = number("SELECT count(*) FROM gateway_ledger")
        recorded = number("SELECT count(*) FROM gateway_recordings")
        nowhere = number("SELECT count(*) FROM gateway_recordings WHERE session_id IS NULL AND note IS NULL")
        outcomes = database.execute("SELECT outcome, count(*) FROM gateway_ledger GROUP BY outcome").fetchall()
        notes = database.execute(
            "SELECT note, count(*) FROM gateway_recordings WHERE note IS NOT NULL GROUP BY note"
        ).fetchall()
    losses = {losses.worker: losses.lost for losses in losses_of(folder / "spool")}
    status = read_status(folder / "spool")
    requests = soak.sent + first
    print(f"{requests} requests, {soak.done + first} complete, {soak.left} left, errors {soak.errors}")
    print(f"ledger {rows} rows {dict(outcomes)}, recordings {recorded}, of them in no session {dict(notes)}")
    print(f"losses counted: {losses or 'none'}; {status.lost if status else ''}")
    found = []

    def demand(holds: bool, text: str) -> None:
        if not holds:
            found.append(text)

    demand(exit_code == 0, f"the gateway ended with exit code {exit_code}")
    demand(rows == requests, f"{requests} requests and {rows} ledger rows")
    demand(recorded == rows, f"{rows} ledger rows and {recorded} recordings")
    demand(nowhere == 0, f"{nowhere} recordings are in no session and nobody says why")
    demand(not losses, f"records were lost: {losses}")
    demand(not soak.errors, f"clients saw errors: {soak.errors}")
    demand(soak.done + soak.left == soak.sent, f"{soak.sent - soak.done - soak.left} requests ended in no known way")
    quarter = SLICES // 4
    for name, values in (("worker", soak.worker_mb), ("sink", soak.sink_mb)):
        # The first slices warm up: imports, pools, caches.
        early, last = statistics.median(values[2:quarter]), statistics.median(values[-quarter:])
        print(f"{name}: {early:.1f} MB in the first quarter, {last:.1f} MB in the last")
        if name == "sink" and soak.wall_s < 8 * IDLE_S:
            print(f"too short to judge the sink: it keeps a session in memory until nothing came for {IDLE_S:g} s")
            continue
        demand(last <= early * GROWTH + SLACK_MB, f"{name} grew from {early:.1f} MB to {last:.1f} MB")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--minutes", type=float, help="run so long instead")
    options = parser.parse_args()
    # So that what was started is ended, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    answers = {
        "paced": Reply(text=LONG, usage=USAGE, event_pause_s=0.001),
        "tools": Reply(text="Let me look.", calls=CALLS, usage=USAGE, event_pause_s=0.005),
        "silent": Reply(text="Too late.", fault=Fault("hang_before_headers")),
    }
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        upstreams = {
            name: stack.enter_context(scripted_upstream(Script((answer,), record=False)))
            for name, answer in answers.items()
        }
        target = targets.firstchair(folder, {name: upstream.base_url for name, upstream in upstreams.items()})
        try:
            soak = run(target, folder, options)
            began = time.monotonic()
            target.settle(BEHIND_S)
            print(f"the sink had read all {time.monotonic() - began:.0f} s after the last request")
            processes = target.processes()
        finally:
            target.stop()
        assert target.process is not None
        problems = check(soak, folder, target.calls, target.process.returncode)
        _, alive = psutil.wait_procs(processes, timeout=5)
        problems += [f"process {process.pid} is still running" for process in alive]
        for name, upstream in upstreams.items():
            with contextlib.suppress(TimeoutError):
                upstream.wait_until(lambda it: not it.open, 5.0)
            problems += [f"{upstream.open} calls are still open at the provider {name}"] if upstream.open else []
    for problem in problems:
        print(f"NOT SO: {problem}")
    if problems:
        raise SystemExit(1)
    print("all of it holds")


if __name__ == "__main__":
    main()
