"""One upstream stream on its way to the client: read, checked and held back until it is worth showing. No I/O.

    bytes ──→ whole events ──→ SseParser ──→ StreamReader ──→ Collector          (what the record will say)
                   │                              └──────→ StreamWriter ──→ client   (another dialect)
                   └────────────────────────────────────────────────────→ client     (the same dialect: as it came)

Nothing leaves before the first content, so that a failure before it can still fall back unseen. Events leave whole:
an error event of ours never lands in the middle of one of theirs.
"""

from __future__ import annotations

import re

from firstchair.core.errors import FirstchairError
from firstchair.gateway.dialects.base import (
    BlockDelta,
    BlockStart,
    End,
    Failure,
    FailureKind,
    StreamEvent,
    StreamFault,
    StreamReader,
    StreamWriter,
)
from firstchair.gateway.dialects.collect import Collector
from firstchair.gateway.dialects.sse import MAX_EVENT_BYTES, SseParser

_BLANK_LINE = re.compile(rb"\r\n\r\n|\n\r\n|\n\n|\r\r")
"""Some servers end their lines with one and the blank ones with the other."""
_NO_CHOICES = (b'"choices":[]', b'"choices": []')


class EventCutter:
    """Cuts bytes behind every blank line. The bytes of all pieces and of ``rest`` are the bytes that came."""

    def __init__(self, limit: int = MAX_EVENT_BYTES):
        self._buffer = b""
        self._limit = limit

    def feed(self, chunk: bytes) -> list[bytes]:
        """The whole events, each with its blank line. Raises ``StreamFault`` for one without end."""
        buffer = self._buffer + chunk if self._buffer else chunk
        if b"\r" not in buffer:
            if buffer[-2:] == b"\n\n" and buffer.find(b"\n\n") == len(buffer) - 2:
                self._buffer = b""
                return [buffer]
            *pieces, self._buffer = buffer.split(b"\n\n")
            whole = [piece + b"\n\n" for piece in pieces]
        else:
            whole, start = [], 0
            for found in _BLANK_LINE.finditer(buffer):
                whole.append(buffer[start : found.end()])
                start = found.end()
            self._buffer = buffer[start:]
        if len(self._buffer) > self._limit:
            raise StreamFault(
                Failure(
                    kind=FailureKind.BAD_ANSWER,
                    message=f"the provider's stream has an event of more than {self._limit} bytes",
                )
            )
        return whole

    def rest(self) -> bytes:
        """What came after the last blank line."""
        rest, self._buffer = self._buffer, b""
        return rest


class StreamRelay:
    """One stream. ``feed`` and ``close`` give what may go out now; then look at ``failure`` and ``ended``."""

    def __init__(
        self,
        reader: StreamReader,
        writer: StreamWriter | None,
        *,
        hide_usage: bool = False,
        hold_all: bool = False,
        limit: int = 1 << 26,
    ):
        """``writer`` ``None``: events go out as they came. ``hide_usage``: but not the usage that only we asked for.

        ``hold_all``: everything waits for ``release``, up to ``limit`` bytes.
        """
        self.collector = Collector()
        self.failure: Failure | None = None
        self.ended = False
        self.has_content = False
        self.chars = 0
        """Characters of text and arguments that came, for an estimate."""
        self._reader, self._writer = reader, writer
        self._parser, self._cutter = SseParser(), EventCutter()
        self._hide_usage, self._hold_all, self._limit = hide_usage, hold_all, limit
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._open = False

    @property
    def dropped(self) -> tuple[str, ...]:
        """What the client's dialect could not carry, so far."""
        return () if self._writer is None else tuple(self._writer.dropped)

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes of the provider."""
        pieces: list[bytes] = []
        try:
            for raw in self._cutter.feed(chunk):
                pieces.append(self._event(raw))
        except StreamFault as fault:
            self.failure = fault.failure
        except FirstchairError as error:
            self.failure = _unsayable(error)
        return self._released(pieces)

    def close(self) -> bytes:
        """The provider's bytes have ended."""
        pieces: list[bytes] = []
        try:
            rest = self._cutter.rest()
            if rest.strip():
                # Some servers leave the last blank line out.
                pieces.append(self._event(rest, last=True))
            if not self.ended:
                self._reader.close()
        except StreamFault as fault:
            self.failure = fault.failure
        except FirstchairError as error:
            self.failure = _unsayable(error)
        if self.failure is None and not self.ended:
            self.failure = Failure(
                kind=FailureKind.BAD_ANSWER, message="the provider's stream ended without its terminal event"
            )
        return self._released(pieces)

    def release(self) -> bytes:
        """All that was held; from now on everything goes out at once."""
        self._open = True
        held, self._held, self._held_bytes = self._held, [], 0
        return b"".join(held)

    def _event(self, raw: bytes, *, last: bool = False) -> bytes:
        if self.ended:
            return b""
        found = self._parser.feed(raw)
        if last:
            found += self._parser.close()
        out: list[bytes] = []
        for name, data in found:
            for event in self._reader.feed(name, data):
                self._look_at(event)
                if self._writer is not None:
                    out.append(self._writer.write(event))
        if self._writer is not None:
            return b"".join(out)
        if self._hide_usage and b'"usage"' in raw and any(mark in raw for mark in _NO_CHOICES):
            return b""
        return raw + b"\n\n" if last else raw

    def _look_at(self, event: StreamEvent) -> None:
        self.collector.add(event)
        kind = event.__class__
        if kind is BlockDelta:
            self.chars += len(event.text)  # type: ignore[union-attr]
            self.has_content = True
        elif isinstance(event, End):
            self.ended = self.has_content = True
        elif isinstance(event, BlockStart) and event.kind in ("tool_call", "raw"):
            self.has_content = True

    def _released(self, pieces: list[bytes]) -> bytes:
        if self._open:
            return pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._held += pieces
        self._held_bytes += sum(map(len, pieces))
        if self._held_bytes > self._limit:
            self.failure = Failure(
                kind=FailureKind.BAD_ANSWER, message=f"the provider's answer has more than {self._limit} bytes"
            )
        return self.release() if self.has_content and not self._hold_all else b""


def _unsayable(error: FirstchairError) -> Failure:
    return Failure(kind=FailureKind.BAD_ANSWER, message=f"the provider sent what cannot be passed on: {error}"[:500])
