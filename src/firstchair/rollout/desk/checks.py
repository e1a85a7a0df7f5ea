"""What the checks of a task mean: each kind is a function of the final world and the replies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from firstchair.rollout.desk.review import admits_failure
from firstchair.rollout.desk.task import TaskCheck
from firstchair.rollout.desk.world import Event, PhoneCall, Reminder, Sent, World
from firstchair.rollout.environment import Check

Condition = Callable[[World, str, tuple[str, ...]], bool]
"""``(world, reply of the turn, values) -> holds``."""


def _reply_has(world: World, reply: str, values: tuple[str, ...]) -> bool:
    return bool(reply.strip()) and all(value in reply for value in values)


def _reply_denies(world: World, reply: str, values: tuple[str, ...]) -> bool:
    return admits_failure(reply) and all(value in reply for value in values)


def _delivered(world: World, reply: str, values: tuple[str, ...]) -> bool:
    kind, about = values
    made = {path for path, item in world.artifacts.items() if (item.kind, item.about) == (kind, about)}
    return not made.isdisjoint(world.shared)


def _counts(world: World, reply: str, values: tuple[str, ...]) -> bool:
    found = (world.reminders, world.events, world.sent, world.phone_calls)
    return [str(len(rows)) for rows in found] == list(values)


CHECKS: Mapping[str, Condition] = MappingProxyType(
    {
        "reply_has": _reply_has,
        "reply_denies": _reply_denies,
        "delivered": _delivered,
        "counts": _counts,
        "shared": lambda world, _, values: values[0] in world.shared,
        "file_is": lambda world, _, values: world.files.get(values[0]) == values[1],
        "file_gone": lambda world, _, values: values[0] not in world.files,
        "reminder": lambda world, _, values: Reminder(*values) in world.reminders,
        "event": lambda world, _, values: Event(*values) in world.events,
        "message": lambda world, _, values: Sent(*values) in world.sent,
        "phone": lambda world, _, values: PhoneCall(*values) in world.phone_calls,
        "memory": lambda world, _, values: values[0] in world.memory,
    }
)
"""Kind → condition: ``reply_has`` / ``reply_denies`` (values stand in the reply, failure is admitted),
``delivered`` (an artifact of this kind about this was shared), ``counts`` (reminders, events, messages and calls
in all: nothing was done beside what was asked), the others: this is in the world."""


def verify_checks(checks: Sequence[TaskCheck], world: World, replies: Sequence[str]) -> tuple[Check, ...]:
    """Each check with its answer. ``replies`` are the final replies given so far, by turn."""
    out = []
    for number, check in enumerate(checks):
        reply = replies[check.turn] if 0 <= check.turn < len(replies) else ""
        name = f"{number}:{check.kind}" + (f"@{check.turn}" if check.turn >= 0 else "")
        ok = CHECKS[check.kind](world, reply, check.values)
        out.append(Check(name, ok, "" if ok else f"expected {' | '.join(check.values)}"))
    return tuple(out)
