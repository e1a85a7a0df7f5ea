"""Which tasks are worth keeping: sound, new, not solved by talk, and neither hopeless nor free for a model.

    task ─► sound? ─► new? ─► golden policy completes it ─► no degenerate policy does ─► model: 1 to n−1 of n ─► kept

The first filter that a task does not pass is its reason. An episode that broke says nothing: its task is
``ungraded``, and looked at again by the next run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import msgspec

from firstchair.core.jsontext import content_id
from firstchair.rollout.episodes import Episode, Policy, run_episodes
from firstchair.rollout.policy import Actor
from firstchair.rollout.synthetic.domain import Record, SyntheticTask
from firstchair.rollout.synthetic.environment import SyntheticEnvironment
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.players import GoldenExpert, without_acting
from firstchair.rollout.synthetic.problems import task_problems
from firstchair.rollout.teacher_policy import TeacherPolicy


class Drop(StrEnum):
    """Why a task is not kept."""

    INVALID = "invalid"
    """It is not sound: a golden call fails, the depth does not fit, a reply leaves something out, …"""
    DUPLICATE = "duplicate"
    GOLDEN_INCOMPLETE = "golden_incomplete"
    """The golden policy's episode is not completed."""
    WITHOUT_ACTING = "without_acting"
    """A policy that does nothing, only talks, or calls without thought completes it."""
    NEVER_SOLVED = "never_solved"
    NEVER_FAILED = "never_failed"
    UNGRADED = "ungraded"
    """The machinery failed; nothing is said about the task."""


class TaskVerdict(Record, frozen=True, kw_only=True):
    """What the filters say of a task."""

    task_id: str
    drop: Drop | None = None
    """``None``: kept."""
    detail: str = ""
    solved: int | None = None
    """Of ``trials`` episodes of the model; ``None`` when none was asked."""
    trials: int = 0

    @property
    def kept(self) -> bool:
        """Whether it passed."""
        return self.drop is None


@dataclass(frozen=True)
class Solver:
    """The model that must fail at least once and solve at least once."""

    policy: Policy
    """It must sample: equal answers every time make no difference between trials."""
    trials: int = 8
    concurrency: int = 16
    max_steps: int = 40


async def filter_tasks(
    opened: OpenDomain,
    tasks: Sequence[SyntheticTask],
    *,
    solver: Solver | None = None,
    known: Mapping[str, TaskVerdict] | None = None,
    note: Callable[[TaskVerdict], None] = lambda verdict: None,
) -> list[TaskVerdict]:
    """A verdict for each task, in their order.

    ``note`` hears of each verdict that cost episodes of the solver, as soon as it stands; ``known`` are those of an
    earlier run, whose tasks are not asked about again. All other filters cost next to nothing and are run anew.
    """
    verdicts: dict[int, TaskVerdict] = {}
    seen: dict[str, str] = {}
    for number, task in enumerate(tasks):
        same = next((seen[key] for key in _keys(task) if key in seen), None)
        if same is not None:
            verdicts[number] = TaskVerdict(task_id=task.task_id, drop=Drop.DUPLICATE, detail=f"as {same}")
        elif faults := task_problems(opened, task):
            detail = "; ".join(map(str, faults))
            verdicts[number] = TaskVerdict(task_id=task.task_id, drop=Drop.INVALID, detail=detail)
        else:
            seen.update(dict.fromkeys(_keys(task), task.task_id))
    for step in (_golden, _degenerate, partial(_solved, solver=solver, known=known or {}, note=note)):
        open_ones = [(number, task) for number, task in enumerate(tasks) if number not in verdicts]
        await step(opened, open_ones, verdicts)
    return [verdicts[number] for number in range(len(tasks))]


def drops(verdicts: Sequence[TaskVerdict]) -> dict[str, int]:
    """Reason → tasks dropped for it."""
    return dict(sorted(Counter(str(verdict.drop) for verdict in verdicts if verdict.drop is not None).items()))


def _keys(task: SyntheticTask) -> tuple[str, str]:
    """Two tasks are the same when they ask the same, or when the same calls and the same news solve them."""
    asked = content_id([" ".join(turn.user.casefold().split()) for turn in task.turns])
    solved = content_id([msgspec.to_builtins((turn.calls, turn.convey)) for turn in task.turns])
    return f"asked {asked}", f"solved {solved}"


Numbered = Sequence[tuple[int, SyntheticTask]]
Verdicts = dict[int, TaskVerdict]


async def _golden(opened: OpenDomain, tasks: Numbered, verdicts: Verdicts) -> None:
    expert = GoldenExpert({opened.domain.name: opened}, [task for _, task in tasks])
    for number, episode in await _played(opened, tasks, expert, "golden", max_steps=40):
        if episode.outcome is None:
            verdicts[number] = _ungraded(episode)
        elif not episode.completed:
            failed = [f"{check.name}: {check.detail}" for check in episode.outcome.checks if not check.ok]
            verdicts[number] = TaskVerdict(
                task_id=episode.task_id, drop=Drop.GOLDEN_INCOMPLETE, detail="; ".join(failed) or str(episode.end)
            )


async def _degenerate(opened: OpenDomain, tasks: Numbered, verdicts: Verdicts) -> None:
    left = dict(tasks)
    # Room to say all that there is to say, and once more; repeating a call any longer changes nothing.
    most = 1 + max((sum(2 + len(turn.facts) for turn in task.turns) for task in left.values()), default=0)
    actors = without_acting({opened.domain.name: opened}, list(left.values()))
    for name, actor in actors.items():
        for number, episode in await _played(opened, list(left.items()), actor, name, max_steps=most):
            if episode.outcome is None:
                verdicts[number] = _ungraded(episode)
            elif episode.completed:
                verdicts[number] = TaskVerdict(task_id=episode.task_id, drop=Drop.WITHOUT_ACTING, detail=name)
            else:
                continue
            del left[number]


async def _played(
    opened: OpenDomain, tasks: Numbered, actor: Actor, name: str, *, max_steps: int
) -> list[tuple[int, Episode]]:
    policy = TeacherPolicy(actor, name=name)
    played = run_episodes(
        _factory(opened), [task for _, task in tasks], policy, max_steps=max_steps, source="scripted"
    )
    return [(tasks[episode.number][0], episode) async for episode in played]


def _factory(opened: OpenDomain) -> Callable[[], SyntheticEnvironment]:
    domains = {opened.domain.name: opened}
    return lambda: SyntheticEnvironment(domains)


async def _solved(
    opened: OpenDomain,
    tasks: Numbered,
    verdicts: Verdicts,
    *,
    solver: Solver | None,
    known: Mapping[str, TaskVerdict],
    note: Callable[[TaskVerdict], None],
) -> None:
    if solver is None:
        verdicts.update({number: TaskVerdict(task_id=task.task_id) for number, task in tasks})
        return
    old = {number: known[task.task_id] for number, task in tasks if task.task_id in known}
    verdicts.update({number: verdict for number, verdict in old.items() if verdict.drop is not Drop.UNGRADED})
    new = [(number, task) for number, task in tasks if number not in verdicts]
    asked = [task for _, task in new for _ in range(solver.trials)]
    found: dict[int, list[Episode]] = {}
    playing = run_episodes(
        _factory(opened), asked, solver.policy, concurrency=solver.concurrency, max_steps=solver.max_steps
    )
    async with aclosing(playing):
        async for episode in playing:
            number = new[episode.number // solver.trials][0]
            found.setdefault(number, []).append(episode)
            if len(found[number]) == solver.trials:
                verdicts[number] = _by_trials(found[number])
                note(verdicts[number])


def _by_trials(episodes: Sequence[Episode]) -> TaskVerdict:
    broken = next((episode for episode in episodes if episode.outcome is None), None)
    if broken is not None:
        return _ungraded(broken)
    solved, trials = sum(bool(episode.completed) for episode in episodes), len(episodes)
    drop = Drop.NEVER_SOLVED if not solved else Drop.NEVER_FAILED if solved == trials else None
    return TaskVerdict(task_id=episodes[0].task_id, drop=drop, solved=solved, trials=trials)


def _ungraded(episode: Episode) -> TaskVerdict:
    return TaskVerdict(task_id=episode.task_id, drop=Drop.UNGRADED, detail=episode.error or str(episode.end))
