"""Which rollouts and groups teach nothing worth learning: left out before advantages are made, and counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

ROUNDING = 1e-9
"""1 − 0.9 is 0.1 here, whatever floating point makes of it."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """What is left of the rewards of a batch."""

    rewards: tuple[float | None, ...]
    """``None``: left out, or without a reward before."""
    broken: int
    """Rollouts left out for a call that could not be read."""
    no_output: int
    """Rollouts left out for saying nothing that could be used."""
    narrow: tuple[int, ...]
    """Groups left out for their spread, in order of first appearance."""


def filter_groups(
    rewards: Sequence[float | None],
    groups: Sequence[int],
    *,
    broken: Sequence[bool],
    no_output: Sequence[bool],
    min_spread: float,
) -> Filtered:
    """Leave out broken rollouts, then those without output, then groups whose remaining rewards spread (max − min)
    over less than ``min_spread``.

    One value per rollout in each sequence. A rollout counts once, as ``broken`` when it is both; one without a reward
    counts nowhere. A group of one reward or none has no spread and is not judged here: it has no baseline anyway.
    """
    left = list(rewards)
    counts = {"broken": 0, "no_output": 0}
    for index, reward in enumerate(rewards):
        why = "broken" if broken[index] else "no_output" if no_output[index] else ""
        if reward is not None and why:
            left[index] = None
            counts[why] += 1
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    narrow: list[int] = []
    for group, indices in members.items():
        found = [reward for index in indices if (reward := left[index]) is not None]
        if len(found) > 1 and max(found) - min(found) < min_spread - ROUNDING:
            narrow.append(group)
            for index in indices:
                left[index] = None
    return Filtered(tuple(left), counts["broken"], counts["no_output"], tuple(narrow))
