"""One import: sources into a file of tasks, all of it or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from firstchair.core.atomic import refuse_existing
from firstchair.core.errors import DataError
from firstchair.core.jsonl import SkipBad
from firstchair.core.progress import progress
from firstchair.data.near_duplicates import Avoid
from firstchair.data.similarity import THRESHOLD, shingles
from firstchair.data.sources import conversation_texts
from firstchair.data.task_sources.catalogue import open_streams
from firstchair.data.task_sources.pull import PullOptions, PullReport, pull
from firstchair.data.task_sources.task_file import write_tasks
from firstchair.rollout.orchestration.task import OrchestrationTask


def import_tasks(
    sources: Sequence[str],
    out: Path,
    options: PullOptions,
    *,
    skip: SkipBad,
    avoid: str = "",
    threshold: float = THRESHOLD,
    force: bool = False,
) -> PullReport:
    """Write the tasks of ``sources`` (see ``open_streams``) to ``out``, without those that resemble one of ``avoid``.

    Raises ``DataError`` when there is none, and as ``pull``.
    """
    refuse_existing(out, force=force)
    avoided = Avoid(((key, shingles(text)) for key, text in conversation_texts(avoid)), threshold) if avoid else None
    streams = [stream for source in sources for stream in open_streams(source, skip)]
    report = PullReport()

    def tasks() -> Iterator[OrchestrationTask]:
        with progress("import", options.limit or 0, unit="tasks") as bar:
            for task in pull(streams, options, report, skip=skip, avoid=avoided):
                bar.advance()
                yield task
        if not report.tasks:
            why = ", ".join(f"{reason} ({count:,}, first {report.first[reason]})" for reason, count in _most(report))
            raise DataError(f"no task in it{': ' if why else ''}{why}", path=", ".join(sources))

    write_tasks(out, tasks(), force=force)
    return report


def _most(report: PullReport) -> list[tuple[str, int]]:
    return report.left_out.most_common(3)
