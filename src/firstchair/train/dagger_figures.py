"""The figures of a DAgger run, as they stand on disk: a round's in ``round-N/round.json``, all in ``result.json``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from firstchair.evals.completion import Completion
from firstchair.evals.stats import Difference, Rate, rate
from firstchair.rollout.dagger import MixedEpisode
from firstchair.rollout.dagger_teacher import Spent


class Taught(msgspec.Struct, frozen=True, kw_only=True):
    """What the episodes of a round gave."""

    beta: float
    episodes: int
    errors: dict[str, int]
    """Reason, up to its first colon, → episodes lost to it; they teach nothing."""
    steps: int
    """Of the episodes that were not lost, and so below."""
    learner_steps: int
    derailed: Rate
    """Of the learner's steps; the interval resamples tasks."""
    unlabelled: int
    """Steps at which the teacher did not say what it would do."""
    failures: dict[str, int]
    """Why it did not, questions on the way out of derailed states included → how often."""
    spent: Spent
    """By the teacher, in this round."""
    records: dict[str, int]
    """Kind → new records."""
    duplicates: int
    """Lessons that say what a record said before."""


class RoundFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What ``round.json`` holds; ``recovery`` is that of the model which the round leaves."""

    round: int
    taught: Taught | None = None
    """``None`` for round 0, which measures the model that the run began with."""
    records: int = 0
    """Trained on: the lessons of all rounds so far and the replayed ones."""
    replayed: int = 0
    tokens: int = 0
    steps: int = 0
    """Of the optimizer."""
    recovery: Completion
    """``completed``: of the cases, those whose task was done. ``by_row`` goes by the mistakes in them."""
    seconds: dict[str, float]


class DaggerFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What ``result.json`` holds."""

    finished_at: str
    before: Rate
    """Recovery of the model that the run began with."""
    after: Rate
    """Recovery of the model that it leaves."""
    difference: Difference
    """After − before on the same cases, with its 95% interval."""
    rounds: tuple[RoundFigures, ...]


def taught_of(
    episodes: Sequence[MixedEpisode],
    *,
    beta: float,
    spent: Spent,
    failures: Counter[str],
    records: Counter[str],
    seed: int,
) -> Taught:
    """The figures of a round's episodes; ``records`` counts what was new in them."""
    kept = [episode for episode in episodes if episode.error is None]
    learner = [sum(step.by == "learner" for step in episode.steps) for episode in kept]
    derailed = rate(
        [float(episode.derailments) for episode in kept],
        [float(count) for count in learner],
        [episode.task_id for episode in kept],
        seed=seed,
    )
    steps = [step for episode in kept for step in episode.steps]
    return Taught(
        beta=beta,
        episodes=len(episodes),
        errors=dict(Counter((e.error or "").partition(":")[0] for e in episodes if e.error is not None)),
        steps=len(steps),
        learner_steps=sum(learner),
        derailed=derailed,
        unlabelled=sum(step.taught is None for step in steps),
        failures=dict(failures),
        spent=spent,
        records=dict(records),
        duplicates=sum(len(episode.lessons) for episode in kept) - records.total(),
    )


def shown(found: Rate | Difference) -> str:
    """A figure in words: ``62.5% [52.1, 71.9], n = 100``; a difference with its sign, in points."""
    if found.value is None or found.low is None or found.high is None:
        return f"unknown, n = {found.n}"
    value = f"{found.value:.1%}" if isinstance(found, Rate) else f"{100 * found.value:+.1f} points"
    return f"{value} [{100 * found.low:.1f}, {100 * found.high:.1f}], n = {found.n}"
