"""The one interface to untrusted code: a command in a work directory, within limits, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol, runtime_checkable


class SandboxEnd(StrEnum):
    """Why a command ended. Every one of them says something about the command, none about the sandbox."""

    EXITED = "exited"
    """By itself, or by a signal that it brought upon itself."""
    TIMEOUT = "timeout"
    """``wall_s`` or ``cpu_s`` was used up; the whole process tree has been killed."""
    MEMORY = "memory"
    """It asked for more than ``memory_mb``, where the backend can tell."""


@dataclass(frozen=True)
class SandboxLimits:
    """What a command may use up, its children included."""

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_mb: int = 512
    """Address space of each process."""
    processes: int = 32
    """Processes and threads that live at once."""
    disk_mb: int = 64
    """What it may write."""
    output_bytes: int = 65_536
    """Kept of standard output, and of standard error; the rest is read and thrown away."""
    network: bool = False
    """Whether it reaches anything at all, loopback of the host included."""


@dataclass(frozen=True)
class SandboxResult:
    """What came of a command."""

    end: SandboxEnd
    exit_code: int | None
    """Negative: the signal; ``None`` when it was killed for a limit."""
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
