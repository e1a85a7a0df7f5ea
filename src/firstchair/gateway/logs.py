"""One JSON line for every call: who answered it, how it ended, how long it took. Content only where it is asked for.

Lines are made on the event loop (a few µs) and written by a thread: a reader of the log that is slow or gone delays
no call. What then has no room is dropped and counted.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, TextIO

import orjson

from firstchair.gateway.records import CallRecord
from firstchair.traces.times import utc_text

MAX_LINES = 10_000
"""That wait to be written."""
EVERY_S = 0.25


def call_line(record: CallRecord, *, content: bool = False) -> bytes:
    """The line of one call, without its line end."""
    usage = record.usage
    fields: dict[str, Any] = {
        "at": utc_text(record.received_us),
        "event": "call",
        "call_id": record.call_id,
        "worker": record.worker,
        "slot": record.slot,
        "slot_version": record.slot_version,
        "dialect": record.dialect,
        "stream": record.stream,
        "key_id": record.key_id,
        "variant": record.variant,
        "provider": record.provider,
        "model": record.provider_model,
        "outcome": record.outcome.value,
        "status": record.status,
        "failure": record.failure.value if record.failure else None,
        "attempts": len(record.attempts),
        "latency_ms": record.latency_ms,
        "ttft_ms": record.ttft_ms,
        "input_tokens": usage.input + usage.cache_read + usage.cache_write_5m + usage.cache_write_1h if usage else 0,
        "output_tokens": usage.output if usage else 0,
        "cost_nano": record.cost_nano,
    }
    if record.variant == "shadow":
        fields |= {"shadow_of": record.shadow_of, "agreement": record.agreement}
    if content:
        answer = record.answer
        fields["request"] = record.request.decode("utf-8", "replace")
        fields["answer"] = answer.text if answer else None
        fields["tool_calls"] = [[call.name, call.arguments] for call in answer.tool_calls] if answer else []
    try:
        return orjson.dumps(fields)
    except orjson.JSONEncodeError:  # integers of a provider may have any size
        return orjson.dumps({name: _sound(value) for name, value in fields.items()})


def _sound(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not -(2**63) <= value < 2**63 else value


class CallLog:
    """Writes the lines of one worker. ``observe`` is an observer of the worker."""

    def __init__(self, *, content: bool = False, stream: TextIO | None = None):
        self._content, self._stream = content, stream
        self._lines: list[bytes] = []
        self.dropped = 0

    def observe(self, record: CallRecord, _slot: object = None) -> None:
        """Keep the line of a finished call."""
        if len(self._lines) >= MAX_LINES:
            self.dropped += 1
            return
        self._lines.append(call_line(record, content=self._content))

    def write(self) -> None:
        """Write the lines that wait."""
        lines, self._lines = self._lines, []
        if not lines:
            return
        stream = self._stream or sys.stderr
        with contextlib.suppress(OSError, ValueError):
            stream.write(b"\n".join([*lines, b""]).decode())
            stream.flush()


class Ticker:
    """A thread that does small things now and then, and once more at the end."""

    def __init__(self, tasks: Sequence[Callable[[], None]], every_s: float = EVERY_S):
        self._tasks, self._every_s = tasks, every_s
        self._stop = threading.Event()
        # A daemon: a pipe that nobody reads must not keep the process.
        self._thread = threading.Thread(target=self._run, name="reports", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float = 1.0) -> None:
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        running = True
        while running:
            running = not self._stop.wait(self._every_s)
            for task in self._tasks:
                task()
