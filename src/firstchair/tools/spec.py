"""Which tools there are, as a YAML file says; and the one place where they are opened.

work_dir: ./work
sandbox: {type: process}
tools:
  - type: code_interpreter
  - type: calculator
  - type: file_read
  - type: web_search
    backend: {type: local, index: ./index}
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError
from firstchair.sandbox.base import Sandbox
from firstchair.sandbox.spec import ProcessSpec, SandboxSpec, open_sandbox
from firstchair.tools.apply_patch import ApplyPatch, ApplyPatchSpec
from firstchair.tools.base import RealTool
from firstchair.tools.calculator import Calculator, CalculatorSpec
from firstchair.tools.code import CodeInterpreter, CodeInterpreterSpec, ShellExec, ShellExecSpec
from firstchair.tools.db_query import DbQuery, DbQuerySpec, open_database
from firstchair.tools.file_read import FileRead, FileReadSpec
from firstchair.tools.file_write import FileWrite, FileWriteSpec
from firstchair.tools.http_request import HttpRequest, HttpRequestSpec
from firstchair.tools.pdf_extract import PdfExtract, PdfExtractSpec
from firstchair.tools.think import Think, ThinkSpec
from firstchair.tools.toolbox import OBSERVATION_CHARS, ToolBox
from firstchair.tools.web_search import WebSearch, WebSearchSpec, open_backend
from firstchair.tools.work_dir import WorkDir

OneTool = Annotated[
    ApplyPatchSpec
    | CalculatorSpec
    | CodeInterpreterSpec
    | DbQuerySpec
    | FileReadSpec
    | FileWriteSpec
    | HttpRequestSpec
    | PdfExtractSpec
    | ShellExecSpec
    | ThinkSpec
    | WebSearchSpec,
    Field(discriminator="type"),
]
InWorkDir = ApplyPatchSpec | CodeInterpreterSpec | FileReadSpec | FileWriteSpec | PdfExtractSpec | ShellExecSpec
"""Tools that work on files."""
_IN_SANDBOX = (CodeInterpreterSpec, ShellExecSpec)


class ToolsSpec(Strict):
    """The tools that are offered together."""

    tools: tuple[OneTool, ...]
    """In the order in which a model sees them."""
    work_dir: Path | None = None
    """Where files are read and written, and programs run; made when it is not there."""
    sandbox: SandboxSpec = ProcessSpec()
    """What ``code_interpreter`` and ``shell_exec`` run in."""
    observation_chars: int = Field(default=OBSERVATION_CHARS, ge=200)
    """What a model sees of one result."""

    @model_validator(mode="after")
    def _fits_together(self) -> ToolsSpec:
        if not self.tools:
            raise ValueError("tools is empty; name one, such as {type: calculator}")
        twice = [name for name, count in Counter(one.type for one in self.tools).items() if count > 1]
        if twice:
            raise ValueError(f"{twice[0]} stands twice in tools; keep one")
        needing = [one.type for one in self.tools if needs_work_dir(one)]
        if needing and self.work_dir is None:
            raise ValueError(f"work_dir is needed by {', '.join(needing)}; name a directory")
        return self


def needs_work_dir(spec: OneTool) -> bool:
    """Whether a tool works on files, so that each episode wants one of its own."""
    return isinstance(spec, InWorkDir)


class _OpenedTools(ToolBox):
    """The tools, and the work dir that they share."""

    def __init__(self, tools: list[RealTool], work_dir: WorkDir | None, *, observation_chars: int):
        super().__init__(tools, observation_chars=observation_chars)
        self._work_dir = work_dir

    async def close(self) -> None:
        """Close all tools, then the work dir."""
        await super().close()
        if self._work_dir is not None:
            self._work_dir.close()


def sandbox_of(spec: ToolsSpec) -> Sandbox | None:
    """The sandbox that its tools run in; ``None`` when none of them needs one."""
    return open_sandbox(spec.sandbox) if any(isinstance(one, _IN_SANDBOX) for one in spec.tools) else None


def open_tools(spec: ToolsSpec, *, work_dir: Path | None = None, sandbox: Sandbox | None = None) -> ToolBox:
    """The tools of ``spec``, opened; ``work_dir`` is taken in place of its own, for one directory an episode, and
    ``sandbox`` in place of a new one, for one of many episodes.

    Close it. Raises ``ConfigError`` or ``DataError`` for a key, an index, a database or a package that is missing.
    """
    place = work_dir or spec.work_dir
    shared = WorkDir(place) if place is not None else None
    try:
        sandbox = sandbox or sandbox_of(spec)
        opened = [_open(one, shared, sandbox) for one in spec.tools]
    except BaseException:
        if shared is not None:
            shared.close()
        raise
    return _OpenedTools(opened, shared, observation_chars=spec.observation_chars)


def _open(spec: OneTool, shared: WorkDir | None, sandbox: Sandbox | None) -> RealTool:
    match spec:
        case CalculatorSpec():
            return Calculator()
        case ThinkSpec():
            return Think()
        case DbQuerySpec():
            return DbQuery(spec, open_database(spec))
        case HttpRequestSpec():
            return HttpRequest(spec)
        case WebSearchSpec():
            return WebSearch(spec, open_backend(spec.backend))
    if shared is None:
        raise ConfigError(f"work_dir is needed by {spec.type}; name a directory")
    return _open_in(spec, shared, sandbox)


def _open_in(spec: InWorkDir, shared: WorkDir, sandbox: Sandbox | None) -> RealTool:
    match spec:
        case ApplyPatchSpec():
            return ApplyPatch(spec, shared)
        case FileReadSpec():
            return FileRead(spec, shared)
        case FileWriteSpec():
            return FileWrite(spec, shared)
        case PdfExtractSpec():
            return PdfExtract(spec, shared)
    assert sandbox is not None
    match spec:
        case CodeInterpreterSpec():
            return CodeInterpreter(spec, sandbox, shared.root)
        case ShellExecSpec():
            return ShellExec(spec, sandbox, shared.root)
