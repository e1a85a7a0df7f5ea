"""The rejection-sampling job: several trajectories of each task, graded, all of them kept, resumable at any moment.

    tasks ──► this shard, not finished yet ──► N attempts each, a bounded number at once ──► grade ──► one line a task

What plays a task is passed in. A finished task is handed to the system at once, so a kill costs the tasks under way
and nothing else. Running the same job again goes on, and tries tasks once more of which every trajectory broke.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec

from firstchair.core.append import LineAppender
from firstchair.core.atomic import make_dirs
from firstchair.core.concurrency import all_or_none
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.progress import Progress, Silent
from firstchair.data.orchestration.groups import Group, encode_group, finished_tasks
from firstchair.rewards.answers.base import AnswerGrader
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd

Attempt = Callable[[OrchestrationTask, int], Awaitable[Trajectory]]
"""Plays sample number n of a task. What breaks is a trajectory that ended ``failed``; an exception ends the job."""

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


async def sample_tasks(
    tasks: Iterable[OrchestrationTask],
    attempt: Attempt,
    grader: AnswerGrader | None,
    out: Path,
    *,
    samples: int = SAMPLES,
    at_once: int = 64,
    shard: Shard = Shard(),
    progress: Progress | None = None,
) -> Sampled:
    """Sample every task of the shard that ``out`` does not hold yet, and append its group to ``out``.

    At most ``at_once`` attempts run at a time. A trajectory that comes with its grade keeps it; without ``grader``
    the others stay ungraded. Raises ``DataError`` when a task id comes twice, ``ConfigError`` while another process
    writes to ``out``, ``RunFailed`` when the disk refuses, and whatever ``attempt`` raises: what is finished is then
    written.
    """
    progress = progress or Silent()
    make_dirs(out.parent)
    known = finished_tasks(out)
    done = Sampled()
    room = asyncio.Semaphore(at_once)
    waiting = _unfinished(tasks, shard, known, done, progress)

    async def one(task: OrchestrationTask, sample: int) -> Trajectory:
        async with room:
            return await graded(task, await attempt(task, sample), grader)

    async def work(lines: LineAppender) -> None:
        for task in waiting:
            group = Group(task=task, trajectories=tuple(await all_or_none([one(task, n) for n in range(samples)])))
            lines.append(encode_group(group))
            done.tasks += 1
            done.trajectories += samples
            done.broken += group.broken
            progress.advance(note=f"{sum(t.correct is True for t in group.trajectories)} of {samples} right")

    # Twice as many tasks open as fill the room, so that one slow attempt leaves nothing idle.
    workers = 2 * math.ceil(at_once / samples)
    with LineAppender(out) as lines:
        await all_or_none([work(lines) for _ in range(workers)])
    return done


def _unfinished(
    tasks: Iterable[OrchestrationTask], shard: Shard, known: set[str], done: Sampled, progress: Progress
) -> Iterator[OrchestrationTask]:
    seen: set[str] = set()
    for task in islice(tasks, shard.number - 1, None, shard.of):
        if task.task_id in seen:
            raise DataError(f"task {task.task_id!r} comes twice; give each task an id of its own", field="task_id")
        seen.add(task.task_id)
        if task.task_id in known:
            done.finished_before += 1
            progress.advance()
        else:
            yield task


async def graded(task: OrchestrationTask, trajectory: Trajectory, grader: AnswerGrader | None) -> Trajectory:
    """``trajectory`` with its grade. A broken one stays ungraded; one without an answer is wrong, ungraded or not."""
    if trajectory.correct is not None or trajectory.end is TrajectoryEnd.FAILED or grader is None:
        return trajectory
    if not trajectory.final_answer.strip():
        return msgspec.structs.replace(trajectory, correct=False, graded_by="no answer")
    grade = await grader.grade(task, trajectory.final_answer)
    return msgspec.structs.replace(trajectory, correct=grade.correct, graded_by=grade.how, grade_detail=grade.detail)
