"""Alternatives: other actions at a decision that a reviewer also accepts, or looser rules for gold's arguments.

One JSON object a line: ``{dp_id, action, by, why}`` with an action in the short form of corrections, or
``{dp_id, matchers, by, why}`` with ``{"query": "fuzzy>=0.8"}``. A valid choice that the recording happened not to
make must not count as a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from firstchair.core.errors import DataError
from firstchair.core.jsonl import read_jsonl
from firstchair.data.corrections import ActionSpec, brief, same_action
from firstchair.traces.decisions import Accepted, DecisionPoint


class Alternative(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One reviewed alternative."""

    dp_id: str
    action: ActionSpec | None = None
    matchers: dict[str, str] = {}
    """JSON path below the arguments of gold's call → matcher."""
    by: str
    why: str


def read_alternatives(path: Path) -> list[Alternative]:
    """Read a file of alternatives. Raises ``DataError`` with file, line and field."""
    found: list[Alternative] = []
    for line, row in read_jsonl(path):
        try:
            found.append(alternative_from(row))
        except DataError as error:
            raise error.at(str(path), line) from None
    return found


def alternative_from(row: Mapping[str, Any]) -> Alternative:
    """One row as an alternative. Raises ``DataError`` naming the field and the decision."""
    where = f"(dp_id {row.get('dp_id')!r})"
    try:
        found = msgspec.convert(dict(row), Alternative)
    except msgspec.ValidationError as error:
        reason, _, path = str(error).partition(" - at `$.")
        raise DataError(f"{reason} {where}", field=path.rstrip("`") or None) from None
    if (found.action is None) == (not found.matchers):
        raise DataError(f"give either an action or matchers {where}", field="action")
    for field in ("by", "why"):
        if not getattr(found, field).strip():
            raise DataError(f"empty; say {'who reviewed it' if field == 'by' else 'the reason'} {where}", field=field)
    return found


def apply_alternatives(
    decisions: Iterable[DecisionPoint], alternatives: Iterable[Alternative]
) -> tuple[DecisionPoint, ...]:
    """The decisions with the alternatives added; nothing else changes.

    Raises ``DataError`` naming field and dp_id when one names no decision, equals gold, or is a known mistake.
    """
    by_id = {decision.dp_id: decision for decision in decisions}
    for number, alternative in enumerate(alternatives, start=1):
        decision = by_id.get(alternative.dp_id)
        if decision is None:
            raise DataError(
                f"alternative {number}: no decision {alternative.dp_id!r} in the draft; check the id", field="dp_id"
            )
        by_id[decision.dp_id] = _with_alternative(decision, alternative)
    return tuple(by_id.values())


def _with_alternative(decision: DecisionPoint, alternative: Alternative) -> DecisionPoint:
    where = f"(dp_id {decision.dp_id!r})"
    if decision.gold is None:
        raise DataError(f"the decision has no gold yet; correct or confirm it first {where}", field="dp_id")
    if alternative.action is None:
        option = Accepted(matchers=alternative.matchers)
    else:
        action = alternative.action.action(tuple(call.id for call in decision.gold.calls))
        if same_action(action, decision.gold):
            raise DataError(f"{brief(action)} is gold already {where}", field="action")
        if any(same_action(action, bad) for bad in decision.known_bad):
            raise DataError(f"{brief(action)} is recorded as a known mistake {where}", field="action")
        option = Accepted(action=action)
    if option in decision.accept:
        raise DataError(f"this alternative stands already {where}", field="action")
    return msgspec.structs.replace(decision, accept=(*decision.accept, option))
