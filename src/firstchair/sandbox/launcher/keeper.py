"""Runs, one after the other, seen from outside: feeds input, keeps output, holds the clock, kills, answers."""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

from firstchair.sandbox.launcher import syscalls, tree
from firstchair.sandbox.launcher.init import Stage, run_init
from firstchair.sandbox.launcher.job import (
    TIMEOUT,
    Job,
    Outcome,
    SetupFailed,
    read_job,
    write_failure,
    write_outcome,
)
from firstchair.sandbox.launcher.usage import kill_descendants
from firstchair.sandbox.launcher.users import give_user, is_root, spare_namespace

_NAMESPACES = (
    syscalls.NEW_USER | syscalls.NEW_NS | syscalls.NEW_PID | syscalls.NEW_IPC | syscalls.NEW_UTS | syscalls.NEW_CGROUP
)


class Cancelled(Exception):
    """The caller has gone, or wants no answer."""


class Output:
    """A stream of the command: the first ``limit`` bytes, and whether there were more."""

    def __init__(self, limit: int):
        self._limit = limit
        self.kept = bytearray()
        self.cut = False

    def read(self, stream: int) -> bool:
        """Take some of what is there; whether more can come. Raises ``BlockingIOError`` when nothing is there."""
        block = os.read(stream, 1 << 16)
        room = self._limit - len(self.kept)
        self.kept += block[:room]
        self.cut = self.cut or len(block) > room
        return bool(block)


class _Descriptors:
    """The pipes of a run: what is not closed by name is closed at its end."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(*self._open)

    def add(self, descriptor: int) -> int:
        self._open.add(descriptor)
        return descriptor

    def pipe(self) -> tuple[int, int]:
        """The end to read from, and the end to write to."""
        read, write = os.pipe()
        return self.add(read), self.add(write)

    def close(self, *descriptors: int) -> None:
        for descriptor in descriptors:
            self._open.remove(descriptor)
            os.close(descriptor)


@dataclass(frozen=True)
class _Near:
    """The keeper's ends of a run's pipes."""

    stdin: int
    stdout: int
    stderr: int
    report: int
    """Where init tells how it ended."""


def keep(channel: socket.socket, owner: int | None) -> None:
    """Carry out the jobs that come over ``channel``, one after the other, answer each, and leave nothing of it alive.

    ``owner``: a ``spare_namespace``, so that it need not be made here.
    """
    syscalls.adopt_orphans()
    with suppress(EOFError, Cancelled, ConnectionError):
        while True:
            job, stdin = read_job(channel.recv)
            try:
                answer = write_outcome(_carry_out(job, stdin, channel, owner))
            except SetupFailed as failed:
                answer = write_failure(str(failed))
            except OSError as error:
                answer = write_failure(error.strerror or str(error))
            channel.sendall(answer)


def _carry_out(job: Job, stdin: bytes, channel: socket.socket, owner: int | None) -> Outcome:
    with _home(job) as job, _Descriptors() as own:
        start = time.monotonic()
        init, near = _start(job, owner, own)
        kept = {near.stdout: Output(job.output_bytes), near.stderr: Output(job.output_bytes)}
        try:
            dead = own.add(os.pidfd_open(init))
            timed_out = _serve(dead, near, stdin, kept, channel, start + job.wall_s, own)
        finally:
            with suppress(ProcessLookupError):
                os.kill(init, signal.SIGKILL)
            os.waitpid(init, 0)
            kill_descendants()
        for stream, output in kept.items():
            with suppress(BlockingIOError):
                while output.read(stream):
                    pass
        said: dict[str, Any] = {"end": TIMEOUT, "exit_code": None}
        if not timed_out:
            said = json.loads(os.read(near.report, 1 << 16) or b"{}")
    if "end" not in said:
        raise SetupFailed(said.get("failed", "the first process of the run was killed from outside"))
    return Outcome(
        end=said["end"],
        exit_code=said["exit_code"],
        stdout=bytes(kept[near.stdout].kept),
        stderr=bytes(kept[near.stderr].kept),
        output_cut=any(output.cut for output in kept.values()),
        seconds=time.monotonic() - start,
    )


@contextmanager
def _home(job: Job) -> Iterator[Job]:
    """The job with a directory for its temporary files, where it has no /tmp of its own."""
    if job.view is not None or job.caps is None:
        yield job
        return
    from firstchair.core.scratch import scratch_dir  # here: what it brings along would make every fork slower

    with scratch_dir("firstchair-sandbox-") as folder:
        yield replace(job, environment={**job.environment, "HOME": str(folder), "TMPDIR": str(folder)})


def _start(job: Job, owner: int | None, own: _Descriptors) -> tuple[int, _Near]:
    """Start init: its pid, and our ends of its pipes."""
    stdin, near_stdin = own.pipe()
    near_stdout, stdout = own.pipe()
    near_stderr, stderr = own.pipe()
    near_report, report = own.pipe()
    go, near_go = own.pipe()
    near = _Near(near_stdin, near_stdout, near_stderr, near_report)
    spare = job.view is not None and is_root()
    work_dir = None
    if spare:
        namespace = owner or own.add(spare_namespace())
        work_dir = tree.take_work_dir(job.work_dir, namespace=namespace)
        own.add(work_dir.tree)
    stage = Stage((stdin, stdout, stderr), report=report, go=go, work_dir=work_dir, drop_groups=spare)
    if job.view is None:
        init = os.fork()
    else:
        init = syscalls.clone(_NAMESPACES | (0 if job.view.network else syscalls.NEW_NET))
    if init == 0:
        own.close(near.stdin, near.stdout, near.stderr, near.report, near_go)
        try:
            run_init(job, stage)
        finally:
            os._exit(1)
    own.close(stdin, stdout, stderr, report, go)
    if job.view is not None:
        try:
            give_user(init, spare=spare)
            os.write(near_go, b"1")
        except (BrokenPipeError, ProcessLookupError):
            pass  # init has failed, and reports why
    own.close(near_go)
    return init, near


def _serve(
    dead: int,
    near: _Near,
    stdin: bytes,
    kept: dict[int, Output],
    channel: socket.socket,
    deadline: float,
    own: _Descriptors,
) -> bool:
    """Feed and read until init is ``dead``; whether the time was over before. Raises ``Cancelled``."""
    poll, rest = select.poll(), memoryview(stdin)
    for stream in (channel.fileno(), dead, *kept):
        poll.register(stream, select.POLLIN)
    for stream in (near.stdin, *kept):
        os.set_blocking(stream, False)
    poll.register(near.stdin, select.POLLOUT)
    while (left := deadline - time.monotonic()) > 0:
        ready = [stream for stream, _ in poll.poll(math.ceil(left * 1000))]
        if channel.fileno() in ready:
            raise Cancelled
        if dead in ready:
            return False
        for stream in ready:
            if stream in kept:
                more = kept[stream].read(stream)
            else:
                rest = _feed(stream, rest)
                more = bool(rest)
            if not more:
                poll.unregister(stream)
                if stream == near.stdin:
                    own.close(stream)
    return True


def _feed(stream: int, rest: memoryview) -> memoryview:
    """Write some of ``rest``; what is left of it, nothing when nobody reads any more."""
    try:
        return rest[os.write(stream, rest[: 1 << 16]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]
