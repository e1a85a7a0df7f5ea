"""One run, seen from outside of it: feeds the input, keeps the output, holds the clock, kills, answers."""

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


@dataclass
class _Near:
    """The keeper's ends of the command's pipes."""

    stdin: int
    stdout: int
    stderr: int


def keep(channel: socket.socket, owner: int | None) -> None:
    """Carry out the job that comes over ``channel``, answer it, and leave nothing alive.

    ``owner``: a ``spare_namespace``, so that it need not be made here.
    """
    syscalls.adopt_orphans()
    try:
        job, stdin = read_job(channel.recv)
        answer = write_outcome(_carry_out(job, stdin, channel, owner))
    except (EOFError, Cancelled):
        return
    except SetupFailed as failed:
        answer = write_failure(str(failed))
    except OSError as error:
        answer = write_failure(error.strerror or str(error))
    with suppress(OSError):  # the caller has gone
        channel.sendall(answer)


def _carry_out(job: Job, stdin: bytes, channel: socket.socket, owner: int | None) -> Outcome:
    with _home(job) as job:
        start = time.monotonic()
        init, near, report = _start(job, owner)
        kept = {near.stdout: Output(job.output_bytes), near.stderr: Output(job.output_bytes)}
        try:
            timed_out = _serve(init, near, stdin, kept, channel, start + job.wall_s)
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
            said = json.loads(os.read(report, 1 << 16) or b"{}")
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
    import shutil  # here: what they bring along would make every fork slower
    import tempfile

    folder = tempfile.mkdtemp(prefix="firstchair-sandbox-")
    try:
        yield replace(job, environment={**job.environment, "HOME": folder, "TMPDIR": folder})
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(job: Job, owner: int | None) -> tuple[int, _Near, int]:
    """Start init: its pid, our ends of its pipes, and where it will report."""
    stdin, near_stdin = os.pipe()
    near_stdout, stdout = os.pipe()
    near_stderr, stderr = os.pipe()
    near_report, report = os.pipe()
    go, near_go = os.pipe()
    spare = job.view is not None and is_root()
    stage = Stage(
        streams=(stdin, stdout, stderr),
        report=report,
        go=go,
        work_dir=tree.take_work_dir(job.work_dir, namespace=owner or spare_namespace()) if spare else None,
        drop_groups=spare,
    )
    if job.view is None:
        init = os.fork()
    else:
        init = syscalls.clone(_NAMESPACES | (0 if job.view.network else syscalls.NEW_NET))
    if init == 0:
        for end in (near_stdin, near_stdout, near_stderr, near_report, near_go):
            os.close(end)
        try:
            run_init(job, stage)
        finally:
            os._exit(1)
    for end in (*stage.streams, report, go):
        os.close(end)
    if job.view is not None:
        give_user(init, spare=spare)
        with suppress(BrokenPipeError):  # init has failed, and reports why
            os.write(near_go, b"1")
    os.close(near_go)
    return init, _Near(near_stdin, near_stdout, near_stderr), near_report


def _serve(
    init: int, near: _Near, stdin: bytes, kept: dict[int, Output], channel: socket.socket, deadline: float
) -> bool:
    """Feed and read until init is dead; whether the time was over before. Raises ``Cancelled``."""
    poll, dead, rest = select.poll(), os.pidfd_open(init), memoryview(stdin)
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
                    os.close(stream)
    return True


def _feed(stream: int, rest: memoryview) -> memoryview:
    """Write some of ``rest``; what is left of it, nothing when nobody reads any more."""
    try:
        return rest[os.write(stream, rest[: 1 << 16]) :]
    except BlockingIOError:
        return rest
    except BrokenPipeError:
        return rest[:0]
