"""Symbolic equality in processes that can be killed: a computer algebra system may compute for ever.

equal(gold, answer) ─► a warm worker (symbolic_worker.py) ─► verdict
                          │ no verdict in time, cancelled, died
                          └─► SIGKILL; the next question gets a new worker
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum

from firstchair.core.errors import GradingError

WORKER = (sys.executable, "-m", "firstchair.rewards.answers.symbolic_worker")


class Comparison(StrEnum):
    """What algebra says of a pair."""

    EQUAL = "equal"
    DIFFERENT = "different"
    GOLD_UNREADABLE = "gold_unreadable"
    """The reference answer is no mathematical expression."""


class SymbolicPool:
    """A few workers, started when they are needed and kept. Belongs to one event loop."""

    def __init__(
        self,
        *,
        workers: int = 2,
        timeout_s: float = 5.0,
        start_s: float = 60.0,
        command: Sequence[str] = WORKER,
    ):
        """``timeout_s`` is for one comparison, ``start_s`` for a worker's imports."""
        self._slots = asyncio.Semaphore(workers)
        self._timeout_s, self._start_s, self._command = timeout_s, start_s, command
        self._idle: list[Process] = []
        self._closed = False

    async def compare(self, gold: str, answer: str) -> Comparison:
        """Compare two answers. Raises ``GradingError`` when there is no verdict: too long, or a worker that died."""
        async with self._slots:
            worker = self._idle.pop() if self._idle else await self._start()
            line = json.dumps([gold, answer, self._timeout_s]) + "\n"
            verdict = None
            try:
                async with asyncio.timeout(self._timeout_s):
                    verdict = _verdict(await _ask(worker, line))
            except TimeoutError:
                raise GradingError(f"no symbolic comparison within {self._timeout_s:g} s") from None
            finally:
                # Without a verdict nobody knows what it will say next, to whatever question.
                if verdict is None or self._closed:
                    await _kill(worker)
                else:
                    self._idle.append(worker)
            return verdict

    async def close(self) -> None:
        """Kill the workers. One that is comparing is killed when it has done so, or is cancelled."""
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            await _kill(worker)

    async def _start(self) -> Process:
        try:
            # A session of its own: Ctrl-C is for us, and we then kill it.
            worker = await asyncio.create_subprocess_exec(
                *self._command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise GradingError(f"no process for symbolic comparisons: {error}") from error
        said = b""
        try:
            async with asyncio.timeout(self._start_s):
                said = await _line(worker)
        except TimeoutError:
            raise GradingError(f"a process for symbolic comparisons was not ready in {self._start_s:g} s") from None
        finally:
            if said != b"ready\n":
                await _kill(worker)
        if said != b"ready\n":
            raise GradingError(f"a process for symbolic comparisons ended at its start, code {worker.returncode}")
        return worker


async def _ask(worker: Process, line: str) -> bytes:
    assert worker.stdin is not None
    with suppress(ConnectionError):  # it died; there is no verdict to read then
        worker.stdin.write(line.encode("ascii"))
        await worker.stdin.drain()
    return await _line(worker)


async def _line(worker: Process) -> bytes:
    assert worker.stdout is not None
    return await worker.stdout.readline()


def _verdict(said: bytes) -> Comparison:
    try:
        return Comparison(said.decode("ascii").strip())
    except ValueError:
        raise GradingError("the process for symbolic comparisons died") from None


async def _kill(worker: Process) -> None:
    with suppress(ProcessLookupError):
        # Not worker.kill(), which reaps a process that has just died and hides its exit code from asyncio.
        os.killpg(worker.pid, signal.SIGKILL)
    assert worker.stdin is not None
    worker.stdin.close()
    await worker.wait()
