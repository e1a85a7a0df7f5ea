"""``file_read``: text of a file in the work dir by lines, or the names in a directory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.tools.base import Failure, ToolFailed, object_schema
from firstchair.tools.work_dir import WorkDir

MAX_NAMES = 1_000
"""Of a directory that are listed."""


class FileReadSpec(Strict):
    """What may be read."""

    type: Literal["file_read"] = "file_read"
    max_file_bytes: int = Field(default=10_000_000, ge=1)


class FileRead:
    """The tool."""

    timeout_s: float | None = None

    def __init__(self, spec: FileReadSpec, work_dir: WorkDir):
        self._spec, self._work_dir = spec, work_dir
        self.tool = Tool(
            name="file_read",
            description="Read a text file of the work directory, or list a directory ('.' is the work directory). "
            "Paths are relative to it.",
            parameters=object_schema(
                {
                    "path": {"type": "string"},
                    "start_line": {"type": "integer", "minimum": 1, "description": "First line, counted from 1."},
                    "max_lines": {"type": "integer", "minimum": 1, "description": "All to the end unless given."},
                },
                required=("path",),
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """The text, or the names."""
        path = arguments["path"]
        if self._work_dir.kind(path) == "directory":
            return _listing(self._work_dir.names(path), path)
        text = read_text(self._work_dir, path, limit=self._spec.max_file_bytes)
        start, count = arguments.get("start_line"), arguments.get("max_lines")
        return text if start is None and count is None else _lines(text, int(start or 1), count, path)

    async def close(self) -> None:
        """The work dir is closed by who opened it."""


def read_text(work_dir: WorkDir, path: str, *, limit: int) -> str:
    """A file as UTF-8 text. Raises ``ToolFailed``."""
    raw = work_dir.read_bytes(path, limit=limit)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolFailed(
            Failure.FAILED, f"{path}: is no UTF-8 text (byte {error.start}); {len(raw):,} bytes of binary data"
        ) from None


def _lines(text: str, start: int, count: int | None, path: str) -> str:
    lines = text.split("\n")
    if text.endswith("\n"):
        lines.pop()
    if start > max(1, len(lines)):
        raise ToolFailed(Failure.INVALID_ARGUMENTS, f"start_line: {path} has {len(lines):,} lines")
    stop = len(lines) if count is None else min(len(lines), start - 1 + int(count))
    note = "" if start == 1 and stop == len(lines) else f"\n[lines {start} to {stop} of {len(lines)}]"
    return "\n".join(lines[start - 1 : stop]) + note


def _listing(names: list[str], path: str) -> str:
    if not names:
        return f"{path}: empty directory"
    more = f"\n[{len(names):,} names, the first {MAX_NAMES:,} shown]" if len(names) > MAX_NAMES else ""
    return "\n".join(names[:MAX_NAMES]) + more
