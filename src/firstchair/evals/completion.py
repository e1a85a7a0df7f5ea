"""End-task completion: how many episodes reached what their task asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from firstchair.evals.stats import Rate, rate
from firstchair.rollout.episodes import Episode


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of episodes shows. An episode that was not judged is counted in ``errors`` and in nothing else."""

    completed: Rate
    by_row: dict[str, Rate]
    """Policy row → completion of the tasks that exercise it; a task counts in each of its rows."""
    malformed: Rate
    """Of all actions."""
    episodes: int
    errors: dict[str, int]
    """Reason, up to its first colon, → episodes left out for it."""
    ends: dict[str, int]
    """Why episodes ended → how many."""
    mean_steps: float | None


def completion(
    episodes: Iterable[Episode], rows: Mapping[str, Sequence[str]] | None = None, *, seed: int = 0
) -> Completion:
    """Summarise ``episodes``; ``rows`` gives the policy rows of each task. Intervals resample tasks, not trials."""
    episodes = list(episodes)
    judged = sorted((e for e in episodes if e.completed is not None), key=lambda e: (e.task_id, e.trial))
    groups: dict[str, list[Episode]] = {}
    for episode in judged:
        for row in (rows or {}).get(episode.task_id, ()):
            groups.setdefault(row, []).append(episode)
    tasks = [episode.task_id for episode in judged]
    return Completion(
        completed=_completed(judged, seed),
        by_row={row: _completed(groups[row], seed) for row in sorted(groups)},
        malformed=rate([float(e.malformed) for e in judged], [float(e.steps) for e in judged], tasks, seed=seed),
        episodes=len(episodes),
        errors=dict(Counter((e.error or "unknown").partition(":")[0] for e in episodes if e.completed is None)),
        ends=dict(Counter(str(e.end) for e in episodes)),
        mean_steps=sum(e.steps for e in judged) / len(judged) if judged else None,
    )


def _completed(judged: Sequence[Episode], seed: int) -> Rate:
    hits: list[Any] = [float(bool(episode.completed)) for episode in judged]
    return rate(hits, [1.0] * len(judged), [episode.task_id for episode in judged], seed=seed)
