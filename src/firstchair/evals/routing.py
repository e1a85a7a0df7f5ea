"""Where decisions went: the per-tool routing table and the confusion of routes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from firstchair.catalog.verdict import Verdict
from firstchair.evals.run_record import DecisionRow
from firstchair.evals.stats import Rate, rate

REPLY, MALFORMED = "final_reply", "malformed"

SKILL_TOOLS = frozenset({"skill", "skill_script"})
"""Tools that work through a skill; where gold loads one, a direct call of another tool is the classic confusion."""


class ToolRow(msgspec.Struct, frozen=True):
    """How one route fares. ``final_reply`` is a route too."""

    tool: str
    kind: str
    """``universal``, ``convention`` or empty."""
    support: int
    """Decisions where gold takes this route."""
    made: int
    """Decisions where the candidate takes it."""
    recall: Rate
    """Of the decisions where gold takes it, the candidate takes it too."""
    precision: Rate
    """Of the decisions where the candidate takes it, gold takes it too."""
    strict: Rate
    """Passes of the decisions where gold takes it."""
    lenient: Rate


def gold_routes(row: DecisionRow) -> frozenset[str]:
    """The routes gold takes: its tools, or ``final_reply``."""
    return frozenset(row.gold_tools) or frozenset({REPLY})


def made_routes(row: DecisionRow) -> frozenset[str]:
    """The routes the candidate takes; none when it cannot be read."""
    if row.made_kind == "final_reply":
        return frozenset({REPLY})
    return frozenset(row.made_tools) if row.made_kind == "tool_call" else frozenset()


def routing_table(
    rows: Sequence[DecisionRow], kinds: Mapping[str, str] | None = None, *, seed: int = 0
) -> list[ToolRow]:
    """One row per route of gold or candidate, by support. A decision with parallel calls is in several."""
    kept = [row for row in rows if row.obtained]
    sessions = [row.session_id for row in kept]
    wanted, taken = [gold_routes(row) for row in kept], [made_routes(row) for row in kept]
    levels = [[row.scored.strict for row in kept], [row.scored.lenient for row in kept]]
    table: list[ToolRow] = []
    for tool in {route for routes in (*wanted, *taken) for route in routes}:
        in_gold = [float(tool in routes) for routes in wanted]
        in_made = [float(tool in routes) for routes in taken]
        both = [gold * made for gold, made in zip(in_gold, in_made, strict=True)]
        passed = [
            [
                float(tool in routes and verdict is Verdict.PASS)
                for verdict, routes in zip(verdicts, wanted, strict=True)
            ]
            for verdicts in levels
        ]
        table.append(
            ToolRow(
                tool=tool,
                kind=(kinds or {}).get(tool, ""),
                support=round(sum(in_gold)),
                made=round(sum(in_made)),
                recall=rate(both, in_gold, sessions, seed=seed),
                precision=rate(both, in_made, sessions, seed=seed),
                strict=rate(passed[0], in_gold, sessions, seed=seed),
                lenient=rate(passed[1], in_gold, sessions, seed=seed),
            )
        )
    return sorted(table, key=lambda row: (-row.support, row.tool))


def gold_label(row: DecisionRow) -> str:
    """One name for gold's route; parallel calls joined by `` + ``."""
    return " + ".join(sorted(row.gold_tools)) or REPLY


def made_label(row: DecisionRow) -> str:
    """One name for the candidate's route."""
    if row.made_kind == "tool_call":
        return " + ".join(sorted(row.made_tools))
    return REPLY if row.made_kind == "final_reply" else MALFORMED


def skill_became_tool(row: DecisionRow) -> bool:
    """Whether gold goes through a skill and the candidate calls another tool directly."""
    return (
        bool(gold_routes(row) & SKILL_TOOLS) and row.made_kind == "tool_call" and not made_routes(row) & SKILL_TOOLS
    )


class Confusion(msgspec.Struct, frozen=True):
    """Counts of gold route → candidate route; ``cells[i][j]`` is ``gold[i]`` → ``made[j]``."""

    gold: tuple[str, ...]
    made: tuple[str, ...]
    cells: tuple[tuple[int, ...], ...]
    skill_cases: int
    """Decisions where gold loads a skill or runs its script."""
    skill_to_tool: int
    """Of those, how many became a direct call of another tool."""


def confusion(rows: Sequence[DecisionRow]) -> Confusion:
    """The matrix over routes, most frequent gold routes first; columns gold never takes come last."""
    kept = [row for row in rows if row.obtained]
    pairs = Counter((gold_label(row), made_label(row)) for row in kept)
    in_gold, in_made = Counter(gold_label(row) for row in kept), Counter(made_label(row) for row in kept)
    gold = sorted(in_gold, key=lambda name: (-in_gold[name], name))
    others = sorted((name for name in in_made if name not in in_gold), key=lambda name: (-in_made[name], name))
    made = [name for name in gold if in_made[name]] + others
    skill = [row for row in kept if gold_routes(row) & SKILL_TOOLS]
    return Confusion(
        gold=tuple(gold),
        made=tuple(made),
        cells=tuple(tuple(pairs[name, other] for other in made) for name in gold),
        skill_cases=len(skill),
        skill_to_tool=sum(map(skill_became_tool, skill)),
    )
