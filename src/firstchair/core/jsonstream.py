"""JSON records one by one from a file of any size: an array, or objects one after another (JSON Lines too).

Only one record is ever held. The scanner finds where a record ends (strings and brackets); whether the record is
strict JSON is for ``jsontext`` to say.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from firstchair.core.errors import DataError
from firstchair.core.jsonl import MAX_LINE_BYTES, open_text_bytes

BLOCK = 1 << 18

# A whole string, or one of the bytes that matter outside of strings. A lone quote begins a string that the buffer
# does not end yet.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}"]', re.DOTALL)
_STRING_END = re.compile(rb'(?:[^"\\]|\\.)*+"', re.DOTALL)
_SPACE = b" \t\r\n"


def read_records(
    path: Path, *, max_record_bytes: int = MAX_LINE_BYTES, on_bytes: Callable[[int], None] | None = None
) -> Iterator[tuple[int, bytes | DataError]]:
    """Yield ``(index, bytes of one JSON object)``; an over-long record comes as its error.

    Commas between records and one pair of brackets around all of them are passed over. Raises ``DataError``
    (``path[index]``) when something else than an object stands where a record should begin, and yields it as the
    last item when the file ends inside a record.
    """
    scanner = _Scanner(str(path), max_record_bytes)
    try:
        with open_text_bytes(path, on_bytes=on_bytes) as handle:
            while block := handle.read(BLOCK):
                yield from scanner.feed(block)
    except (EOFError, zlib.error, OSError) as error:
        raise DataError(f"unreadable: {error}", path=f"{path}[{scanner.index}]") from error
    yield from scanner.end()


class _Scanner:
    """Cuts a byte stream into records. ``buffer`` holds from the start of the current record on."""

    def __init__(self, path: str, max_record_bytes: int):
        self.path, self.limit = path, max_record_bytes
        self.buffer = bytearray()
        self.index = 0
        self.depth = 0
        self.scanned = 0
        """How much of ``buffer`` has been looked at."""
        self.in_string = False
        self.dropped = 0
        """Bytes of an over-long record that were let go."""
        self.in_array: bool | None = None
        self.array_closed = False

    def feed(self, block: bytes) -> Iterator[tuple[int, bytes | DataError]]:
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
            yield self.index, self._too_long(size) if size > self.limit else record
            self.index += 1

    def end(self) -> Iterator[tuple[int, bytes | DataError]]:
        if self.depth:
            yield self.index, self._error("the file ends inside this record; it is truncated")
        elif self.in_array and not self.array_closed:
            yield self.index, self._error("the file ends without ']'; it is truncated")

    def _start(self) -> bool:
        """Bring ``buffer`` to the next record's first byte; false when more bytes are needed."""
        if self.index == 0 and self.in_array is None and len(self.buffer) >= 3:
            self.buffer = self.buffer.removeprefix(b"\xef\xbb\xbf")
        while True:
            self.buffer = self.buffer.lstrip(_SPACE + b"," if self.index or self.in_array else _SPACE)
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
            del self.buffer[: self.scanned]
            self.scanned = 0

    def _too_long(self, size: int) -> DataError:
        return self._error(f"record of {size:,} bytes; the limit is {self.limit:,}; split the record")

    def _error(self, message: str) -> DataError:
        return DataError(message, path=f"{self.path}[{self.index}]")
