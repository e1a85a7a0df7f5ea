"""A desk task as data: the world at the start, what the user says turn by turn, and what must hold at the end."""

from __future__ import annotations

import msgspec

from firstchair.rollout.desk.world import WorldSeed


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Frozen, JSON-able."""


class Fault(_Record, frozen=True):
    """A tool that fails ``times`` times within the turn, whatever it is asked."""

    tool: str
    reason: str
    times: int = 1


class TaskCheck(_Record, frozen=True):
    """One condition that code checks at the end; ``checks.CHECKS`` says what each kind means."""

    kind: str
    values: tuple[str, ...] = ()
    turn: int = -1
    """The turn whose final reply is meant; -1 for conditions on the world."""


class DeskTurn(_Record, frozen=True):
    """One user turn."""

    user: str
    rows: tuple[str, ...]
    """Policy rows that it exercises; the row of the request stands last."""
    answer: str = ""
    """The value the user gives when asked for a detail; empty when nothing is missing."""
    faults: tuple[Fault, ...] = ()


class DeskTask(_Record, frozen=True):
    """One episode to play."""

    task_id: str
    world: WorldSeed
    turns: tuple[DeskTurn, ...]
    checks: tuple[TaskCheck, ...]

    @property
    def rows(self) -> tuple[str, ...]:
        """Every policy row that the task exercises, in order of first use."""
        return tuple(dict.fromkeys(row for turn in self.turns for row in turn.rows))
