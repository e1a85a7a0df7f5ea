"""Files of tasks: JSON Lines or Parquet, one task a row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad, write_jsonl
from firstchair.data.task_sources.catalogue import own_files
from firstchair.data.task_sources.own_tasks import task_of
from firstchair.rewards.answers.by_domain import Way, way_of
from firstchair.rollout.orchestration.task import OrchestrationTask


def read_tasks(path: Path, ids: Collection[str] | None = None) -> Iterator[OrchestrationTask]:
    """The tasks of ``path``, or those of ``ids``, in their order.

    Raises ``DataError`` with file and line for what is no task and for an id that comes twice, ``ConfigError`` when
    there is nothing.
    """
    seen: set[str] = set()
    for stream in own_files(path, SkipBad()):
        for row in stream.rows:
            try:
                task = task_of(row.fields)
                if task.task_id in seen:
                    raise DataError(f"{task.task_id!r} comes twice; give each task an id of its own", field="task_id")
            except DataError as error:
                raise error.at(row.path, row.line) from None
            seen.add(task.task_id)
            if ids is None or task.task_id in ids:
                yield task
    if not seen:
        raise ConfigError(f"{path}: no task in it; expected one a row: {{problem, gold_answer, …}}")


def write_tasks(path: Path, tasks: Iterable[OrchestrationTask], *, force: bool = False) -> int:
    """Write ``tasks`` as JSON Lines, atomically; returns how many."""
    return write_jsonl(path, (msgspec.to_builtins(task) for task in tasks), force=force)


def chosen_tasks(
    path: Path, ids: Collection[str] | None, domains: Sequence[str] = (), limit: int | None = None
) -> list[OrchestrationTask]:
    """The first ``limit`` tasks of ``path`` that are of ``ids`` and of ``domains``, where these are given.

    Raises ``ConfigError`` when there is none, and as ``read_tasks``.
    """
    tasks = (task for task in read_tasks(path, ids) if not domains or task.domain in domains)
    found = list(islice(tasks, limit))
    if not found:
        asked = [f"domain {' or '.join(domains)}"] if domains else []
        if ids is not None:
            asked.append(f"id {next(iter(ids))!r}" if len(ids) == 1 else f"the {len(ids)} ids that were asked for")
        raise ConfigError(
            f"{path}: no task of {' and '.join(asked) or 'any kind'}; see what it has: tasks stats {path}"
        )
    return found


class TaskCount(msgspec.Struct, frozen=True, kw_only=True):
    """Tasks that are alike in three respects."""

    dataset: str
    domain: str
    way: Way
    """Who can grade them."""
    tasks: int


class TaskCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds."""

    tasks: int
    rows: tuple[TaskCount, ...]


def count_tasks(tasks: Iterable[OrchestrationTask]) -> TaskCounts:
    """Count ``tasks`` by data set, domain and grader."""
    counts = Counter((task.dataset, task.domain, way_of(task)) for task in tasks)
    rows = [
        TaskCount(dataset=dataset, domain=domain, way=way, tasks=count)
        for (dataset, domain, way), count in sorted(counts.items())
    ]
    return TaskCounts(tasks=sum(counts.values()), rows=tuple(rows))
