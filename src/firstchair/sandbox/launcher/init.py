"""The first process of a run: sets the stage, starts the command, watches what the tree uses up, says how it ended.

With a view it is pid 1 of its own pid namespace: orphans become its children, and its death is the death of all.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import struct
import time
from dataclasses import dataclass
from typing import NoReturn

from firstchair.sandbox.launcher import syscalls, tree
from firstchair.sandbox.launcher.command import become
from firstchair.sandbox.launcher.job import DISK, EXITED, MEMORY, TIMEOUT, Caps, Job
from firstchair.sandbox.launcher.usage import exact_memory_bytes, folder_bytes, tree_usage
from firstchair.sandbox.launcher.users import INNER_ID

_POLL_S = 0.05
_FOLDER_SHARE = 5
"""Walking through a large work dir takes at most one part in so many of init's time."""
_SET_FLAGS, _IS_UP = 0x8914, 0x1
"""``ioctl`` SIOCSIFFLAGS and IFF_UP (man 7 netdevice)."""


@dataclass(frozen=True)
class Stage:
    """What the keeper gives to init, all of it descriptors."""

    streams: tuple[int, int, int]
    report: int
    """Where init writes one JSON object before it exits."""
    go: int
    """Gives a byte when the keeper has given init its user."""
    work_dir: tree.Taken | None
    """Taken already by the keeper where that takes its rights."""
    drop_groups: bool
    """Where init may give up the groups of its user."""


def run_init(job: Job, stage: Stage) -> NoReturn:
    """Everything; never returns."""
    try:
        report = _run(job, stage)
    except OSError as error:
        report = {"failed": error.strerror or str(error)}
    os.write(stage.report, json.dumps(report).encode())
    os._exit(0)


def _run(job: Job, stage: Stage) -> dict[str, object]:
    syscalls.adopt_orphans()
    if job.view is not None:
        _set_stage(job, stage)
    syscalls.die_with_parent()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    before = folder_bytes(job.work_dir) if job.caps is not None else 0
    refused, tell = os.pipe()
    command = os.fork()
    if command == 0:
        try:
            become(job, stage.streams, tell)
        except OSError as error:
            os.write(tell, (error.strerror or str(error)).encode())
        finally:
            os._exit(1)
    for stream in (*stage.streams, tell):
        os.close(stream)
    end, status = _watch(command, job, before)
    if reason := os.read(refused, 4096):
        return {"failed": reason.decode()}
    return {"end": end, "exit_code": status}


def _set_stage(job: Job, stage: Stage) -> None:
    assert job.view is not None
    assert job.caps is not None
    # As the user outside, who may get to places that the user inside may not.
    taken, links = tree.take(job.view)
    taken.append(stage.work_dir or tree.take_work_dir(job.work_dir, namespace=None))
    if not os.read(stage.go, 1):
        os._exit(1)  # the keeper is gone
    if stage.drop_groups:
        os.setgroups([])
    os.setresgid(INNER_ID, INNER_ID, INNER_ID)
    os.setresuid(INNER_ID, INNER_ID, INNER_ID)
    syscalls.show_in_proc()  # where what the dead have written is added up
    socket.sethostname("sandbox")
    if not job.view.network:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
            fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", _IS_UP))
    tree.enter(taken, links, tmp_bytes=job.caps.disk_bytes, own_network=not job.view.network)


def _watch(command: int, job: Job, before: int) -> tuple[str, int | None]:
    """Wait for the command's exit, or for its tree to use up too much."""
    folder_due = 0.0
    while True:
        signal.sigtimedwait([signal.SIGCHLD], _POLL_S)
        exited = _reap(command)
        if job.caps is not None:
            start = time.monotonic()
            if start >= folder_due or exited is not None:
                enough = before + job.caps.disk_bytes
                if folder_bytes(job.work_dir, enough=enough) > enough:
                    return DISK, None
                folder_due = start + (time.monotonic() - start) * _FOLDER_SHARE
            if exited is None and (over := _over(job.caps)):
                return over
        if exited is not None:
            return EXITED, exited


def _over(caps: Caps) -> tuple[str, int | None] | None:
    """Which limit the living tree has passed, if any."""
    usage = tree_usage()
    if usage.written_bytes > caps.disk_bytes:
        return DISK, None
    if usage.cpu_s > caps.cpu_s:
        return TIMEOUT, None
    if usage.memory_bytes > caps.memory_bytes and exact_memory_bytes() > caps.memory_bytes:
        return MEMORY, None
    if usage.processes > caps.processes:
        # The kernel keeps to the number where there are namespaces; elsewhere the tree is killed like a process is.
        return EXITED, -signal.SIGKILL
    return None


def _reap(command: int) -> int | None:
    """Wait for whoever is dead; the command's exit code when it is among them."""
    code = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return code
        if pid == 0:
            return code
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
