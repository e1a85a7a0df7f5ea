"""The rejection-sampling job: several graded trajectories of each task, all of them kept, resumable at any moment.

    tasks ──► this shard, not finished yet ──► play (N samples of each) ──► all N there ──► one line a task

What plays and grades is passed in: ``run_orchestrations`` with an environment, or anything else that yields
trajectories. A finished task is handed to the system at once, so a kill costs the tasks under way and nothing else.
Running the same job again goes on, and tries tasks once more of which every trajectory broke.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from firstchair.core.append import LineAppender
from firstchair.core.atomic import make_dirs
from firstchair.core.errors import ConfigError, DataError, RunFailed
from firstchair.core.progress import Progress, Silent
from firstchair.data.orchestration.groups import Group, encode_group, finished_tasks
from firstchair.data.orchestration.made_by import MadeBy, begin, refuse_another
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory

Play = Callable[[Iterable[OrchestrationTask]], AsyncGenerator[Trajectory, None]]
"""Plays tasks: reads them as it needs them, and yields every sample of each as it ends, in any order. What breaks is
a trajectory that ended ``failed``; an exception ends the job."""

SAMPLES = 8
"""Trajectories a task."""


@dataclass(frozen=True)
class Shard:
    """Every ``of``-th task, from number ``number`` on (the first is 1)."""

    number: int = 1
    of: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.number <= self.of:
            raise ConfigError(f"shard {self.number}/{self.of}: expected K/N with K from 1 to N")

    @classmethod
    def parse(cls, text: str) -> Shard:
        """``2/4``. Raises ``ConfigError``."""
        number, _, of = text.partition("/")
        if not (number.isdecimal() and of.isdecimal()):
            raise ConfigError(f"shard {text!r}: expected K/N, such as 2/4 for the second of four")
        return cls(int(number), int(of))


@dataclass
class Sampled:
    """What a call of the job did."""

    finished_before: int = 0
    """Tasks of the shard that needed nothing more."""
    tasks: int = 0
    trajectories: int = 0
    broken: int = 0
    """Tasks of which every trajectory broke; the next call tries them again."""
    fewer_before: int = 0
    """How many of ``finished_before`` were sampled less often than is asked for now; they stay as they are."""


async def sample_tasks(
    tasks: Iterable[OrchestrationTask],
    play: Play,
    out: Path,
    *,
    samples: int = SAMPLES,
    shard: Shard = Shard(),
    progress: Progress | None = None,
    made_by: MadeBy | None = None,
    force: bool = False,
) -> Sampled:
    """Sample every task of the shard that ``out`` does not hold yet, and append its group to ``out``.

    ``play`` yields ``samples`` trajectories of each. ``made_by`` is recorded beside ``out``, and what was made by
    something else is refused; without it nothing is recorded or compared. ``force`` takes away what is there first.
    Raises ``DataError`` when a task id comes twice, ``IntegrityError`` naming what differs from the record,
    ``ConfigError`` while another process writes to ``out``, ``RunFailed`` when the disk refuses or ``play`` ends
    before it is done, and whatever ``play`` raises; what is finished is then written.
    """
    make_dirs(out.parent)
    known: dict[str, int] = {}
    done = Sampled()
    bar = progress or Silent()
    open_: dict[str, tuple[OrchestrationTask, list[Trajectory]]] = {}

    def started() -> Iterator[OrchestrationTask]:
        for task in _unfinished(tasks, shard, known, samples, done, bar):
            open_[task.task_id] = (task, [])
            yield task

    with LineAppender(out) as lines:
        if force:
            lines.clear()
        if made_by is not None:
            (begin if lines.empty else refuse_another)(out, made_by)
        known |= finished_tasks(out)
        async with aclosing(play(started())) as played:
            async for trajectory in played:
                task, found = open_[trajectory.task_id]
                found.append(trajectory)
                if len(found) < samples:
                    continue
                del open_[trajectory.task_id]
                found.sort(key=lambda one: one.sample)
                group = Group(task=task, trajectories=tuple(found))
                lines.append(encode_group(group))
                done.tasks += 1
                done.trajectories += samples
                done.broken += group.broken
                bar.advance(note=f"the last: {sum(one.correct is True for one in found)} of {samples} right")
    if open_:
        task_id, (_, found) = next(iter(open_.items()))
        raise RunFailed(
            f"playing ended with {len(open_)} tasks unfinished, {task_id!r} after {len(found)} of {samples} samples; "
            "run the same job again to go on"
        )
    return done


def _unfinished(
    tasks: Iterable[OrchestrationTask],
    shard: Shard,
    known: Mapping[str, int],
    samples: int,
    done: Sampled,
    progress: Progress,
) -> Iterator[OrchestrationTask]:
    seen: set[str] = set()
    for task in islice(tasks, shard.number - 1, None, shard.of):
        if task.task_id in seen:
            raise DataError(f"task {task.task_id!r} comes twice; give each task an id of its own", field="task_id")
        seen.add(task.task_id)
        if task.task_id in known:
            done.finished_before += 1
            done.fewer_before += known[task.task_id] < samples
            progress.advance()
        else:
            yield task
