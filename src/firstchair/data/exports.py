"""Decisions as records of their own: for analysis, and as prompts for reinforcement learning."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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


def rl_prompts(
    session: Session, decisions: Iterable[DecisionPoint], tools: tuple[Tool, ...]
) -> Iterator[dict[str, Any]]:
    """RL prompt records ``{prompt, tools, meta}``: the prompt stops at the decision, no target follows it.

    ``meta.ground_truth`` is for the verifier, never for the model: gold, or the observed action where there is no
    gold (``None`` when that was cut or refused); ``meta.verified`` says which to trust. ``meta.env`` and
    ``meta.verifier`` come from the labels.
    """
    for decision in decisions:
        target = decision.gold or (decision.observed if decision.ending is None else None)
        meta: dict[str, Any] = {
            "dp_id": decision.dp_id,
            "task_id": session.labels.get("task_id", session.session_id),
            "available_tools": [tool.name for tool in tools],
            "ground_truth": None if target is None else view_of(target),
            "verified": decision.verified,
        }
        meta |= {name: session.labels[name] for name in ("env", "verifier") if name in session.labels}
        yield {
            "prompt": messages_to_rows(context(session, decision)),
            "tools": msgspec.to_builtins(tools),
            "meta": meta,
        }
