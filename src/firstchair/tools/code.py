"""``code_interpreter`` and ``shell_exec``: a model's program, or its command line, in a sandbox.

Both run in the work dir that the other tools of an episode have: files live on from call to call, processes do not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.sandbox.base import Sandbox, SandboxEnd, SandboxLimits, SandboxResult
from firstchair.tools.base import Failure, ToolFailed, object_schema

# The source goes to a file of the private /tmp, for a traceback that shows its lines; not into the work dir, where a
# call before may have left a link of that name.
_PYTHON = 'cat > "$TMPDIR/code.py" && PYTHONPATH="$PWD" exec "$0" "$TMPDIR/code.py" < /dev/null'
_SHELL = 'command -v bash > /dev/null && exec bash -c "$0"; exec sh -c "$0"'

STDERR_CHARS = 3_000
"""What is shown of standard error: its end, where a traceback says what went wrong."""

_EXPLAINED = {
    SandboxEnd.TIMEOUT: "stopped after {limits.wall_s:g} s of wall-clock or {limits.cpu_s:g} s of processor time; "
    "do less at once",
    SandboxEnd.MEMORY: "stopped: its processes held more than {limits.memory_mb} MB; work in smaller pieces",
    SandboxEnd.DISK: "stopped: it added more than {limits.disk_mb} MB to the work directory; write less",
}


class CodeInterpreterSpec(Strict):
    """How programs run."""

    type: Literal["code_interpreter"] = "code_interpreter"
    limits: SandboxLimits = SandboxLimits()
    python: str = Field(default="python3", min_length=1)
    """The interpreter, as the sandbox finds it."""


class ShellExecSpec(Strict):
    """How command lines run."""

    type: Literal["shell_exec"] = "shell_exec"
    limits: SandboxLimits = SandboxLimits()


class _InSandbox:
    """What both tools have in common. The sandbox and the work dir stay their owners'."""

    timeout_s: float | None = None

    def __init__(self, tool: Tool, limits: SandboxLimits, sandbox: Sandbox, work_dir: Path):
        self.tool = tool
        self._limits, self._sandbox, self._work_dir = limits, sandbox, work_dir

    async def close(self) -> None:
        """Nothing of its own is held."""

    async def _observe(self, *command: str, stdin: str = "") -> str:
        await asyncio.to_thread(self._work_dir.mkdir, parents=True, exist_ok=True)
        result = await self._sandbox.run(command, work_dir=self._work_dir, stdin=stdin.encode(), limits=self._limits)
        text = observation(result, self._limits)
        if has_failed(result):
            raise ToolFailed(Failure.TIMEOUT if result.end is SandboxEnd.TIMEOUT else Failure.FAILED, text)
        return text


class CodeInterpreter(_InSandbox):
    """A ``RealTool`` that runs Python programs."""

    def __init__(self, spec: CodeInterpreterSpec, sandbox: Sandbox, work_dir: Path):
        self._python = spec.python
        description = (
            "Run a Python program and get what it prints: print() what you want to know. Each call is a new process "
            f"of at most {spec.limits.wall_s:g} s; files in the current directory are kept, variables are not."
        )
        parameters = object_schema({"code": {"type": "string", "description": "Python source"}}, required=("code",))
        tool = Tool(name="code_interpreter", description=description, parameters=parameters)
        super().__init__(tool, spec.limits, sandbox, work_dir)

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """What it printed. Raises ``ToolFailed`` when it failed or was stopped, ``RunFailed`` for the sandbox."""
        return await self._observe("sh", "-c", _PYTHON, self._python, stdin=arguments["code"])


class ShellExec(_InSandbox):
    """A ``RealTool`` that runs command lines."""

    def __init__(self, spec: ShellExecSpec, sandbox: Sandbox, work_dir: Path):
        description = (
            "Run a command line (bash where there is one, else sh) and get what it prints. It has at most "
            f"{spec.limits.wall_s:g} s; files in the current directory are kept, processes in the background are not."
        )
        parameters = object_schema({"command": {"type": "string"}}, required=("command",))
        tool = Tool(name="shell_exec", description=description, parameters=parameters)
        super().__init__(tool, spec.limits, sandbox, work_dir)

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """What it printed. Raises ``ToolFailed`` when it failed or was stopped, ``RunFailed`` for the sandbox."""
        return await self._observe("sh", "-c", _SHELL, _without_nul(arguments["command"]))


def observation(result: SandboxResult, limits: SandboxLimits) -> str:
    """What a model reads: the output, then the end of what went to standard error. When the command failed, how it
    ended and what it said of that come first, since a long observation is cut at its end.
    """
    notes, blocks = [], []
    if result.end is not SandboxEnd.EXITED:
        notes.append(_EXPLAINED[result.end].format(limits=limits))
    elif result.exit_code:
        notes.append(f"exit code {result.exit_code}")
    if result.output_cut:
        notes.append(f"[cut: more than {limits.output_bytes:,} bytes were printed; print less, or write to a file]")
    if result.stdout:
        blocks.append(result.stdout.rstrip("\n"))
    if error := result.stderr.rstrip():
        error = error if len(error) <= STDERR_CHARS else f"[…]{error[-STDERR_CHARS:]}"
        blocks.append(f"stderr:\n{error}")
    if has_failed(result) and len(blocks) == 2:
        blocks = [blocks[1], f"stdout:\n{blocks[0]}"]
    return "\n".join((*notes, *blocks)) or "(nothing was printed)"


def has_failed(result: SandboxResult) -> bool:
    """Whether the command was stopped, or exited with anything but 0."""
    return result.end is not SandboxEnd.EXITED or result.exit_code != 0


def _without_nul(command: str) -> str:
    if "\0" in command:
        raise ToolFailed(Failure.INVALID_ARGUMENTS, "command holds a NUL character; write \\0 or use a file")
    return command
