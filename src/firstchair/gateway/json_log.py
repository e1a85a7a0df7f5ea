"""The log of a server: JSON lines on stderr, without content."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from typing import Any

import orjson

from firstchair.core.clock import utc_now


def log(event: str, **fields: Any) -> None:
    """One JSON line to stderr. Never content: no bodies, headers or keys."""
    line = orjson.dumps({"at": utc_now(), "event": event, "pid": os.getpid(), **fields}, default=str)
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(line.decode() + "\n")
        sys.stderr.flush()


class JsonLines(logging.Handler):
    """What libraries and workers log, as our lines: message and place, never a value from a traceback."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write it."""
        fields: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name}
        if record.exc_info and record.exc_info[0] is not None:
            fields |= {"error": record.exc_info[0].__name__, "frames": frames_of(record.exc_info[2])}
        log("log", text=record.getMessage().strip(), **fields)


def frames_of(trace: Any) -> list[str]:
    """File, line and function of each frame of a traceback."""
    return [f"{frame.filename}:{frame.lineno} {frame.name}" for frame in traceback.extract_tb(trace)]
