"""Commands as processes of this machine (Linux), in namespaces of their own: a run costs a few milliseconds."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from firstchair.core.errors import ConfigError, RunFailed
from firstchair.sandbox.base import SandboxEnd, SandboxLimits, SandboxResult
from firstchair.sandbox.launcher.client import Launcher
from firstchair.sandbox.launcher.job import Caps, Job, Outcome, SetupFailed, View
from firstchair.sandbox.launcher.tree import OWN_PLACES
from firstchair.sandbox.launcher.users import is_root

Namespaces = Literal["required", "if_available", "off"]
_MB = 1 << 20


@dataclass(frozen=True)
class Protection:
    """One thing that a sandbox is to do, and whether it does it here."""

    what: str
    holds: bool
    how: str
    """By what means; where it does not hold, what is then possible."""


class ProcessSandbox:
    """A ``Sandbox`` of processes, by namespaces, limits and a filter of system calls (docs/sandbox.md).

    ``namespaces``: ``required`` raises ``RunFailed`` where this machine has none for us, ``if_available`` and ``off``
    do with what ``describe`` then lists. ``readable``: what commands may read beside the system and this Python.

    Raises ``ConfigError`` where there is no Linux, and for a path that is not absolute.
    """

    def __init__(
        self,
        *,
        namespaces: Namespaces = "required",
        readable: Sequence[Path] = (),
        limits: SandboxLimits | None = None,
    ):
        for path in readable:
            if not path.is_absolute():
                raise ConfigError(f"sandbox.readable: {path}: expected an absolute path")
        self._limits = limits or SandboxLimits()
        self._readable = _python_folders() + tuple(str(path) for path in readable)
        self._confined: bool | None = None if namespaces == "if_available" else namespaces == "required"
        self._launcher = Launcher()

    async def run(
        self, command: Sequence[str], *, work_dir: Path, stdin: bytes = b"", limits: SandboxLimits | None = None
    ) -> SandboxResult:
        """As the contract says. Raises ``ConfigError`` for a work dir that is no directory of its own."""
        folder = _work_dir(work_dir)
        if self._confined is None:
            self._confined = await self._why_unconfined() is None
        job = self._job(tuple(command), folder, limits or self._limits, confined=self._confined)
        try:
            outcome = await self._launcher.run(job, stdin)
        except SetupFailed as failed:
            raise RunFailed(_advice(str(failed), confined=self._confined)) from None
        return _result(outcome)

    async def describe(self) -> tuple[Protection, ...]:
        """What holds on this machine, tried out."""
        if self._confined is False:
            return protections("sandbox.namespaces is off")
        why = await self._why_unconfined()
        return protections(None if why is None else f"no namespaces here ({why})")

    async def _why_unconfined(self) -> str | None:
        """Why there are no namespaces for us; ``None`` when there are."""
        with tempfile.TemporaryDirectory(prefix="firstchair-sandbox-") as folder:
            try:
                await self._launcher.run(self._job(("true",), folder, SandboxLimits(), confined=True))
            except SetupFailed as failed:
                return str(failed)
        return None

    def _job(self, command: tuple[str, ...], folder: str, limits: SandboxLimits, *, confined: bool) -> Job:
        return Job(
            command=command,
            environment=environment(),
            work_dir=folder,
            wall_s=limits.wall_s,
            output_bytes=limits.output_bytes,
            caps=Caps(
                cpu_s=limits.cpu_s,
                memory_bytes=limits.memory_mb * _MB,
                processes=limits.processes,
                disk_bytes=limits.disk_mb * _MB,
            ),
            view=View(readable=self._readable, network=limits.network) if confined else None,
        )


def environment() -> dict[str, str]:
    """All environment variables of a command: nothing of this process's own."""
    path = os.pathsep.join((str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"))
    # A thread for each core would run into the limits of processes and address space on a large machine.
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {"PATH": path, "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8", **threads}


def protections(lacking: str | None) -> tuple[Protection, ...]:
    """What holds: with namespaces (``lacking`` is ``None``), or without, for the reason given."""
    always = (
        Protection("wall-clock and CPU time", True, "a clock outside of the run; CPU time of the tree, every 50 ms"),
        Protection("memory", True, "address space of each process; resident memory of the tree, every 50 ms"),
        Protection("disk", True, "file size; growth of the work dir and bytes written, every 50 ms"),
        Protection("output", True, "read to its end and kept to output_bytes"),
        Protection("environment variables", True, "the command gets a fixed set"),
        Protection("dangerous system calls", True, "a seccomp filter; no program gains rights by being run"),
    )
    if lacking is None:
        return (
            *always,
            Protection("whole tree killed", True, "pid namespace: the kernel kills all with the first process"),
            Protection("number of processes", True, "RLIMIT_NPROC in a user namespace"),
            Protection("writes only to the work dir and a private /tmp", True, "mount namespace, the rest read-only"),
            Protection("files and sockets of the host", True, "mount namespace: only the system and this Python"),
            Protection("other processes", True, "pid namespace"),
            Protection("network", True, "network namespace with nothing but its own loopback"),
            Protection("rights on the machine", True, _whose()),
        )
    return (
        *always,
        Protection("whole tree killed", True, "descendants are stopped, then killed, orphans included"),
        Protection("number of processes", False, f"{lacking}: a tree over it is killed only when that is seen"),
        Protection(
            "writes only to the work dir and a private /tmp", False, f"{lacking}: it writes wherever this user may"
        ),
        Protection("files and sockets of the host", False, f"{lacking}: it reads whatever this user may"),
        Protection("other processes", False, f"{lacking}: it reads and signals whatever this user may"),
        Protection("network", False, f"{lacking}: it reaches what this machine reaches"),
        Protection("rights on the machine", False, f"{lacking}: it is this user"),
    )


def _whose() -> str:
    return "root's commands run as a user that owns nothing" if is_root() else "this user's, within what it sees"


def _python_folders() -> tuple[str, ...]:
    """Where this Python and its packages lie, unless the system has them."""
    folders = dict.fromkeys(map(os.path.realpath, (sys.base_prefix, sys.prefix)))
    folders.update(dict.fromkeys(map(os.path.abspath, (sys.base_prefix, sys.prefix))))
    return tuple(folder for folder in folders if folder not in ("/", "/usr"))


def _work_dir(path: Path) -> str:
    folder = os.path.realpath(path)
    if not os.path.isdir(folder):
        raise ConfigError(f"work_dir: {path}: no such directory; make it first")
    if folder in OWN_PLACES:
        raise ConfigError(f"work_dir: {path}: the sandbox has a {folder} of its own; use a directory below it")
    return folder


def _result(outcome: Outcome) -> SandboxResult:
    return SandboxResult(
        end=SandboxEnd(outcome.end),
        exit_code=outcome.exit_code,
        stdout=outcome.stdout.decode("utf-8", "replace"),
        stderr=outcome.stderr.decode("utf-8", "replace"),
        output_cut=outcome.output_cut,
        seconds=outcome.seconds,
    )


def _advice(reason: str, *, confined: bool) -> str:
    if not confined:
        return f"process sandbox: {reason}"
    return (
        f"process sandbox: {reason}; what it takes is in docs/sandbox.md. Use type: container, or accept weaker "
        "isolation with namespaces: if_available"
    )
