"""Review of recorded desk conversations against the policy: what was wrong, what would have been right, and why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from firstchair.chat.actions import Action, action_of
from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import DataError
from firstchair.core.jsontext import canonical
from firstchair.rollout.desk.definitions import desk_tools
from firstchair.rollout.desk.plans import Reply
from firstchair.rollout.desk.routing import Decision
from firstchair.rollout.desk.teacher import action_for, oracle
from firstchair.traces.session import Session

REVIEWER = "desk-teacher"

_DENIAL = re.compile(
    r"\b(not|no|nothing|cannot|can't|couldn't|didn't|unable|failed|sorry|unfortunately|error|clash)\b", re.IGNORECASE
)


@dataclass(frozen=True)
class Finding:
    """One decision that was looked at. ``dimension`` is empty when it was right."""

    index: int
    """Index of the decision in the session."""
    message_index: int
    dimension: str
    observed: Action
    gold: Action
    decision: Decision


def admits_failure(text: str) -> bool:
    """Whether a reply says that something did not work or is not there."""
    return _DENIAL.search(text) is not None


def dimension_of(observed: Action, right: Decision) -> str:
    """Which dimension of the policy ``observed`` violates where ``right`` was due; empty for none."""
    wanted = right.wanted
    if isinstance(wanted, Reply):
        return _against_reply(observed, wanted)
    if not observed.calls:
        if right.row == "deliver":
            return "share-file"
        return "memory" if wanted.tool == "MemoryRewrite" else "premature stop"
    names = [call.name for call in observed.calls]
    if names == [wanted.tool]:
        arguments = observed.calls[0].parsed()
        same = arguments is not None and canonical(arguments) == canonical(dict(wanted.arguments))
        return "" if same else "arguments"
    if "AskUser" in names:
        return "needless ask"
    if "ShareFile" in names or right.row == "deliver":
        return "share-file"
    return "memory" if wanted.tool == "MemoryRewrite" else "misroute"


def _against_reply(observed: Action, wanted: Reply) -> str:
    if observed.calls:
        names = {call.name for call in observed.calls}
        if "AskUser" in names:
            return "needless ask"
        return "share-file" if "ShareFile" in names else "failed stop"
    truthful = all(fact in observed.text for fact in wanted.facts)
    if wanted.denies:
        truthful = truthful and admits_failure(observed.text)
    return "" if truthful else "untruthful final"


def review(messages: Sequence[Message]) -> Iterator[Finding]:
    """Look at every assistant message in turn, each in the context that was really reached."""
    index = 0
    for place, message in enumerate(messages):
        if message.role != "assistant":
            continue
        context = messages[:place]
        right, observed = oracle(context), action_of(message)
        yield Finding(index, place, dimension_of(observed, right), observed, action_for(right, context), right)
        index += 1


def corrections_of(session: Session, *, confirm: bool = False) -> list[dict[str, Any]]:
    """The corrections that a recorded session needs, as rows of a corrections file.

    ``{dp_id, dimension, before, after, evidence, by, why}``. With ``confirm`` the decisions that were right are
    listed too, as ``confirmed``, so that every decision of the session is verified.
    """
    rows = []
    for finding in review(session.messages):
        if not finding.dimension and not confirm:
            continue
        before = _spec(finding.observed)
        rows.append(
            {
                "dp_id": f"{session.session_id}:{finding.index}",
                "dimension": finding.dimension or "confirmed",
                "before": before,
                "after": _spec(finding.gold) if finding.dimension else before,
                "evidence": finding.decision.evidence,
                "by": REVIEWER,
                "why": f"{finding.decision.row}: {finding.decision.reason}",
            }
        )
    return rows


@dataclass
class ReviewCounts:
    """What a review of many sessions saw."""

    sessions: int = 0
    dimensions: Counter[str] = field(default_factory=Counter)
    """Rows by dimension, ``confirmed`` among them."""


def reviewed(
    sessions: Iterable[Session],
    tools: Callable[[str], tuple[Tool, ...]],
    counts: ReviewCounts,
    *,
    confirm: bool = False,
) -> Iterator[dict[str, Any]]:
    """The rows of ``corrections_of`` for many sessions, counted on the way. ``tools`` gives a catalog id's tools.

    Raises ``DataError`` when there is no session, and for one that was not recorded in the desk: its policy says
    nothing about that one.
    """
    known = {tool.name for tool in desk_tools()}
    for session in sessions:
        offered = {tool.name for tool in tools(session.catalog_id)}
        if offered != known:
            odd = ", ".join(sorted(offered ^ known)[:3])
            raise DataError(
                f"session {session.session_id!r} is not the desk's: its tools differ ({odd}); choose with --label"
            )
        counts.sessions += 1
        for row in corrections_of(session, confirm=confirm):
            counts.dimensions[row["dimension"]] += 1
            yield row
    if not counts.sessions:
        raise DataError("found no session to review; expected at least one; check the source, --label and --split")


def _spec(action: Action) -> dict[str, Any]:
    """An action in the short form of corrections files."""
    calls = [
        {"tool": call.name, "input": call.arguments if (value := call.parsed()) is None else value}
        for call in action.calls
    ]
    spec: dict[str, Any] = calls[0] if len(calls) == 1 else {"calls": calls} if calls else {"tool": None}
    if action.text:
        spec["text"] = action.text
    if action.thinking:
        spec["thinking"] = action.thinking
    return spec


def violations_of(messages: Sequence[Message]) -> tuple[str, ...]:
    """``row: dimension`` for every decision that broke the policy, in order."""
    return tuple(f"{found.decision.row}: {found.dimension}" for found in review(messages) if found.dimension)
