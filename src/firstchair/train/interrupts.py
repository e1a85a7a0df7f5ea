"""Ctrl-C and termination as a request that the loop answers between two steps, with a checkpoint."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class StopRequest:
    """Set once a signal has come."""

    def __init__(self) -> None:
        self.requested = False


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within the block the first SIGINT or SIGTERM sets the request; a second one interrupts at once.

    Outside the main thread signals cannot be caught, and the request is never set.
    """
    stop = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if stop.requested:
            raise KeyboardInterrupt
        stop.requested = True

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
