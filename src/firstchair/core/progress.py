"""Progress bars with rate and time left, on stderr; silent when it is not a terminal unless asked."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Progress(Protocol):
    """What long work reports to. ``advance`` counts units; ``note`` is one short live text (a loss, say)."""

    def advance(self, count: int = 1, *, note: str = "") -> None: ...


class Silent:
    """A progress that shows nothing."""

    def advance(self, count: int = 1, *, note: str = "") -> None:
        """Do nothing."""


class _Lines:
    """For logs and CI: one line at most every ``every_s`` seconds."""

    def __init__(self, title: str, total: int, unit: str, every_s: float = 10.0):
        self.title, self.total, self.unit, self.every_s = title, total, unit, every_s
        self.done, self.started = 0, time.monotonic()
        self.last = self.started

    def advance(self, count: int = 1, *, note: str = "") -> None:
        self.done += count
        now = time.monotonic()
        if now - self.last >= self.every_s:
            self.last = now
            rate = self.done / max(now - self.started, 1e-9)
            left = (self.total - self.done) / rate if rate else 0.0
            text = f"{self.title}: {self.done:,}/{self.total:,} {self.unit}, {rate:,.1f}/s, {left:,.0f} s left"
            print(f"{text} {note}".rstrip(), file=sys.stderr, flush=True)


class _Bar:
    def __init__(self, bar: object, task: object):
        self.bar, self.task = bar, task

    def advance(self, count: int = 1, *, note: str = "") -> None:
        self.bar.update(self.task, advance=count, note=note)  # type: ignore[attr-defined]


@contextmanager
def progress(title: str, total: int, *, unit: str = "it") -> Iterator[Progress]:
    """A bar on a terminal, a line every ten seconds elsewhere."""
    if not sys.stderr.isatty():
        yield _Lines(title, total, unit)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as RichProgress
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed or 0.0:,.1f} {unit}/s")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with RichProgress(*columns, console=Console(stderr=True)) as bar:
        yield _Bar(bar, bar.add_task(title, total=total, note=""))
