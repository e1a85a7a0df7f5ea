"""JSON Lines, streamed: UTF-8, ``\\n`` only, one strict JSON object a line, errors with file:line.

Never ``splitlines()``: U+2028 occurs inside real strings. Memory is one line, whatever the file's size.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, cast

from firstchair.core.atomic import atomic_writer
from firstchair.core.errors import DataError
from firstchair.core.jsontext import JsonProblem, dumps, loads_bytes

MAX_LINE_BYTES = 32 * 1024 * 1024
"""A longer line is a broken file, not a conversation; reading it whole would take many times its size."""


@dataclass
class SkipBad:
    """How many bad records a reader may pass over, and what it passed over."""

    allowed: int = 0
    skipped: list[DataError] = field(default_factory=list)

    def take(self, error: DataError) -> None:
        """Count ``error``, or raise it when the allowance is spent."""
        if len(self.skipped) >= self.allowed:
            raise error
        self.skipped.append(error)


class _Counted(io.RawIOBase):
    """A file that tells how many of its bytes were read."""

    def __init__(self, file: io.FileIO, on_bytes: Callable[[int], None]):
        self._file, self._on_bytes = file, on_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer) or 0
        self._on_bytes(count)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def open_text_bytes(path: Path, *, on_bytes: Callable[[int], None] | None = None) -> Iterator[IO[bytes]]:
    """Open for reading, through gzip when the name ends in ``.gz``.

    ``on_bytes`` hears the size of each block read from disk, before decompression: its sum ends at the file's size.
    """
    if not path.is_file():
        raise DataError("no such file; check the path", path=str(path))
    try:
        disk = path.open("rb", buffering=0)
    except OSError as error:
        raise DataError(f"cannot open: {error.strerror}; check its permissions", path=str(path)) from None
    with disk, io.BufferedReader(_Counted(disk, on_bytes or (lambda _: None)), 1 << 20) as buffered:
        if path.suffix == ".gz":
            with gzip.GzipFile(fileobj=buffered) as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield buffered


def parse_line(raw: bytes) -> dict[str, Any]:
    """One line (without its newline) as an object. Raises ``DataError`` without file and line."""
    try:
        value = loads_bytes(raw)
    except UnicodeDecodeError as error:
        raise DataError(f"not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    except JsonProblem as error:
        raise DataError(f"not strict JSON: {error}") from None
    if not isinstance(value, dict):
        raise DataError(f"found {type(value).__name__}; expected one JSON object a line")
    return value


def read_lines(
    path: Path, *, max_line_bytes: int = MAX_LINE_BYTES, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes | DataError]]:
    """Numbered lines without their newline; blank ones are passed over, an over-long one comes as its error.

    A byte order mark on line 1 and ``\\r`` before ``\\n`` are removed: neither can be part of a JSON value.
    """
    with open_text_bytes(path, on_bytes=on_bytes) as handle:
        number = 0
        try:
            while raw := handle.readline(max_line_bytes + 1):
                number += 1
                if len(raw) > max_line_bytes:
                    size = len(raw)
                    while not raw.endswith(b"\n") and (raw := handle.readline(1 << 20)):
                        size += len(raw)
                    yield (
                        number,
                        DataError(
                            f"line of {size:,} bytes; the limit is {max_line_bytes:,}; split the record",
                            path=str(path),
                            line=number,
                        ),
                    )
                    continue
                if number == 1:
                    raw = raw.removeprefix(b"\xef\xbb\xbf")
                raw = raw.rstrip(b"\r\n")
                if raw.strip():
                    yield number, raw
        except (EOFError, zlib.error, OSError) as error:
            raise DataError(f"unreadable after line {number}: {error}", path=str(path), line=number + 1) from error


def read_jsonl(path: Path, *, skip: SkipBad | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield ``(line number, object)``. A bad line raises ``DataError``, or goes to ``skip`` while it has room."""
    skip = skip or SkipBad()
    for number, raw in read_lines(path):
        try:
            if isinstance(raw, DataError):
                raise raw
            yield number, parse_line(raw)
        except DataError as error:
            skip.take(error.at(str(path), number))


def write_jsonl(path: Path, rows: Iterable[Any], *, force: bool = False) -> int:
    """Write one JSON text a line, atomically; returns the count."""
    count = 0
    with atomic_writer(path, force=force) as out:
        for row in rows:
            out.write(dumps(row))
            out.write("\n")
            count += 1
    return count
