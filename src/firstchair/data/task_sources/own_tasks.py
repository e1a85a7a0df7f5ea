"""Rows that are tasks already: the fields of ``OrchestrationTask``, of which only ``problem`` must be there."""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

from firstchair.core.errors import DataError
from firstchair.data.task_sources.fields import Fields, task_id, text_of
from firstchair.rewards.answers.choice import LETTERS
from firstchair.rollout.orchestration import prompt
from firstchair.rollout.orchestration.task import OrchestrationTask

NAME = "tasks"
KNOWN = OrchestrationTask.__struct_fields__


def task_of(row: Fields) -> OrchestrationTask:
    """A row as a task; one without ``task_id`` gets an id from its problem. Raises ``DataError``."""
    for name in row:
        if name not in KNOWN:
            near = difflib.get_close_matches(name, KNOWN, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(KNOWN)}"
            raise DataError(f"unknown field; {hint}", field=name)
    problem = text_of(row, "problem")
    if not problem:
        raise DataError("empty; expected what the policy is to solve", field="problem")
    # Parquet has every column in every row; null there means what leaving it out means in JSON Lines.
    given: dict[str, Any] = {name: value for name, value in row.items() if value is not None}
    given.setdefault("task_id", task_id(NAME, problem))
    try:
        task = msgspec.convert(given, OrchestrationTask)
    except msgspec.ValidationError as error:
        raise DataError(str(error)) from None
    if not task.task_id:
        raise DataError("empty; leave it out, or give each task an id of its own", field="task_id")
    if len(task.choices) > len(LETTERS):
        raise DataError(f"found {len(task.choices)}; at most {len(LETTERS)} have a letter", field="choices")
    for name, weight in task.preference.items():
        if weight < 0:
            raise DataError(f"{name}: found {weight:g}; expected a weight of at least 0", field="preference")
    return _with_wish_shown(_with_options_shown(task))


def _with_options_shown(task: OrchestrationTask) -> OrchestrationTask:
    """The policy sees nothing but the problem, so options that do not stand in it are written below it."""
    if all(choice in task.problem for choice in task.choices):
        return task
    lines = (f"{letter}. {choice}" for letter, choice in zip(LETTERS, task.choices, strict=False))
    return msgspec.structs.replace(task, problem="\n".join((task.problem, "", *lines)))


def _with_wish_shown(task: OrchestrationTask) -> OrchestrationTask:
    """A preference in words below the problem, unless it stands there: no policy can go by what it is not told."""
    if not task.preference or (words := prompt.wish(task.preference)) in task.problem:
        return task
    return msgspec.structs.replace(task, problem=f"{task.problem}\n\n{words}")
