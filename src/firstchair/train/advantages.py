"""From rewards to advantages: what a group of rollouts says about each of its members."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from firstchair.core.errors import DataError

STD_EPS = 1e-6
VARIANCE_EPS = 1e-8
FLAT = 1e-9
"""Rewards that lie this close together (relative to their size) are alike: sums of weights differ by roundings."""


@dataclass(frozen=True, slots=True)
class GroupAdvantages:
    """Advantages of some groups, and what could not be used."""

    values: tuple[float | None, ...]
    """One per sample; ``None``: not graded, so left out of the loss. Never 0 for want of a grade."""
    ungraded: int
    """Samples without a finite reward."""
    kept: tuple[int, ...]
    """Groups with at least two different rewards, in order of first appearance: the only ones with a signal."""
    flat: tuple[int, ...]
    """Groups whose graded members, two or more, have one reward; their advantages are exactly 0."""
    single: tuple[int, ...]
    """Groups with one graded member, which is its own baseline; its advantage is exactly 0."""
    empty: tuple[int, ...]
    """Groups with no graded member."""


def group_advantages(rewards: Sequence[float | None], groups: Sequence[int], *, normalise: bool) -> GroupAdvantages:
    """``(r − mean) / (std + 1e-6)`` over the graded members of each group; without ``normalise`` ``r − mean``.

    GRPO (Shao et al. 2024, section 4.1.2); without division Dr. GRPO (Liu et al. 2025, section 3.2). The standard
    deviation is the unbiased one (n − 1): a group is a sample of what the policy earns on its prompt. A reward of
    ``None``, NaN or ±inf is no grade. Samples of a group need not stand together. Raises ``DataError`` when the two
    sequences differ in length.
    """
    if len(rewards) != len(groups):
        raise DataError(f"{len(rewards)} rewards for {len(groups)} groups; expected one each", field="rewards")
    members: dict[int, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    values: list[float | None] = [None] * len(rewards)
    sorts: dict[str, list[int]] = {"kept": [], "flat": [], "single": [], "empty": []}
    for group, indices in members.items():
        graded = {i: float(r) for i in indices if (r := rewards[i]) is not None and math.isfinite(r)}
        sorts[_sort_of(list(graded.values()))].append(group)
        values_of = _against_the_mean(np.array(list(graded.values())), normalise)
        for index, value in zip(graded, values_of, strict=True):
            values[index] = float(value)
    return GroupAdvantages(tuple(values), values.count(None), **{name: tuple(found) for name, found in sorts.items()})


def _sort_of(graded: Sequence[float]) -> str:
    if len(graded) < 2:
        return "single" if graded else "empty"
    return "flat" if _alike(min(graded), max(graded)) else "kept"


def _alike(low: float, high: float) -> bool:
    return high - low <= FLAT * max(abs(low), abs(high), 1.0)


def _against_the_mean(rewards: np.ndarray, normalise: bool) -> np.ndarray:
    if not len(rewards) or _alike(rewards.min(), rewards.max()):
        return np.zeros_like(rewards)
    centred = rewards - rewards.mean()
    return np.asarray(centred / (rewards.std(ddof=1) + STD_EPS) if normalise else centred)


def branch_advantages(
    rows: Sequence[NDArray[np.int32]], rewards: Sequence[float], *, normalise: bool
) -> list[NDArray[np.float32]]:
    """Advantages token by token, from what the rows of one group have in common: one ``[n]`` array for each row.

    The value of a prefix is the mean reward of the rows that begin with it, and a token's advantage is the value
    with it less the value without (a Monte-Carlo estimate of what the step is worth: VinePPO, Kazemnejad et al. 2024;
    from the tree of one group: SPO-tree, Guo et al. 2025). So it is 0 but where rows part: what led there is in all
    of them, and what follows in one row alone says nothing more. ``normalise`` divides by the standard deviation of
    the rewards, as ``group_advantages`` does. ``rows``: whole token streams, prompt included.
    """
    values = np.asarray(rewards, np.float64)
    scale = values.std(ddof=1) + STD_EPS if normalise and len(values) > 1 else 1.0
    found = [np.zeros(len(row), np.float32) for row in rows]
    open_: list[tuple[list[int], int]] = [(list(range(len(rows))), 0)]
    while open_:
        members, start = open_.pop()
        place = _parting(rows, members, start)
        children: dict[int, list[int]] = {}
        for member in members:
            if place < len(rows[member]):
                children.setdefault(int(rows[member][place]), []).append(member)
        for child in children.values():
            gain = (values[child].mean() - values[members].mean()) / scale
            for member in child:
                found[member][place] = gain
            if len(child) > 1:
                open_.append((child, place + 1))
    return found


def _parting(rows: Sequence[NDArray[np.int32]], members: Sequence[int], start: int) -> int:
    """The first place from ``start`` on at which the members differ, or at which one of them has ended."""
    end = min(len(rows[member]) for member in members)
    first = rows[members[0]][start:end]
    differ = np.zeros(len(first), np.bool_)
    for member in members[1:]:
        differ |= rows[member][start:end] != first
    return start + int(differ.argmax()) if differ.any() else end


def without_truncated(
    values: Sequence[float | None], truncated: Sequence[bool]
) -> tuple[tuple[float | None, ...], int]:
    """``values`` with ``None`` for every sample that was cut at its length limit, and how many that took out.

    Their rewards were in the group's mean (overlong filtering, DAPO, Yu et al. 2025, section 3.4).
    """
    masked = tuple(None if cut else value for value, cut in zip(values, truncated, strict=True))
    return masked, masked.count(None) - list(values).count(None)


def overlong_penalty(tokens: int, *, limit: int, buffer: int) -> float:
    """What to add to the reward of a reply of ``tokens`` tokens: 0 up to ``limit − buffer``, falling to −1 at
    ``limit``, −1 beyond (soft overlong punishment, DAPO, Yu et al. 2025, eq. 13)."""
    return -min(max(tokens - (limit - buffer), 0) / buffer, 1.0)


class Moments(NamedTuple):
    """Sums over tokens, to be added over micro-batches and processes before anything is divided."""

    tokens: float
    total: float
    squares: float


def moments(x_K: Tensor) -> Moments:
    """Sums of ``x_K`` (``[K]``, values under the mask only) in float64, whatever its type."""
    wide = x_K.detach().double()
    return Moments(float(len(wide)), float(wide.sum()), float(wide.square().sum()))


def whiten(x_K: Tensor, over: Moments) -> Tensor:
    """``(x − mean) · rsqrt(var + 1e-8)`` with mean and unbiased variance of ``over``: ``[K]`` float32.

    Of fewer than two values the variance is 0.
    """
    if not over.tokens:
        return x_K.float()
    mean = over.total / over.tokens
    spread = max(over.squares - over.tokens * mean * mean, 0.0)
    variance = spread / (over.tokens - 1) if over.tokens > 1 else 0.0
    return ((x_K.double() - mean) / math.sqrt(variance + VARIANCE_EPS)).float()
