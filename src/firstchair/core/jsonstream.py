"""JSON records one by one from a file of any size: JSON Lines, an array, or objects one after another.

Only one record is ever held. JSON Lines are read line by line, so that a broken line costs that line alone. In any
other file the scanner finds where a record ends (strings and brackets); whether it is strict JSON is for ``jsontext``
to say.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import msgspec

from firstchair.core.errors import DataError
from firstchair.core.jsonl import MAX_LINE_BYTES, open_text_bytes, read_lines

BLOCK = 1 << 18

# A whole string, or one of the bytes that matter outside of strings. A lone quote begins a string that the buffer
# does not end yet.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}"]', re.DOTALL)
_STRING_END = re.compile(rb'(?:[^"\\]|\\.)*+"', re.DOTALL)
_SPACE = b" \t\r\n"


class Record(NamedTuple):
    """One record and its place."""

    path: str
    """The file; ``file[index]`` unless it is JSON Lines."""
    line: int
    """Where the record begins."""
    raw: bytes | DataError
    """Bytes of one JSON object (in JSON Lines: of the line, whatever it is); or why it cannot be read."""

    @property
    def origin(self) -> str:
        """``file:line`` or ``file[index]:line``."""
        return f"{self.path}:{self.line}"


def read_records(
    path: Path, *, max_record_bytes: int = MAX_LINE_BYTES, on_bytes: Callable[[int], None] | None = None
) -> Iterator[Record]:
    """Yield the records of a file; an over-long one comes as its error.

    In a file that is not JSON Lines commas between records and one pair of brackets around all of them are passed
    over. There ``DataError`` is raised when something else than an object stands where a record should begin, and is
    yielded as the last item when the file ends inside a record.
    """
    if _is_json_lines(path, max_record_bytes):
        for number, line in read_lines(path, max_line_bytes=max_record_bytes, on_bytes=on_bytes):
            yield Record(str(path), number, line)
        return
    scanner = _Scanner(str(path), max_record_bytes)
    try:
        with open_text_bytes(path, on_bytes=on_bytes) as handle:
            while block := handle.read(BLOCK):
                yield from scanner.feed(block)
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"unreadable: {error}", path=f"{path}[{scanner.index}]", line=scanner.line) from error
    yield from scanner.end()


def _is_json_lines(path: Path, max_line_bytes: int) -> bool:
    """Whether the first line is an object by itself; or, since it may be the broken one, the second is, and the third
    begins one (a line on its own inside of an object is followed by that object's rest).
    """
    try:
        first, *others = (raw for _, raw in islice(read_lines(path, max_line_bytes=max_line_bytes), 3))
    except (ValueError, DataError):
        return False  # empty, or reading it in earnest will say why it cannot be read
    if not all(isinstance(raw, bytes) and raw.startswith(b"{") for raw in (first, *others)):
        return _is_object(first)
    return any(_is_object(raw) for raw in (first, *others[:1]))


def _is_object(raw: bytes | DataError) -> bool:
    if isinstance(raw, DataError):
        return False
    try:
        _any_object.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return False
    return True


_any_object = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Scanner:
    """Cuts a byte stream into records. ``buffer`` holds from the start of the current record on."""

    def __init__(self, path: str, max_record_bytes: int):
        self.path, self.limit = path, max_record_bytes
        self.buffer = bytearray()
        self.index = 0
        self.line = 1
        """Where ``buffer`` begins, and with it the current record."""
        self.depth = 0
        self.scanned = 0
        """How much of ``buffer`` has been looked at."""
        self.in_string = False
        self.dropped = 0
        """Bytes of an over-long record that were let go, and the lines in them."""
        self.dropped_lines = 0
        self.in_array: bool | None = None
        self.array_closed = False

    def feed(self, block: bytes) -> Iterator[Record]:
        self.buffer += block
        while True:
            if self.depth == 0 and not self._start():
                return
            end = self._scan()
            if end is None:
                self._let_go()
                return
            record = bytes(self.buffer[:end])
            del self.buffer[:end]
            self.scanned = 0
            size, self.dropped = self.dropped + len(record), 0
            yield self._record(self._too_long(size) if size > self.limit else record)
            self.line += self.dropped_lines + record.count(b"\n")
            self.dropped_lines = 0
            self.index += 1

    def end(self) -> Iterator[Record]:
        if self.depth:
            yield self._record(self._error("the file ends inside this record; it is truncated"))
        elif self.in_array and not self.array_closed:
            yield self._record(self._error("the file ends without ']'; it is truncated"))

    def _start(self) -> bool:
        """Bring ``buffer`` to the next record's first byte; false when more bytes are needed."""
        if self.index == 0 and self.in_array is None and len(self.buffer) >= 3:
            self.buffer = self.buffer.removeprefix(b"\xef\xbb\xbf")
        while True:
            newlines = self.buffer.count(b"\n")
            self.buffer = self.buffer.lstrip(_SPACE + b"," if self.index or self.in_array else _SPACE)
            self.line += newlines - self.buffer.count(b"\n")
            if not self.buffer:
                return False
            first = self.buffer[:1]
            if first == b"{" and not self.array_closed:
                self.in_array = bool(self.in_array)
                return True
            if first == b"[" and self.in_array is None:
                self.in_array = True
            elif first == b"]" and self.in_array and not self.array_closed:
                self.array_closed = True
            elif self.in_array is None and len(self.buffer) < 3 and b"\xef\xbb\xbf".startswith(self.buffer):
                return False
            else:
                raise self._error(f"found {bytes(self.buffer[:20])!r}; expected a JSON object")
            del self.buffer[:1]

    def _scan(self) -> int | None:
        """The index after the current record, or ``None`` when ``buffer`` does not hold its end."""
        position = self.scanned
        while True:
            if self.in_string:
                found = _STRING_END.match(self.buffer, position)
                if found is None:
                    # Stop before a backslash that may still wait for its character.
                    self.scanned = self._safe_end(position)
                    return None
                self.in_string = False
                position = found.end()
            for token in _TOKEN.finditer(self.buffer, position):
                byte = self.buffer[token.start()]
                position = token.end()
                if byte in b"{[":
                    self.depth += 1
                elif byte in b"}]":
                    self.depth -= 1
                    if self.depth == 0:
                        return position
                elif token.end() - token.start() == 1:
                    self.in_string = True
                    break
            else:
                self.scanned = len(self.buffer)
                return None

    def _safe_end(self, position: int) -> int:
        end = len(self.buffer)
        slashes = 0
        while end - slashes > position and self.buffer[end - slashes - 1] == 0x5C:
            slashes += 1
        return end - slashes % 2

    def _let_go(self) -> None:
        # The record can no longer be used; only its end matters.
        if self.dropped + len(self.buffer) > self.limit:
            self.dropped += self.scanned
            self.dropped_lines += self.buffer.count(b"\n", 0, self.scanned)
            del self.buffer[: self.scanned]
            self.scanned = 0

    def _too_long(self, size: int) -> DataError:
        return self._error(f"record of {size:,} bytes; the limit is {self.limit:,}; split the record")

    def _error(self, message: str) -> DataError:
        return DataError(message, path=f"{self.path}[{self.index}]", line=self.line)

    def _record(self, raw: bytes | DataError) -> Record:
        return Record(f"{self.path}[{self.index}]", self.line, raw)
