"""What must hold before a draft may become a scoreboard."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from firstchair.catalog.call_rules import Matchers
from firstchair.catalog.catalog import Catalog
from firstchair.chat.actions import Action
from firstchair.chat.messages import REFUSED, TRUNCATED, UNFINISHED, Tool
from firstchair.chat.schema_check import check_arguments
from firstchair.data.corrections import brief
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.traces.decisions import DecisionPoint


class Verdicts(Protocol):
    """What a scorer says about one action: a verdict at each level."""

    @property
    def strict(self) -> str: ...

    @property
    def lenient(self) -> str: ...


class Scorer(Protocol):
    """``catalog.verdict.score``; passed in, so that a caller may check by another."""

    def __call__(
        self, decision: DecisionPoint, reply: Action, matchers: Matchers, tools: Sequence[Tool], /
    ) -> Verdicts: ...


def uncovered_tools(golden: GoldenSet, catalog: Catalog) -> Iterator[str]:
    """Tools that sessions were offered and the catalog does not know."""
    known = {tool.name for tool in catalog.tools}
    offered = {tool.name for row in golden.catalogs.values() for tool in row.tools}
    for name in sorted(offered - known):
        yield f"tool {name!r} was on offer but is not in catalog {catalog.name!r}; add and verify it"


def gold_problems(golden: GoldenSet) -> Iterator[str]:
    """Decisions whose gold is missing, calls a tool that was not on offer, or breaks that tool's schema."""
    for decision in golden.decisions:
        if decision.gold is None:
            why = f": {NO_GOLD[decision.ending]}" if decision.ending else ""
            yield f"{decision.dp_id}: no gold{why}; correct or confirm it, or leave the session out (--drop-invalid)"
            continue
        problem = action_problem(decision.gold, golden.tools(decision.session_id))
        if problem:
            yield f"{decision.dp_id}: {problem}; correct it, or leave the session out (build --drop-invalid)"


NO_GOLD: Mapping[str, str] = MappingProxyType(
    {
        TRUNCATED: "the recorded reply was cut by the token limit",
        REFUSED: "the provider's filter stopped the recorded reply",
        UNFINISHED: "the recorded reply ended in an error or a pause",
    }
)
"""Why an action that the model did not end itself is no gold until a reviewer says what would have been right."""


def point_problem(point: DecisionPoint, tools: Sequence[Tool]) -> str | None:
    """Why the recorded action of a decision cannot be gold, or ``None``."""
    return NO_GOLD[point.ending] if point.ending else action_problem(point.observed, tools)


def action_problem(action: Action, tools: Sequence[Tool]) -> str | None:
    """Why an action cannot be gold, or ``None``."""
    by_name = {tool.name: tool for tool in tools}
    for call in action.calls:
        value, tool = call.parsed(), by_name.get(call.name)
        if value is None:
            return f"the arguments of {call.name} are not a JSON object: {call.arguments[:80]!r}"
        if tool is None:
            return f"{call.name!r} was not on offer in the session"
        fault = check_arguments(tool.parameters, value)
        if fault is not None:
            return f"{call.name} {fault.path}: {fault.message}"
    return None


def self_check(golden: GoldenSet, scorer: Scorer) -> Iterator[str]:
    """Decisions whose gold (or an accepted action) does not pass when it is scored as a candidate's reply."""
    matchers = golden.rules
    for decision in golden.decisions:
        if decision.gold is None:
            continue
        tools = golden.tools(decision.session_id)
        found = scorer(decision, decision.gold, matchers, tools)
        if (str(found.strict), str(found.lenient)) != ("pass", "pass"):
            verdicts = f"{found.strict} strict, {found.lenient} lenient"
            yield f"{decision.dp_id}: {brief(decision.gold, 60)} scores {verdicts}"
        for number, option in enumerate(decision.accept):
            if option.action is not None:
                lenient = scorer(decision, option.action, matchers, tools).lenient
                if str(lenient) != "pass":
                    yield f"{decision.dp_id}: accept[{number}] {brief(option.action, 60)} scores {lenient}"
