"""The last steps before a command is in charge: what it may use up and ask of the kernel; nothing is inherited."""

from __future__ import annotations

import math
import os
import resource
import signal
from contextlib import suppress
from typing import NoReturn

from firstchair.sandbox.launcher import filter as system_calls
from firstchair.sandbox.launcher import syscalls
from firstchair.sandbox.launcher.job import Caps, Job

OPEN_FILES = 256
_NOT_FOUND, _NOT_RUNNABLE = 127, 126
"""Exit codes as a shell gives them."""


def become(job: Job, streams: tuple[int, int, int], tell: int) -> NoReturn:
    """Turn this process into ``job.command`` with ``streams`` as its standard input, output and error.

    Of what else is open ``tell`` alone stays so until then. A command that cannot be run exits with 127 or 126, and
    says why on its standard error. Raises ``OSError`` for what is our fault.
    """
    os.setsid()
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.closerange(3, tell)
    os.closerange(tell + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    # Python ignores these two; a program expects to die of them.
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.chdir(job.work_dir)
    if job.caps is not None:
        _limit(job.caps, own_users=job.view is not None)
        syscalls.renounce_privileges()
        syscalls.filter_system_calls(system_calls.program(os.uname().machine))
    try:
        os.execvpe(job.command[0], job.command, job.environment)
    except (OSError, ValueError) as error:  # a NUL, or text that has no bytes
        why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
        os.write(2, f"{job.command[0]}: {why}\n".encode(errors="replace"))
        os._exit(_NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_RUNNABLE)


def _limit(caps: Caps, *, own_users: bool) -> None:
    limits = {
        resource.RLIMIT_AS: caps.memory_bytes,
        resource.RLIMIT_FSIZE: caps.disk_bytes,
        # A net below init's own count, which ends the whole tree.
        resource.RLIMIT_CPU: math.ceil(caps.cpu_s) + 1,
        resource.RLIMIT_NOFILE: OPEN_FILES,
        resource.RLIMIT_CORE: 0,
    }
    if own_users:
        # Counted per user namespace, so this is the command's own number, and init; elsewhere it would be the user's.
        limits[resource.RLIMIT_NPROC] = caps.processes + 1
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        value = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with suppress(ValueError):
            resource.setrlimit(kind, (value, value))
