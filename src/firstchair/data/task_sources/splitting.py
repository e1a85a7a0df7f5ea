"""Splitting tasks: train and holdout by domain, and a small part of train to overfit on.

Tasks whose problems resemble each other stay together, so that none of the holdout's has been seen in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from firstchair.core.atomic import refuse_existing
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import sha256_text
from firstchair.core.progress import Progress, progress
from firstchair.data.near_duplicates import near_duplicates
from firstchair.data.similarity import THRESHOLD, shingles
from firstchair.data.splits import Member, SplitManifest, split, write_split
from firstchair.data.task_sources.task_file import read_tasks
from firstchair.rollout.orchestration.task import OrchestrationTask

TRAIN, HOLDOUT, OVERFIT = "train", "holdout", "overfit"
SEED = 42
HOLDOUT_SHARE = 0.15
OVERFIT_TASKS = 100


def split_tasks(
    tasks: Sequence[OrchestrationTask],
    *,
    seed: int = SEED,
    holdout: float = HOLDOUT_SHARE,
    overfit: int = OVERFIT_TASKS,
    threshold: float = THRESHOLD,
    bar: Progress | None = None,
) -> dict[str, list[Member]]:
    """Part → tasks. Each domain keeps its share; ``overfit`` is the first so many of train in the order of ``seed``.

    Depends on the tasks, the numbers and ``seed``, not on the order of ``tasks``. Raises as ``splits.split``.
    """
    group_of = _groups(tasks, threshold, bar)
    members = [
        Member(session_id=task.task_id, group=group_of[task.task_id], stratum=task.domain)
        for task in sorted(tasks, key=lambda task: task.task_id)
    ]
    parts = split(members, {TRAIN: 1 - holdout, HOLDOUT: holdout}, seed)
    drawn = sorted(parts[TRAIN], key=lambda member: sha256_text(f"{seed}\x1f{member.session_id}"))
    return {**parts, TRAIN: drawn, OVERFIT: drawn[:overfit]}


def _groups(tasks: Sequence[OrchestrationTask], threshold: float, bar: Progress | None) -> dict[str, str]:
    """Task id → the smallest id of those that it resembles, directly or through others."""
    leader = {task.task_id: task.task_id for task in tasks}

    def top(own: str) -> str:
        while leader[own] != own:
            leader[own] = leader[leader[own]]
            own = leader[own]
        return own

    sets = ((task.task_id, shingles(task.problem)) for task in tasks)
    for pair in near_duplicates(sets, threshold, bar=bar):
        first, second = sorted((top(pair.left), top(pair.right)))
        leader[second] = first
    return {own: top(own) for own in leader}


def write_task_split(
    tasks: Path, out: Path, *, seed: int, holdout: float, overfit: int, threshold: float
) -> SplitManifest:
    """Split the file ``tasks`` into the parts of ``split_tasks`` and write their ids to the directory ``out``.

    Raises ``ConfigError`` when ``out`` exists or ``holdout`` is no share, ``DataError`` as ``read_tasks``.
    """
    if not 0 < holdout < 1:
        raise ConfigError(f"--holdout: found {holdout}; expected a share between 0 and 1")
    refuse_existing(out, force=False)
    found = list(read_tasks(tasks))
    with progress("compare", len(found), unit="tasks") as bar:
        parts = split_tasks(found, seed=seed, holdout=holdout, overfit=overfit, threshold=threshold, bar=bar)
    shares = {TRAIN: 1 - holdout, HOLDOUT: holdout}
    return write_split(out, parts, by="problem", stratify="domain", seed=seed, fractions=shares)
