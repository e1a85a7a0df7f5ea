"""The one interface to untrusted code: a command in a work directory, within limits, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass


class SandboxEnd(StrEnum):
    """Why a command ended. Every one of them says something about the command, none about the sandbox."""

    EXITED = "exited"
    """By itself, or by a signal that it brought upon itself."""
    TIMEOUT = "timeout"
    """``wall_s`` or ``cpu_s`` was used up; the whole process tree has been killed."""
    MEMORY = "memory"
    """Its processes held more than ``memory_mb`` together, where the backend can tell; they have been killed. One
    that is refused memory finds out itself and goes on or exits as it likes."""
    DISK = "disk"
    """It wrote more than ``disk_mb`` into the work dir; its processes have been killed. A full /tmp is an error that
    it sees itself."""


@checked_dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class SandboxLimits:
    """What a command may use up, its children included."""

    wall_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    cpu_s: float = Field(default=10.0, gt=0, allow_inf_nan=False)
    memory_mb: int = Field(default=512, ge=1)
    """Address space of each process, and resident memory of all together."""
    processes: int = Field(default=32, ge=1)
    """Processes and threads that live at once."""
    disk_mb: int = Field(default=64, ge=1)
    """What it may add to the work dir, and, apart from that, the size of /tmp, which lies in memory."""
    output_bytes: int = Field(default=65_536, ge=0)
    """Kept of standard output, and of standard error; the rest is read and thrown away."""
    network: bool = False
    """Whether it reaches anything at all, loopback of the host included."""


@dataclass(frozen=True)
class SandboxResult:
    """What came of a command."""

    end: SandboxEnd
    exit_code: int | None
    """Negative: the signal (shells and containers say 128 + signal); 127: no such command, 126: it cannot be run;
    ``None`` when it was killed for a limit."""
    stdout: str
    """Decoded as UTF-8; what is not is replaced."""
    stderr: str
    output_cut: bool
    """Something was thrown away."""
    seconds: float


@runtime_checkable
class Sandbox(Protocol):
    """Runs commands that nobody trusts."""

    async def run(
        self, command: Sequence[str], *, work_dir: Path, stdin: bytes = b"", limits: SandboxLimits | None = None
    ) -> SandboxResult:
        """Run ``command`` with ``work_dir`` as its current and only writable directory (beside a private /tmp).

        When this returns, raises or is cancelled, no process of the command lives any more. Raises ``RunFailed`` when
        the sandbox itself cannot be set up: that says nothing about the command.
        """
        ...
