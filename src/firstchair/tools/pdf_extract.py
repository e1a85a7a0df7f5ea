"""``pdf_extract``: the text of pages of a PDF in the work dir, read in a process of its own."""

from __future__ import annotations

import asyncio
import math
import os
import re
import sys
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.core.errors import RunFailed
from firstchair.core.extras import require
from firstchair.core.jsontext import JsonProblem, dumps, loads
from firstchair.tools.base import Failure, ToolFailed, object_schema
from firstchair.tools.work_dir import WorkDir

_RANGES = re.compile(r"\d{1,6}(-\d{1,6})?(,\d{1,6}(-\d{1,6})?)*")
_ENVIRONMENT = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH")
"""What a Python needs to start; nothing else, keys least of all."""


class PdfExtractSpec(Strict):
    """What may be read, and what reading it may cost."""

    type: Literal["pdf_extract"] = "pdf_extract"
    max_file_bytes: int = Field(default=20_000_000, ge=1)
    max_pages: int = Field(default=20, ge=1)
    """Of one call."""
    max_chars: int = Field(default=200_000, ge=1)
    memory_mb: int = Field(default=1_024, ge=128)
    timeout_s: float = Field(default=30.0, gt=0)


class PdfExtract:
    """The tool. Raises ``ConfigError`` when ``pypdf`` (``firstchair[tools]``) is missing."""

    def __init__(self, spec: PdfExtractSpec, work_dir: WorkDir):
        require("tools")
        self._spec, self._work_dir = spec, work_dir
        self.timeout_s: float | None = spec.timeout_s
        self.tool = Tool(
            name="pdf_extract",
            description=f"Read the text of a PDF in the work directory, up to {spec.max_pages} pages a call.",
            parameters=object_schema(
                {
                    "path": {"type": "string"},
                    "pages": {"type": "string", "description": "Such as 3 or 1-5,8; from the first unless given."},
                },
                required=("path",),
            ),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """The text, page by page."""
        path = arguments["path"]
        wanted = page_numbers(arguments.get("pages", ""), self._spec.max_pages)
        data = self._work_dir.read_bytes(path, limit=self._spec.max_file_bytes)
        answer = await self._read(path, data, wanted)
        if "too_large" in answer:
            raise ToolFailed(Failure.TOO_LARGE, f"{path}: {answer['too_large']}")
        if "problem" in answer:
            raise ToolFailed(Failure.FAILED, f"{path}: {answer['problem']}")
        return _text(answer["pages"], answer["texts"])

    async def close(self) -> None:
        """The work dir is closed by who opened it."""

    async def _read(self, path: str, data: bytes, pages: list[int]) -> dict[str, Any]:
        """The worker's answer; however this ends, the worker has ended."""
        spec = self._spec
        head = {"pages": pages, "max_pages": spec.max_pages, "max_chars": spec.max_chars}
        head |= {"memory_mb": spec.memory_mb, "cpu_s": math.ceil(spec.timeout_s)}
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "firstchair.tools.pdf_worker"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        )
        try:
            out, err = await worker.communicate(dumps(head).encode() + b"\n" + data)
        finally:
            if worker.returncode is None:
                worker.kill()
                await worker.wait()
        if worker.returncode is not None and worker.returncode < 0:
            raise ToolFailed(
                Failure.TOO_LARGE, f"{path}: reading it took more than {spec.memory_mb} MB or {spec.timeout_s:g} s"
            )
        try:
            return dict(loads(out.decode("utf-8", "replace")))
        except (JsonProblem, TypeError, ValueError):
            said = err.decode("utf-8", "replace").strip()[-500:]
            raise RunFailed(f"pdf_extract: the worker ended with {worker.returncode}: {said}") from None


def page_numbers(text: str, limit: int) -> list[int]:
    """``1-3,8`` as numbers, in order and without repetition; empty for an empty text. Raises ``ToolFailed``."""
    text = text.replace(" ", "")
    if not text:
        return []
    if not _RANGES.fullmatch(text):
        raise ToolFailed(Failure.INVALID_ARGUMENTS, f"pages: {text[:50]!r} is no list of pages; write 3 or 1-5,8")
    numbers: dict[int, None] = {}
    for part in text.split(","):
        first, _, last = part.partition("-")
        start, stop = int(first), int(last or first)
        if not 1 <= start <= stop:
            raise ToolFailed(Failure.INVALID_ARGUMENTS, f"pages: {part!r} is no range; pages are counted from 1")
        numbers.update(dict.fromkeys(range(start, min(stop, start + limit) + 1)))
    if len(numbers) > limit:
        raise ToolFailed(Failure.TOO_LARGE, f"pages: at most {limit} pages a call; ask for the rest afterwards")
    return list(numbers)


def _text(count: int, texts: list[tuple[int, str]]) -> str:
    parts = [
        f"--- page {number} of {count} ---\n{text.strip() or '[no text: a scan, perhaps]'}" for number, text in texts
    ]
    return "\n\n".join(parts)
