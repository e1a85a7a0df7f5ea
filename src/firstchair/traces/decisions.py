"""Decision points: the states of a session where the model must act."""

from __future__ import annotations

from typing import Any

import msgspec

from firstchair.chat.actions import Action, ActionKind, action_of
from firstchair.chat.messages import ENDINGS, Message, ending
from firstchair.traces.session import Session, turns_of


class Accepted(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An alternative that also counts: an action, or ``matchers`` that loosen fields of the gold call."""

    action: Action | None = None
    matchers: dict[str, str] = {}
    """JSON path below the arguments → matcher name, e.g. ``{"query": "fuzzy>=0.8"}``."""


class DecisionPoint(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One decision. Its context is ``session.messages[:context_end]``, never a copy of it."""

    dp_id: str
    """``session_id:index``."""
    session_id: str
    turn: int
    """Index of the turn in the session."""
    seq: int
    """Index of the decision in its turn."""
    context_end: int
    observed: Action
    gold: Action | None = None
    known_bad: tuple[Action, ...] = ()
    accept: tuple[Accepted, ...] = ()
    verified: bool = False
    tags: tuple[str, ...] = ()
    provenance: str = ""
    scoring: dict[str, Any] = {}

    @property
    def kind(self) -> ActionKind:
        """Kind of the observed action."""
        return self.observed.kind

    @property
    def ending(self) -> str | None:
        """How the recorded action ended when the model did not end it itself: one of ``ENDINGS``."""
        return next((mark for mark in ENDINGS if mark in self.tags), None)

    @property
    def index(self) -> int:
        """Index of the decision in its session."""
        return int(self.dp_id.rpartition(":")[2])


def decision_points(session: Session) -> tuple[DecisionPoint, ...]:
    """Every assistant action of ``session`` after its ``context_end``, in order.

    A message with several parallel calls is one decision. A decision is tagged ``recovery`` when the
    observation before it is an error, ``stop`` when it is a final reply, ``parallel`` when it has several calls. One
    that the model did not end itself is tagged ``truncated``, ``refused`` or ``unfinished``, and is never a ``stop``.
    """
    turns = session.turns or turns_of(session.messages)
    turn_of = {index: number for number, turn in enumerate(turns) for index in range(turn.start, turn.end)}
    points: list[DecisionPoint] = []
    seq: dict[int, int] = {}
    for position, message in enumerate(session.messages):
        if message.role != "assistant" or position < session.context_end:
            continue
        turn = turn_of.get(position, -1)
        tags: list[str] = []
        if position and session.messages[position - 1].is_error:
            tags.append("recovery")
        if mark := ending(message):
            tags.append(mark)
        elif not message.tool_calls:
            tags.append("stop")
        if len(message.tool_calls) > 1:
            tags.append("parallel")
        points.append(
            DecisionPoint(
                dp_id=f"{session.session_id}:{len(points)}",
                session_id=session.session_id,
                turn=turn,
                seq=seq.get(turn, 0),
                context_end=position,
                observed=action_of(message),
                tags=tuple(tags),
                provenance=session.source,
            )
        )
        seq[turn] = seq.get(turn, 0) + 1
    return tuple(points)


def context(session: Session, decision: DecisionPoint) -> tuple[Message, ...]:
    """What the model sees at ``decision``: everything before its own message, nothing after."""
    return session.messages[: decision.context_end]
