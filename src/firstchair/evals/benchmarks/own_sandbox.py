"""The process sandbox as one of Inspect's, for a benchmark that gives the model a shell (GAIA). Imported only where
Inspect is installed; importing it is what makes its name known to Inspect.

    a tool's exec(cmd, input, cwd, env)  ─► a command in the sandbox, in the sample's own directory
    write_file, read_file                ─► commands in the sandbox too: links that the model left in its directory
                                            lead to what the model sees, and to nothing of this machine's

Only that directory lives on from call to call: no process does, and nothing in /tmp.
"""

from __future__ import annotations

import base64
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from firstchair.core.scratch import remove_tree, scratch_dir
from firstchair.sandbox.base import SandboxEnd, SandboxLimits, SandboxResult
from firstchair.sandbox.process import ProcessSandbox

NAME = "process"
LONGEST_S = 3600.0
"""Of a command for which no limit is given."""
MEMORY_MB, DISK_MB, PROCESSES = 2048, 1024, 64

_FILE_S = 60.0
_IS_FOLDER, _MISSING, _CLOSED = 41, 42, 43
_READ = f"""[ -d "$1" ] && exit {_IS_FOLDER}; [ -e "$1" ] || exit {_MISSING}; [ -r "$1" ] || exit {_CLOSED}
exec base64 -w 0 <"$1" """
_WRITE = f"""[ -d "$1" ] && exit {_IS_FOLDER}; mkdir -p -- "$(dirname -- "$1")" && exec cat >"$1" """


@sandboxenv(name=NAME)
class OwnSandbox(SandboxEnvironment):  # type: ignore[misc]
    """One sample's directory, and commands in it. They run as one user, without network."""

    _sandbox = ProcessSandbox()

    def __init__(self, folder: Path):
        super().__init__()
        self.folder = folder

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        """Try it out. Raises ``RunFailed`` where this machine cannot confine a program."""
        with scratch_dir("firstchair-inspect-") as folder:
            await cls._sandbox.run(["true"], work_dir=folder)

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, Any]:
        """A new directory."""
        return {"default": cls(Path(tempfile.mkdtemp(prefix="firstchair-inspect-")))}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, Any], interrupted: bool
    ) -> None:
        """Remove it."""
        for environment in environments.values():
            remove_tree(environment.folder)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,  # noqa: ASYNC109 - the signature is Inspect's
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> Any:
        """Run ``cmd``; one that ran out of time is not tried again, as nobody knows what it had done by then."""
        if user is not None:
            raise SandboxUserUnsupportedError(f"found the user {user!r}; this sandbox has one, who owns nothing else")
        wrapped = list(cmd)
        if cwd is not None or env:
            pairs = [f"{name}={value}" for name, value in (env or {}).items()]
            wrapped = ["/usr/bin/env", f"--chdir={cwd or '.'}", *pairs, *cmd]
        given = input.encode() if isinstance(input, str) else input or b""
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        result = await self._run(wrapped, given, timeout or LONGEST_S, most)
        if result.output_cut:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout)
        if result.end is SandboxEnd.EXITED:
            code = result.exit_code or 0
            return ExecResult(code == 0, code, result.stdout, result.stderr)
        limit = f"{MEMORY_MB} MB of memory" if result.end is SandboxEnd.MEMORY else f"{DISK_MB} MB of disk"
        return ExecResult(False, 137, result.stdout, f"{result.stderr}\nKilled: it took more than {limit}.")

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Write into the sample's directory. Raises ``PermissionError`` for a path outside of it."""
        path = PurePosixPath(file)
        if path.is_absolute() and not path.is_relative_to(self.folder):
            raise PermissionError(f"{file}: only what lies in the working directory lives on; use a relative path")
        data = contents.encode() if isinstance(contents, str) else contents
        result = await self._run(["sh", "-c", _WRITE, "sh", file], data, _FILE_S, 4096)
        if result.exit_code == _IS_FOLDER:
            raise IsADirectoryError(file)
        if result.exit_code != 0:
            raise PermissionError(f"{file}: {result.stderr.strip() or result.end}")

    async def read_file(self, file: str, text: bool = True) -> Any:
        """A file, as the sandbox sees it."""
        most = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        result = await self._run(["sh", "-c", _READ, "sh", file], b"", _FILE_S, (most + 2) // 3 * 4)
        if result.output_cut:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        known = {_IS_FOLDER: IsADirectoryError, _MISSING: FileNotFoundError}
        if result.exit_code != 0:
            raise known.get(result.exit_code or 0, PermissionError)(file)
        data = base64.b64decode(result.stdout)
        return data.decode() if text else data

    async def _run(self, command: list[str], given: bytes, seconds: float, output_bytes: int) -> SandboxResult:
        """Raises ``TimeoutError`` when it took longer, ``RunFailed`` when the sandbox could not be set up."""
        limits = SandboxLimits(
            wall_s=seconds,
            cpu_s=4 * seconds,
            memory_mb=MEMORY_MB,
            processes=PROCESSES,
            disk_mb=DISK_MB,
            output_bytes=output_bytes,
        )
        result = await self._sandbox.run(command, work_dir=self.folder, stdin=given, limits=limits)
        if result.end is SandboxEnd.TIMEOUT:
            raise TimeoutError(f"no end within {seconds:g} s")
        return result
