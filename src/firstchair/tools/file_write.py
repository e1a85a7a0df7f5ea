"""``file_write``: a whole file of the work dir, new or replaced, atomically."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.tools.base import Failure, ToolFailed, object_schema
from firstchair.tools.work_dir import WorkDir


class FileWriteSpec(Strict):
    """What may be written."""

    type: Literal["file_write"] = "file_write"
    max_file_bytes: int = Field(default=1_000_000, ge=1)


class FileWrite:
    """The tool."""

    timeout_s: float | None = None

    def __init__(self, spec: FileWriteSpec, work_dir: WorkDir):
        self._spec, self._work_dir = spec, work_dir
        self.tool = Tool(
            name="file_write",
            description="Write a text file of the work directory: a new one, or in place of the one that is there. "
            "Directories on the way are made. The path is relative to the work directory.",
            parameters=object_schema(
                {"path": {"type": "string"}, "content": {"type": "string"}}, required=("path", "content")
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """What was written."""
        data = arguments["content"].encode("utf-8")
        refuse_size(arguments["path"], len(data), self._spec.max_file_bytes)
        self._work_dir.write_bytes(arguments["path"], data)
        return f"{len(data):,} bytes written to {arguments['path']}"

    async def close(self) -> None:
        """The work dir is closed by who opened it."""


def refuse_size(path: str, size: int, limit: int) -> None:
    """Raise ``ToolFailed`` when a file would become larger than ``limit`` bytes."""
    if size > limit:
        raise ToolFailed(
            Failure.TOO_LARGE, f"{path}: would have {size:,} bytes of at most {limit:,}; write it in several files"
        )
