"""Commands in containers: docker, podman or apptainer, by their command lines.

A container that did not start and a command that failed look alike from outside: both are an exit code and text on
standard error, and a command can imitate either. So what is run first prints a mark that nobody can know, then
becomes the command. Output that begins with the mark is the command's; without it there is no result, but
``RunFailed``.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from firstchair.core.concurrency import to_the_end
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.jsontext import JsonProblem, loads
from firstchair.sandbox.base import SandboxEnd, SandboxLimits, SandboxResult
from firstchair.sandbox.launcher.client import Launcher
from firstchair.sandbox.launcher.command import OPEN_FILES
from firstchair.sandbox.launcher.job import Job, Outcome, SetupFailed
from firstchair.sandbox.launcher.usage import folder_bytes

Engine = Literal["docker", "podman", "apptainer"]
_MB = 1 << 20
_POLL_S = 0.25
_HOUSEKEEPING_S = 60.0
_KILLED, _OF_ENGINE = 128 + 9, 125
"""Exit codes of the engine's command: of a container that was killed, and of the engine itself when it breaks."""
_CHATTER = ("INFO", "WARNING", "Run '", "See '")


@dataclass(frozen=True)
class Container:
    """What one container is started from."""

    image: str
    name: str
    work_dir: str
    owner: str
    """``user:group`` of the work dir: who the command runs as."""


class ContainerSandbox:
    """A ``Sandbox`` of containers (docs/sandbox.md). ``wall_s`` counts from before the container is started.

    The image must be here already and hold ``sh``. Raises ``ConfigError`` when the engine is not installed.
    """

    def __init__(self, *, engine: Engine = "docker", image: str, limits: SandboxLimits | None = None):
        program = shutil.which(engine)
        if program is None:
            raise ConfigError(f"sandbox.engine: {engine}: not on PATH; install it, or use another engine")
        self._engine, self._program, self._image = engine, program, image
        self._limits = limits or SandboxLimits()
        self._launcher = Launcher()

    async def run(
        self, command: Sequence[str], *, work_dir: Path, stdin: bytes = b"", limits: SandboxLimits | None = None
    ) -> SandboxResult:
        """As the contract says. Raises ``ConfigError`` for a work dir that is not there."""
        limits = limits or self._limits
        mark = secrets.token_hex(16)
        container = Container(self._image, f"firstchair-{secrets.token_hex(8)}", *_place(work_dir))
        line = self._line(container, ["sh", "-c", 'printf %s "$0"; exec "$@"', mark, *command], limits)
        outcome: Outcome | None = None
        state: dict[str, Any] = {}
        try:
            outcome, filled = await self._watched(line, container, stdin, limits, len(mark))
            if outcome.exit_code in (_KILLED, _OF_ENGINE):
                state = await self._state(container)
        finally:
            started = outcome is not None and outcome.stdout.startswith(mark.encode())
            await to_the_end(self._remove(container, started=started))
        if not started:
            raise RunFailed(not_started(self._engine, self._image, outcome))
        if not filled and self._has_broken(outcome, state):
            raise RunFailed(broke_off(self._engine, outcome))
        killed = outcome.exit_code == _KILLED and state.get("OOMKilled") is True
        end = SandboxEnd.DISK if filled else SandboxEnd.MEMORY if killed else SandboxEnd(outcome.end)
        return SandboxResult(
            end=end,
            exit_code=outcome.exit_code if end is SandboxEnd.EXITED else None,
            stdout=outcome.stdout[len(mark) :].decode("utf-8", "replace"),
            stderr=outcome.stderr.decode("utf-8", "replace"),
            output_cut=outcome.output_cut,
            seconds=outcome.seconds,
        )

    def _line(self, container: Container, command: list[str], limits: SandboxLimits) -> list[str]:
        if self._engine == "apptainer":
            return [self._program, *apptainer_arguments(container, command, limits)]
        return [self._program, *docker_arguments(container, command, limits, rootless=_is_rootless(self._engine))]

    async def _watched(
        self, line: list[str], container: Container, stdin: bytes, limits: SandboxLimits, mark_bytes: int
    ) -> tuple[Outcome, bool]:
        """What came of the engine's command, and whether the work dir was filled, which ends the container."""
        output_bytes = limits.output_bytes + mark_bytes
        before = await asyncio.to_thread(folder_bytes, container.work_dir)
        enough = before + limits.disk_mb * _MB
        running = asyncio.ensure_future(self._launch(line, stdin, wall_s=limits.wall_s, output_bytes=output_bytes))
        try:
            filled = False
            while not running.done():
                await asyncio.wait([running], timeout=_POLL_S)
                if not filled and await asyncio.to_thread(folder_bytes, container.work_dir, enough=enough) > enough:
                    filled = True
                    await self._remove(container)
            return running.result(), filled
        finally:
            running.cancel()
            await asyncio.wait([running])

    async def _state(self, container: Container) -> dict[str, Any]:
        """What the engine says of a container that has ended; nothing where it cannot."""
        if self._engine == "apptainer":
            return {}
        told = await self._keep_house("inspect", "--format", "{{json .State}}", container.name)
        try:
            state = loads(told.stdout.decode("utf-8", "replace"))
        except JsonProblem:
            return {}
        return state if isinstance(state, dict) else {}

    def _has_broken(self, outcome: Outcome, state: dict[str, Any]) -> bool:
        """Whether the engine broke when the command was running, so that its exit code is none of the command's."""
        if self._engine == "apptainer" or outcome.exit_code is None:
            return False
        own = outcome.exit_code == _OF_ENGINE and state.get("ExitCode") != _OF_ENGINE
        return own or outcome.exit_code < 0

    async def _remove(self, container: Container, *, started: bool = True) -> None:
        """Kill and remove it. Raises ``RunFailed`` when it may be running yet."""
        if self._engine == "apptainer":
            return  # no daemon: its processes were ours, and are dead
        gone = await self._keep_house("rm", "--force", "--volumes", container.name)
        text = gone.stderr.decode("utf-8", "replace").strip()
        lower = text.lower()
        if gone.exit_code == 0 or "no such container" in lower or "already in progress" in lower:
            return
        # An engine that is down has started nothing; one that goes down leaves running what it had.
        if started or not _is_down(text):
            said = " ".join(text.split())[:200] or f"no answer in {gone.seconds:.0f} s"
            raise RunFailed(
                f"{self._engine} rm --force {container.name}: {said}; remove it by hand: it may be running"
            )

    async def _keep_house(self, *arguments: str) -> Outcome:
        return await self._launch([self._program, *arguments], b"", wall_s=_HOUSEKEEPING_S, output_bytes=1 << 16)

    async def _launch(self, line: list[str], stdin: bytes, *, wall_s: float, output_bytes: int) -> Outcome:
        # The engine's command is ours: it needs this process's environment (HOME, DOCKER_HOST) and no limits.
        job = Job(tuple(line), dict(os.environ), "/", wall_s, output_bytes, caps=None, view=None)
        try:
            return await self._launcher.run(job, stdin)
        except SetupFailed as failed:
            raise RunFailed(f"{line[0]}: {failed}") from None


def docker_arguments(
    container: Container, command: list[str], limits: SandboxLimits, *, rootless: bool = False
) -> list[str]:
    """Arguments of docker and podman. ``rootless``: podman without root, whose users are mapped unless told."""
    memory = f"{limits.memory_mb}m"
    tmp = f"/tmp:rw,nosuid,nodev,size={limits.disk_mb}m,mode=1777"
    work_dir = container.work_dir
    return [
        *("run", "--interactive", "--init", "--pull", "never"),
        *("--name", container.name, "--label", "firstchair=sandbox"),
        *("--network", "bridge" if limits.network else "none"),
        *("--user", container.owner, *(("--userns", "keep-id") if rootless else ())),
        *("--cap-drop", "ALL", "--security-opt", "no-new-privileges"),
        *("--read-only", "--tmpfs", tmp),
        *("--mount", f"type=bind,source={work_dir},target={work_dir}", "--workdir", work_dir),
        *("--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.processes + 1)),
        *("--ulimit", f"cpu={math.ceil(limits.cpu_s)}", "--ulimit", f"fsize={limits.disk_mb * _MB}"),
        *("--ulimit", f"nofile={OPEN_FILES}", "--ulimit", "core=0"),
        *("--env", "HOME=/tmp", "--env", "TMPDIR=/tmp", "--env", "LANG=C.UTF-8"),
        container.image,
        *command,
    ]


def apptainer_arguments(container: Container, command: list[str], limits: SandboxLimits) -> list[str]:
    """Arguments of apptainer. Its limits need a cgroup that this user may set up; it says so when there is none."""
    work_dir = container.work_dir
    return [
        *("exec", "--containall", "--no-home", "--no-privs"),
        *(() if limits.network else ("--net", "--network", "none")),
        *("--bind", f"{work_dir}:{work_dir}", "--pwd", work_dir),
        *("--memory", f"{limits.memory_mb}M", "--pids-limit", str(limits.processes + 2)),
        *("--env", "TMPDIR=/tmp,LANG=C.UTF-8"),
        container.image,
        *command,
    ]


def not_started(engine: Engine, image: str, outcome: Outcome) -> str:
    """Why there was no command, in one line with the fix."""
    text = outcome.stderr.decode("utf-8", "replace").strip()
    lines = [line for line in text.splitlines() if line and not line.startswith(_CHATTER)]
    said = lines[0] if lines else f"exit code {outcome.exit_code}, without a word"
    if outcome.end != "exited":
        return (
            f"{engine}: the container did not start in {outcome.seconds:.0f} s; raise wall_s, or look at the engine"
        )
    if _is_down(text):
        return f"{engine}: {said}; start its service, or name the right one with DOCKER_HOST"
    lower = text.lower()
    if any(words in lower for words in ("no such image", "unable to find image", "image not known")):
        return f"{engine}: there is no image {image!r} here; run: {engine} pull {image}"
    if "permission denied" in lower and "daemon" in lower:
        return f"{engine}: {said}; let this user use it, or take podman, which needs no service"
    return f"{engine}: the container did not start: {said}"


def broke_off(engine: Engine, outcome: Outcome) -> str:
    """Why a command that had begun has no result."""
    said = outcome.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"{engine}: broke off, exit code {outcome.exit_code}: {said[-1][:200] if said else 'without a word'}"


def _is_down(text: str) -> bool:
    return any(words in text for words in ("Cannot connect to", "daemon running", "failed to connect to the docker"))


def _place(work_dir: Path) -> tuple[str, str]:
    folder = os.path.realpath(work_dir)
    if not os.path.isdir(folder):
        raise ConfigError(f"work_dir: {work_dir}: no such directory; make it first")
    if any(mark in folder for mark in ',:"'):
        raise ConfigError(f"work_dir: {work_dir}: holds a comma, colon or quote, which an engine takes for its own")
    found = os.stat(folder)
    return folder, f"{found.st_uid}:{found.st_gid}"


def _is_rootless(engine: Engine) -> bool:
    return engine == "podman" and os.geteuid() != 0
