"""What gates read from recorded episodes: was the task completed, and did a call fail on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from firstchair.core.errors import DataError
from firstchair.traces.session import Session
from firstchair.traces.session_file import read_numbered_sessions, sessions_path


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """One episode."""

    task_id: str
    trial: int = 0
    completed: bool | None
    """``None``: not judged, because the machinery failed."""
    call_failed: bool
    """A tool call was answered with an error."""
    seed: int | None = None
    policy: str = ""
    error: str = ""
    """Why it was not judged, up to the first colon."""


def played(session: Session) -> Played:
    """The episode that ``session`` records. Raises ``DataError`` naming the label that is missing or wrong."""
    labels = session.labels
    completed, error = labels.get("completed"), str(labels.get("error", ""))
    if "task_id" not in labels:
        raise DataError("missing; expected the task that was played", field="labels.task_id")
    if completed is not None and not isinstance(completed, bool):
        raise DataError(f"found {completed!r}; expected true or false", field="labels.completed")
    if completed is None and not error:
        raise DataError(
            "missing; expected true or false, or `error` with the reason why the episode was not judged",
            field="labels.completed",
        )
    trial, seed = labels.get("trial", 0), session.meta.get("seed")
    if isinstance(trial, bool) or not isinstance(trial, int):
        raise DataError(f"found {trial!r}; expected a whole number", field="labels.trial")
    return Played(
        task_id=str(labels["task_id"]),
        trial=trial,
        completed=completed,
        call_failed=any(message.is_error for message in session.messages[session.context_end :]),
        seed=seed if isinstance(seed, int) else None,
        policy=str(session.meta.get("policy", "")),
        error=error.partition(":")[0],
    )


def read_played(path: Path) -> tuple[Played, ...]:
    """The episodes of a sessions file or export. Raises ``DataError`` with file:line and label."""
    file = str(sessions_path(path))
    found: dict[tuple[str, int], Played] = {}
    for line, session in read_numbered_sessions(path):
        try:
            episode = played(session)
        except DataError as error:
            raise error.at(file, line) from None
        key = (episode.task_id, episode.trial)
        if key in found:
            raise DataError(
                f"task {episode.task_id!r}, trial {episode.trial} stands twice; expected each once; number the "
                "trials of a task, or keep one",
                path=file,
                line=line,
                field="labels.trial",
            )
        found[key] = episode
    if not found:
        raise DataError("no episode in it", path=file)
    return tuple(found.values())


class Pairing(msgspec.Struct, frozen=True):
    """Two sides' episodes of the same tasks."""

    pairs: list[tuple[Played, Played]]
    """``(before, after)`` of each task and trial that both were judged on, in order."""
    total: int
    """Tasks and trials of either side."""
    left_out: dict[str, int]
    """Reason → tasks and trials that are in no pair; with the pairs they are ``total``."""


def paired(before: Sequence[Played], after: Sequence[Played]) -> Pairing:
    """Pair episodes by task and trial. Nothing is left out without its reason."""
    sides = [{(episode.task_id, episode.trial): episode for episode in episodes} for episodes in (before, after)]
    pairs: list[tuple[Played, Played]] = []
    reasons: Counter[str] = Counter()
    keys = sorted({*sides[0], *sides[1]})
    for key in keys:
        was, now = (side.get(key) for side in sides)
        if was is None or now is None:
            reasons[f"no episode of {_sides(was is None, now is None)}"] += 1
        elif was.completed is None or now.completed is None:
            lost = " and ".join(episode.error or "unknown" for episode in (was, now) if episode.completed is None)
            reasons[f"not judged for {_sides(was.completed is None, now.completed is None)}: {lost}"] += 1
        elif None not in (was.seed, now.seed) and was.seed != now.seed:
            reasons["begun from different seeds"] += 1
        else:
            pairs.append((was, now))
    return Pairing(pairs, len(keys), dict(reasons))


def _sides(before: bool, after: bool) -> str:
    return "both" if before and after else "the baseline" if before else "the candidate"
