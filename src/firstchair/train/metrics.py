"""Metrics of a run as JSON Lines: ``metrics.jsonl`` holds what is reproducible, ``timings.jsonl`` what the clock
says.

A checkpoint remembers how long ``metrics.jsonl`` was. Resuming cuts it there, so a step that is trained again is
written again and never twice.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from firstchair.core.errors import IntegrityError, RunFailed
from firstchair.core.jsontext import dumps, loads


class MetricLog:
    """An append-only JSONL file that can be cut back."""

    def __init__(self, path: Path, *, keep_bytes: int | None = 0):
        """Open ``path`` and cut it to its first ``keep_bytes`` (``None`` keeps all).

        Raises ``IntegrityError`` when the file is shorter than that.
        """
        self.path = path
        present = path.stat().st_size if path.exists() else 0
        keep_bytes = present if keep_bytes is None else keep_bytes
        if present < keep_bytes:
            raise IntegrityError(
                f"{present} bytes; it had {keep_bytes} when the checkpoint was written; restore it, or start anew",
                path=str(path),
            )
        try:
            self._handle = path.open("ab")
            self._handle.truncate(keep_bytes)
        except OSError as error:
            raise RunFailed(f"cannot write {path}: {error.strerror}") from error

    def write(self, record: Mapping[str, Any]) -> None:
        """Append one line and hand it to the system."""
        try:
            self._handle.write(dumps(dict(record)).encode("utf-8") + b"\n")
            self._handle.flush()
        except OSError as error:
            raise RunFailed(f"cannot write {self.path}: {error.strerror}; free space and resume") from error

    def sync(self) -> int:
        """Make what was written durable; returns the length in bytes."""
        try:
            os.fsync(self._handle.fileno())
        except OSError as error:
            raise RunFailed(f"cannot write {self.path}: {error.strerror}; free space and resume") from error
        return os.fstat(self._handle.fileno()).st_size

    def close(self) -> None:
        """Close the file."""
        self._handle.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics file; a last line that was cut by a crash is left out."""
    if not path.is_file():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [loads(line.decode("utf-8")) for line in lines]


def read_steps(path: Path) -> int:
    """The last optimizer step in a metrics file; 0 when there is none."""
    return max((line["step"] for line in read_metrics(path) if line.get("event") == "step"), default=0)
