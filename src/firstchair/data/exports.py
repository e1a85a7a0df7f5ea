"""Decisions as records of their own, for analysis."""

from __future__ import annotations

from typing import Any

import msgspec

from firstchair.chat.messages import Tool
from firstchair.data.golden.record import view_of
from firstchair.data.message_rows import messages_to_rows
from firstchair.traces.decisions import DecisionPoint, context
from firstchair.traces.session import Session


def decision_row(
    session: Session, decision: DecisionPoint, tools: tuple[Tool, ...], *, with_context: bool = True
) -> dict[str, Any]:
    """One decision with what the model saw. Without context, ``session_id`` and ``context_end`` say where it stands
    (a session's contexts together are as long as the square of its length).
    """
    row: dict[str, Any] = {
        "dp_id": decision.dp_id,
        "session_id": decision.session_id,
        "turn": decision.turn,
        "seq": decision.seq,
        "kind": decision.kind,
        "context_end": decision.context_end,
    }
    if with_context:
        row["context"] = messages_to_rows(context(session, decision))
        row["tools"] = msgspec.to_builtins(tools)
    row |= {
        "observed": view_of(decision.observed),
        "gold": None if decision.gold is None else view_of(decision.gold),
        "known_bad": [view_of(bad) for bad in decision.known_bad],
        "accept": msgspec.to_builtins(decision.accept),
        "verified": decision.verified,
        "tags": list(decision.tags),
        "provenance": decision.provenance,
    }
    return row
