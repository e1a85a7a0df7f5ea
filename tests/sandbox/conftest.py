"""A sandbox of each kind, and what is left of a run."""

from __future__ import annotations

import asyncio
import os
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from firstchair.sandbox.base import SandboxLimits, SandboxResult
from firstchair.sandbox.process import ProcessSandbox

Run = Callable[..., SandboxResult]


@pytest.fixture(scope="session")
def confined() -> ProcessSandbox:
    """With namespaces. A machine without them fails these tests: nothing else proves the escapes."""
    return ProcessSandbox()


@pytest.fixture(scope="session")
def unconfined() -> ProcessSandbox:
    return ProcessSandbox(namespaces="off")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def run(confined: ProcessSandbox, work: Path) -> Run:
    """Python source (or a command) in the sandbox with namespaces."""

    def run(attack: str | list[str], *arguments: str, stdin: bytes = b"", **limits: object) -> SandboxResult:
        return attacked(confined, work, attack, *arguments, stdin=stdin, **limits)

    return run


@pytest.fixture(params=["confined", "unconfined"])
def run_either(request: pytest.FixtureRequest, work: Path) -> Run:
    """The same in both kinds: what holds without namespaces too."""
    sandbox = request.getfixturevalue(request.param)

    def run(attack: str | list[str], *arguments: str, stdin: bytes = b"", **limits: object) -> SandboxResult:
        return attacked(sandbox, work, attack, *arguments, stdin=stdin, **limits)

    return run


def attacked(
    sandbox: ProcessSandbox,
    work: Path,
    attack: str | list[str],
    *arguments: str,
    stdin: bytes = b"",
    **limits: object,
) -> SandboxResult:
    command = [sys.executable, "-I", "-S", "-c", attack, *arguments] if isinstance(attack, str) else attack
    return asyncio.run(
        sandbox.run(command, work_dir=work, stdin=stdin, limits=SandboxLimits(**{"wall_s": 20.0, **limits}))  # type: ignore[arg-type]
    )


@pytest.fixture
def token() -> str:
    """Something to name processes by."""
    return f"attack-{uuid.uuid4().hex}"


def living(token: str) -> list[int]:
    """Processes of this machine, those in pid namespaces included, with ``token`` among their arguments."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            arguments = Path(f"/proc/{name}/cmdline").read_bytes()
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if token.encode() in arguments and int(name) != os.getpid() and state != "Z":
            found.append(int(name))
    return found


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether it comes to hold."""
    for _ in range(400):
        if holds():
            return True
        time.sleep(0.025)
    return False
