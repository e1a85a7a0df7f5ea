"""What a grammar cannot say about JSON text as it grows: keys stand once, numbers are finite, nesting is bounded."""

from __future__ import annotations

import json
import math

MAX_DEPTH = 32
"""Half of what strict reading accepts; arguments lie two levels down in a call."""

_MAX_DIGITS = 4000
"""Python refuses to read integers of more than 4,300 digits."""

_NUMBER_START = frozenset(b"-0123456789")
_NUMBER = frozenset(b"-+.eE0123456789")


class JsonGuard:
    """Follows JSON text byte by byte; the text itself is taken to be well-formed so far (a grammar sees to it)."""

    __slots__ = ("_escape", "_expects_key", "_keys", "_number", "_text", "in_string")

    def __init__(self) -> None:
        self.in_string = False
        self._escape = 0
        """Bytes of an escape sequence still to come."""
        self._text = bytearray()
        """The string being read, as written."""
        self._number = bytearray()
        self._keys: list[set[str] | None] = []
        """Open brackets, outermost first: an object's keys so far, ``None`` for an array."""
        self._expects_key = False

    @property
    def depth(self) -> int:
        """Brackets open."""
        return len(self._keys)

    def copy(self) -> JsonGuard:
        """An independent guard in the same state."""
        twin = JsonGuard()
        twin.in_string, twin._escape, twin._expects_key = self.in_string, self._escape, self._expects_key
        twin._text, twin._number = bytearray(self._text), bytearray(self._number)
        twin._keys = [None if keys is None else set(keys) for keys in self._keys]
        return twin

    def feed(self, data: bytes) -> bool:
        """Take in ``data``; ``False`` when it breaks a rule (the guard is of no use then)."""
        for byte in data:
            if not (self._in_string(byte) if self.in_string else self._outside(byte)):
                return False
        return not self._number or _fits(self._number)

    def _in_string(self, byte: int) -> bool:
        if self._escape:
            self._escape = (
                4 if self._escape == 1 and byte == ord("u") and self._text[-1:] == b"\\" else self._escape - 1
            )
        elif byte == ord("\\"):
            self._escape = 1
        elif byte == ord('"'):
            self.in_string = False
            return self._close_string()
        self._text.append(byte)
        return True

    def _close_string(self) -> bool:
        keys = self._keys[-1] if self._keys else None
        if not self._expects_key or keys is None:
            return True
        self._expects_key = False
        try:
            key = json.loads(b'"' + bytes(self._text) + b'"')
        except ValueError:
            return False
        if key in keys:
            return False
        keys.add(key)
        return True

    def _outside(self, byte: int) -> bool:
        if self._number:
            if byte in _NUMBER:
                self._number.append(byte)
                return True
            if not _fits(self._number):
                return False
            self._number.clear()
        if byte in _NUMBER_START:
            self._number.append(byte)
        elif byte == ord('"'):
            self.in_string = True
            self._text.clear()
        elif byte in b"{[":
            self._keys.append(set() if byte == ord("{") else None)
            self._expects_key = byte == ord("{")
            return len(self._keys) <= MAX_DEPTH
        elif byte in b"}]":
            if self._keys:
                self._keys.pop()
            self._expects_key = False
        elif byte == ord(","):
            self._expects_key = bool(self._keys) and self._keys[-1] is not None
        return True


def _fits(number: bytearray) -> bool:
    if len(number) > _MAX_DIGITS:
        return False
    try:
        return math.isfinite(float(number))
    except ValueError:  # not complete yet: "-", "1e"
        return True
