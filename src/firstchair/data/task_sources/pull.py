"""Pulling tasks out of streams: in turns, without duplicates, a shard of them, an equal share of each domain.

    streams ─► one of each in turn ─► asked-for domain? new? this shard? room left? unlike what is avoided? ─► task

What does not pass is counted under its reason, with the place of the first.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad
from firstchair.data.near_duplicates import Avoid
from firstchair.data.orchestration.rejection import Shard
from firstchair.data.similarity import Pair, shingles
from firstchair.data.task_sources.catalogue import TaskStream
from firstchair.data.task_sources.fields import Unusable, problem_key
from firstchair.data.task_sources.rows import Row
from firstchair.rollout.orchestration.task import OrchestrationTask


@dataclass(frozen=True)
class PullOptions:
    """Which tasks, and how many."""

    domains: tuple[str, ...] = ()
    """Only these; all when empty."""
    limit: int | None = None
    """Tasks in all."""
    balance: bool = False
    """An equal share of ``limit`` for each domain; what one lacks is not filled with another."""
    shard: Shard = field(default_factory=Shard)
    """Every n-th task of each domain of each source."""


@dataclass
class PullReport:
    """What became of the rows."""

    tasks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(data set, domain) → tasks."""
    left_out: Counter[str] = field(default_factory=Counter)
    """Reason → rows."""
    first: dict[str, str] = field(default_factory=dict)
    """Reason → where the first such row stands."""
    short: dict[str, int] = field(default_factory=dict)
    """Domain → tasks that are missing for its equal share."""
    avoided: list[Pair] = field(default_factory=list)

    def leave_out(self, reason: str, row: Row) -> None:
        """Count ``row`` under ``reason``."""
        self.left_out[reason] += 1
        self.first.setdefault(reason, f"{row.path}:{row.line}")


def check_domains(options: PullOptions, streams: Sequence[TaskStream]) -> None:
    """Raise ``ConfigError`` for a domain that no stream can give."""
    known = {domain for stream in streams for domain in stream.domains}
    for domain in options.domains:
        if domain not in known and all(stream.domains for stream in streams):
            raise ConfigError(f"--domain {domain}: these sources have none; they have {', '.join(sorted(known))}")


def shares(options: PullOptions, streams: Sequence[TaskStream]) -> dict[str, int]:
    """Domain → tasks for an equal share each, the first ones one more when ``limit`` does not divide; empty when
    there is no share to keep. Raises ``ConfigError`` when the domains or the limit are not known.
    """
    if not options.balance:
        return {}
    if options.limit is None:
        raise ConfigError("--balance needs --limit: shares of how many tasks?")
    domains = options.domains or tuple(dict.fromkeys(domain for stream in streams for domain in stream.domains))
    if not domains or (not options.domains and not all(stream.domains for stream in streams)):
        raise ConfigError("--balance over files of tasks needs the domains: --domain math --domain code, say")
    each, rest = divmod(options.limit, len(domains))
    return {domain: each + (place < rest) for place, domain in enumerate(domains)}


def pull(
    streams: Sequence[TaskStream],
    options: PullOptions,
    report: PullReport,
    *,
    skip: SkipBad,
    avoid: Avoid | None = None,
) -> Iterator[OrchestrationTask]:
    """Tasks of ``streams``, one of each in turn; the same rows give the same tasks in the same order. Raises as
    ``check_domains`` and ``shares``.

    A row of the wrong form goes to ``skip``, or raises ``DataError`` with its place. ``report`` is complete at the
    end.
    """
    check_domains(options, streams)
    room = shares(options, streams)
    pulling = _Pulling(options, report, room, skip, avoid)
    active = [(stream, pulling.tasks(stream)) for stream in streams]
    left = options.limit
    while active and left != 0:
        for stream, tasks in tuple(active):
            task = None if pulling.is_full(stream) else next(tasks, None)
            if task is None:
                active.remove((stream, tasks))
                continue
            report.tasks[task.dataset, task.domain] += 1
            yield task
            left = None if left is None else left - 1
            if left == 0:
                break
    report.short.update({domain: count for domain, count in room.items() if count})


class _Pulling:
    """What has been seen so far."""

    def __init__(
        self, options: PullOptions, report: PullReport, room: dict[str, int], skip: SkipBad, avoid: Avoid | None
    ):
        self._options, self._report, self._room = options, report, room
        self._skip, self._avoid = skip, avoid
        self._seen: set[int] = set()
        self._ids: set[str] = set()
        self._numbers: dict[tuple[str, str], int] = defaultdict(int)

    def is_full(self, stream: TaskStream) -> bool:
        """Whether nothing more is wanted of ``stream``."""
        wanted = self._options.domains
        if stream.domains and wanted and not set(stream.domains) & set(wanted):
            return True
        if not self._room:
            return False
        return not any(self._room.get(domain) for domain in stream.domains or self._room)

    def tasks(self, stream: TaskStream) -> Iterator[OrchestrationTask]:
        """The tasks that pass, and room taken for each."""
        for row in stream.rows:
            try:
                task = stream.source.convert(row.fields)
                self._check(stream, task)
            except Unusable as reason:
                self._report.leave_out(str(reason), row)
                continue
            except DataError as error:
                self._skip.take(error.at(row.path, row.line))
                continue
            if self._room:
                self._room[task.domain] -= 1
            yield task

    def _check(self, stream: TaskStream, task: OrchestrationTask) -> None:
        """Raises ``Unusable`` when ``task`` does not pass, ``DataError`` when its id is another problem's."""
        options = self._options
        if options.domains and task.domain not in options.domains:
            raise Unusable(f"of domain {task.domain}")
        key = int(problem_key(task.problem)[:16], 16)
        if key in self._seen:
            raise Unusable("duplicate")
        if task.task_id in self._ids:
            raise DataError(
                f"{task.task_id!r} is the id of another problem too; give each task an id of its own", field="task_id"
            )
        self._seen.add(key)
        self._ids.add(task.task_id)
        number = self._numbers[stream.source.name, task.domain]
        self._numbers[stream.source.name, task.domain] += 1
        if number % options.shard.of != options.shard.number - 1:
            raise Unusable("another shard")
        if self._room and not self._room.get(task.domain):
            raise Unusable("enough of its domain")
        pair = None if self._avoid is None else self._avoid.match_shingles(task.task_id, shingles(task.problem))
        if pair is not None:
            self._report.avoided.append(pair)
            raise Unusable("resembles what is to be avoided")
