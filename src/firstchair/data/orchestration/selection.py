"""Which trajectories of a group are worth learning from, and which records a training run takes.

kept     the cheapest trajectory of a task that is correct and clean; one a task, none where there is no such one
reward   minus its cost in USD, among the correct; the others, and those whose cost is unknown, have none

The cost is that of the experts, and of the policy where it has a price: a model that is being trained has none. A
cost is unknown when an expert's price is unknown. Among candidates to keep it counts as dearer than any known one;
equals are told apart by fewer dispatches, then by the number of the sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from firstchair.catalog.token_counts import NANO
from firstchair.core.errors import DataError
from firstchair.data.orchestration.clean_gate import Finding, unclean
from firstchair.data.orchestration.groups import Group
from firstchair.rollout.orchestration.trajectory import Trajectory

if TYPE_CHECKING:
    from firstchair.data.sft import SftRecord

Which = Literal["all", "correct", "correct_routed"]
"""``correct_routed``: correct, and a model was asked at least once."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A trajectory beside the others of its task."""

    trajectory: Trajectory
    findings: tuple[Finding, ...]
    """What makes it unclean."""
    cost_nano: int | None
    """Nano-USD; ``None``: unknown."""
    kept: bool

    @property
    def clean(self) -> bool:
        """Whether it passes the clean gate."""
        return not self.findings

    @property
    def reward(self) -> float | None:
        """−USD; ``None`` for what is not correct, and where the cost is unknown."""
        if not self.trajectory.correct or self.cost_nano is None:
            return None
        return 0.0 - self.cost_nano / NANO

    @property
    def routed(self) -> bool:
        """Whether a model was asked."""
        return is_routed(self.trajectory)


def is_routed(trajectory: Trajectory) -> bool:
    """Whether a model was asked at least once."""
    return any(dispatch.kind == "model" for dispatch in trajectory.dispatches)


def cost_nano(trajectory: Trajectory) -> int | None:
    """Nano-USD of experts and policy; ``None`` when an expert's price is unknown."""
    experts = trajectory.expert_cost_nano
    return None if experts is None else experts + (trajectory.policy_cost_nano or 0)


def judge_group(group: Group) -> tuple[Judged, ...]:
    """Every trajectory of ``group``, in order, with what the gate says, its cost, and whether it is the one kept."""
    findings = [unclean(trajectory) for trajectory in group.trajectories]
    costs = [cost_nano(trajectory) for trajectory in group.trajectories]

    def rank(place: int) -> tuple[bool, int, int, int]:
        trajectory, cost = group.trajectories[place], costs[place]
        return cost is None, cost or 0, len(trajectory.dispatches), trajectory.sample

    candidates = [
        place for place, one in enumerate(group.trajectories) if one.correct is True and not findings[place]
    ]
    best = min(candidates, key=rank, default=None)
    return tuple(
        Judged(trajectory=one, findings=findings[place], cost_nano=costs[place], kept=place == best)
        for place, one in enumerate(group.trajectories)
    )


def left_out_because(meta: Mapping[str, Any], which: Which, *, clean_only: bool) -> str | None:
    """Why a training record with ``meta`` is left out, in words to count by; ``None`` when it is taken.

    Raises ``DataError`` naming the field when the record does not say what the choice needs.
    """
    if which != "all":
        if (correct := _flag(meta, "correct")) is not True:
            return "not graded" if correct is None else "wrong"
        if which == "correct_routed" and not _flag(meta, "routed"):
            return "no model was asked"
    if clean_only and not _flag(meta, "clean"):
        reasons = meta.get("unclean")
        return f"unclean: {reasons[0]}" if isinstance(reasons, list) and reasons else "unclean"
    return None


def chosen_records(
    records: Iterable[SftRecord], which: Which, *, clean_only: bool, left_out: dict[str, int], path: str
) -> Iterator[SftRecord]:
    """Those of ``records`` that a training run with this choice takes; why the others are not is counted.

    Raises ``DataError`` naming ``path``, the record and the field when it does not say what the choice needs, and
    with the counts when all are left out.
    """
    none = True
    for record in records:
        try:
            why = left_out_because(record.meta, which, clean_only=clean_only)
        except DataError as error:
            fix = "--which all --no-clean takes records without it"
            raise DataError(f"{error.field}: {error.reason}; {fix}", path=path, field=f"record {record.id}") from None
        if why is None:
            none = False
            yield record
        else:
            left_out[why] = left_out.get(why, 0) + 1
    if none:
        reasons = ", ".join(f"{why} ({count:,})" for why, count in left_out.items())
        raise DataError(
            f"every record is left out: {reasons or 'there is none'}; take more with --which or --no-clean", path=path
        )


def _flag(meta: Mapping[str, Any], name: str) -> bool | None:
    value = meta.get(name, "nothing")
    if value is None or isinstance(value, bool):
        return value
    found = repr(value) if name in meta else "nothing"
    raise DataError(
        f"found {found}; expected true or false, as `firstchair trajectories serialize` writes it",
        field=f"meta.{name}",
    )
