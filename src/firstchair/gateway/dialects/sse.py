"""Server-sent events on bytes: parsed as they arrive, whatever the network's cuts, and written.

This runs once for each streamed event, so the usual event (one ``data:`` line) takes the short way.
"""

from __future__ import annotations

from typing import NoReturn

from firstchair.gateway.dialects.base import Failure, FailureKind, StreamFault

MAX_EVENT_BYTES = 16 * 1024 * 1024
"""Of one line, and of the data of one event; an image in a tool result fits."""

ServerSentEvent = tuple[str | None, str]
"""``event:`` name, and the ``data:`` lines joined by line feeds."""


class SseParser:
    """Parses one stream. ``id:`` and ``retry:`` lines and comments are passed over, as are events without data."""

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES):
        self._max = max_event_bytes
        self._chunks: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._at_start = True
        self._event: str | None = None
        self._data: list[str] = []
        self._data_size = 0

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """The events that are complete with ``chunk``.

        Raises ``StreamFault`` for a line or event over the limit and for bytes that are not UTF-8.
        """
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_cr = chunk[-1] == 13
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        if b"\n" not in chunk:
            if chunk:
                self._keep(chunk)
            return []
        if self._chunks:
            chunk = b"".join((*self._chunks, chunk))
            self._chunks, self._size = [], 0
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if rest:
            self._keep(rest)
        out: list[ServerSentEvent] = []
        for line in lines:
            if line:
                self._line(line)
            else:
                self._dispatch(out)
        return out

    def close(self) -> list[ServerSentEvent]:
        """The bytes have ended: the event that only its blank line is missing, for servers that leave it out."""
        out: list[ServerSentEvent] = []
        if self._chunks:
            self._line(b"".join(self._chunks))
            self._chunks, self._size = [], 0
        self._dispatch(out)
        return out

    def _keep(self, rest: bytes) -> None:
        self._size += len(rest)
        if self._size > self._max:
            _fault(f"a line of more than {self._max} bytes")
        self._chunks.append(rest)

    def _dispatch(self, out: list[ServerSentEvent]) -> None:
        data = self._data
        if data:
            out.append((self._event, data[0] if len(data) == 1 else "\n".join(data)))
            self._data, self._data_size = [], 0
        self._event = None

    def _line(self, line: bytes) -> None:
        if self._at_start:
            self._at_start = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if line[:5] == b"data:":
            self._data_size += len(line)
            if self._data_size > self._max:
                _fault(f"an event of more than {self._max} bytes")
            self._data.append(_text(line[6:] if line[5:6] == b" " else line[5:]))
        elif line[:6] == b"event:":
            self._event = _text(line[7:] if line[6:7] == b" " else line[6:]) or None
        elif line == b"data":
            self._data.append("")


def _text(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        _fault(f"bytes that are not UTF-8 ({error.reason} at byte {error.start} of a line)")


def _fault(what: str) -> NoReturn:
    raise StreamFault(Failure(kind=FailureKind.BAD_ANSWER, message=f"the provider's stream has {what}")) from None


def encode(event: str | None, data: bytes) -> bytes:
    """One event. ``data`` of several lines goes into as many ``data:`` lines."""
    if b"\n" in data or b"\r" in data:
        data = b"\ndata: ".join(data.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"))
    if event is None:
        return b"data: " + data + b"\n\n"
    return b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
