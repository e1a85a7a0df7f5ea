"""Corrections: the reviewed list of what was wrong in recorded sessions and what would have been right.

One JSON object a line:
``{dp_id, dimension, before, after, evidence, by, why}``. ``before`` and ``after`` are actions in a short form:
``{"tool": "Glob", "input": {"pattern": "*.md"}}``, ``{"tool": null, "text": "Done."}`` for a final reply, or
``{"calls": [{"tool": …, "input": …}, …]}`` for parallel calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from firstchair.chat.actions import Action
from firstchair.chat.messages import ToolCall
from firstchair.core.errors import DataError
from firstchair.core.jsonl import SkipBad, read_jsonl
from firstchair.core.jsontext import canonical, dumps
from firstchair.traces.decisions import DecisionPoint


class Dimension(StrEnum):
    """What a violation of the routing policy is about. The list is closed: the counts must stay comparable."""

    MISROUTE = "misroute"
    UNTRUTHFUL_FINAL = "untruthful final"
    NEEDLESS_ASK = "needless ask"
    SHARE_FILE = "share-file"
    MEMORY = "memory"
    PREMATURE_STOP = "premature stop"
    FAILED_STOP = "failed stop"
    ARGUMENTS = "arguments"
    CONFIRMED = "confirmed"
    """No violation: ``before`` equals ``after``, and a reviewer vouches for it."""


class CallSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One call as a reviewer writes it."""

    tool: str
    input: dict[str, Any] | str = {}
    """The arguments; a string is argument text kept byte for byte (a malformed call, say)."""
    tool_use_id: str | None = None


class ActionSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """An action as a reviewer writes it: one call, several ``calls``, or a final reply (``tool`` null).

    What `data decisions` writes as ``observed`` and ``gold`` is such an action: a reply's ``input`` is null there,
    and the first of several ``calls`` stands in front too.
    """

    tool: str | None = None
    input: dict[str, Any] | str | None = {}
    tool_use_id: str | None = None
    calls: tuple[CallSpec, ...] = ()
    text: str = ""
    thinking: str = ""

    @property
    def call_specs(self) -> tuple[CallSpec, ...]:
        """The calls, whichever way they were written."""
        if self.tool is None or self.calls:
            return self.calls
        return (
            CallSpec(tool=self.tool, input={} if self.input is None else self.input, tool_use_id=self.tool_use_id),
        )

    def action(self, ids: tuple[str, ...] = ()) -> Action:
        """The action meant. A call without an id takes the one at its place in ``ids``, else ``gold_<place>``."""
        calls = tuple(
            ToolCall(
                id=spec.tool_use_id or (ids[place] if place < len(ids) else f"gold_{place}"),
                name=spec.tool,
                arguments=spec.input if isinstance(spec.input, str) else dumps(spec.input),
            )
            for place, spec in enumerate(self.call_specs)
        )
        kind: Any = "tool_call" if calls else "final_reply"
        return Action(kind=kind, calls=calls, text=self.text, thinking=self.thinking)


def spec_of(action: Action) -> ActionSpec:
    """``action`` in the short form; arguments that are no object, or spaced in another way, stay text."""
    specs = tuple(CallSpec(tool=call.name, input=_input(call), tool_use_id=call.id) for call in action.calls)
    if len(specs) == 1:
        return ActionSpec(
            tool=specs[0].tool, input=specs[0].input, tool_use_id=specs[0].tool_use_id, text=action.text
        )
    return ActionSpec(calls=specs, text=action.text)


def _input(call: ToolCall) -> dict[str, Any] | str:
    value = call.parsed()
    return call.arguments if value is None or dumps(value) != call.arguments else value


class Correction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One reviewed correction."""

    dp_id: str
    dimension: Dimension
    before: ActionSpec
    after: ActionSpec
    evidence: int
    """Index of the message in the session's own trace that shows it; at or before the decision's own message."""
    by: str
    """Who reviewed it."""
    why: str

    @property
    def session_id(self) -> str:
        """The session whose decision this is."""
        return self.dp_id.rpartition(":")[0]


def same_action(left: Action, right: Action) -> bool:
    """Whether two actions do the same: equal calls in order (ids aside), or, for final replies, equal text."""
    if left.kind != right.kind:
        return False
    if left.kind == "final_reply":
        return left.text == right.text
    return [_call_key(call) for call in left.calls] == [_call_key(call) for call in right.calls]


def _call_key(call: ToolCall) -> tuple[str, str]:
    value = call.parsed()
    return call.name, call.arguments if value is None else canonical(value)


def read_corrections(path: Path, *, skip: SkipBad | None = None) -> list[Correction]:
    """Read a corrections file. Raises ``DataError`` with file, line and field."""
    skip = skip or SkipBad()
    found: list[Correction] = []
    for line, row in read_jsonl(path, skip=skip):
        try:
            found.append(correction_from(row))
        except DataError as error:
            skip.take(error.at(str(path), line))
    return found


def correction_from(row: Mapping[str, Any]) -> Correction:
    """One row as a correction. Raises ``DataError`` naming the field and the decision."""
    try:
        return msgspec.convert(dict(row), Correction)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `$.")
        field = where.rstrip("`") or None
        if field == "dimension":
            reason = f"found {row.get('dimension')!r}; expected one of {', '.join(Dimension)}"
        raise DataError(f"{reason} (dp_id {row.get('dp_id')!r})", field=field) from None


def apply_corrections(
    decisions: Iterable[DecisionPoint], corrections: Iterable[Correction]
) -> tuple[DecisionPoint, ...]:
    """The decisions with the corrections applied one after the other; nothing else changes.

    ``after`` becomes the verified gold action; an observed action that differs from it becomes a known mistake.
    Raises ``DataError`` naming field and dp_id when a correction does not fit what stands there.
    """
    by_id = {decision.dp_id: decision for decision in decisions}
    for number, correction in enumerate(corrections, start=1):
        decision = by_id.get(correction.dp_id)
        if decision is None:
            raise DataError(
                f"correction {number}: no decision {correction.dp_id!r} in the draft; check the id", field="dp_id"
            )
        by_id[decision.dp_id] = _corrected(decision, correction)
    return tuple(by_id.values())


def _corrected(decision: DecisionPoint, correction: Correction) -> DecisionPoint:
    standing = decision.gold or decision.observed
    ids = tuple(call.id for call in decision.observed.calls)
    before, after = correction.before.action(ids), correction.after.action(ids)
    where = f"(dp_id {decision.dp_id!r})"
    if not same_action(before, standing):
        raise DataError(
            f"found {brief(before)}; what stands there is {brief(standing)}; review the decision again {where}",
            field="before",
        )
    if not 0 <= correction.evidence <= decision.context_end:
        raise DataError(
            f"message {correction.evidence} is not at or before the decision's own message "
            f"{decision.context_end}; point into the session's own trace {where}",
            field="evidence",
        )
    for field in ("by", "why"):
        if not getattr(correction, field).strip():
            raise DataError(f"empty; say {'who reviewed it' if field == 'by' else 'the reason'} {where}", field=field)
    confirmed = correction.dimension == Dimension.CONFIRMED
    if same_action(after, standing) != confirmed:
        fix = "use 'confirmed' exactly when nothing changes"
        raise DataError(f"found {correction.dimension.value!r}; {fix} {where}", field="dimension")
    if confirmed:
        return msgspec.structs.replace(decision, gold=standing, verified=True)
    _check_dimension(correction.dimension, before, after, where)
    if any(same_action(after, bad) for bad in decision.known_bad):
        raise DataError(f"{brief(after)} is recorded as a known mistake {where}", field="after")
    known_bad = decision.known_bad
    if not same_action(decision.observed, after) and not any(
        same_action(decision.observed, bad) for bad in known_bad
    ):
        known_bad = (*known_bad, decision.observed)
    return msgspec.structs.replace(decision, gold=after, verified=True, known_bad=known_bad)


def _check_dimension(dimension: Dimension, before: Action, after: Action, where: str) -> None:
    """Refuse a dimension that contradicts the change; only those three that say something about its form."""
    kinds = (before.kind, after.kind)
    tools = [[call.name for call in action.calls] for action in (before, after)]
    fits = {
        Dimension.PREMATURE_STOP: kinds == ("final_reply", "tool_call"),
        Dimension.FAILED_STOP: kinds == ("tool_call", "final_reply"),
        Dimension.ARGUMENTS: kinds == ("tool_call", "tool_call") and tools[0] == tools[1],
    }
    if not fits.get(dimension, True):
        raise DataError(
            f"{dimension.value!r} does not describe {brief(before, 60)} → {brief(after, 60)} {where}",
            field="dimension",
        )


def brief(action: Action, width: int = 120) -> str:
    """An action in one short line, for messages and tables."""
    if action.kind == "final_reply":
        text = f"reply {action.text!r}"
    else:
        text = " + ".join(f"{call.name}({call.arguments})" for call in action.calls)
    return text if len(text) <= width else text[: width - 1] + "…"
