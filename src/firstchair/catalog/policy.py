"""The routing policy: a table intent → route with tie-breakers, as data (YAML), and its lint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

from pydantic import Field

from firstchair.core.config import Strict

REPLY = "reply"
"""The route that answers without a tool."""


class RoutingRow(Strict):
    """One line of the table."""

    id: str = Field(min_length=1)
    intent: str = Field(min_length=1)
    """What the user wants, in words."""
    route: str = Field(min_length=1)
    """A tool's name, or ``reply``."""
    skill: str | None = None
    """The skill to load, when ``route`` goes through one."""
    tie_breakers: tuple[str, ...] = ()
    """What decides against the neighbouring rows."""
    examples: tuple[str, ...] = ()
    """User messages that this row is for."""


class RoutingPolicy(Strict):
    """The whole table."""

    rows: tuple[RoutingRow, ...] = ()

    def row(self, row_id: str) -> RoutingRow:
        """The row with this id. Raises ``KeyError``."""
        for row in self.rows:
            if row.id == row_id:
                return row
        raise KeyError(row_id)


class Finding(NamedTuple):
    """One thing that lint found."""

    severity: str
    """``error`` (the policy contradicts itself or the catalog) or ``warning``."""
    place: str
    """Field path, ``policy.rows[3].route``."""
    message: str


def lint_policy(policy: RoutingPolicy, *, tools: Collection[str], skills: Collection[str]) -> tuple[Finding, ...]:
    """Contradictions of ``policy`` with itself and with the catalog's ``tools`` and ``skills``.

    Errors: an id twice, a route that is no tool, a skill that is not there, one example under two routes.
    Warnings: a tool or skill that no row leads to, a row without an example.
    """
    findings: list[Finding] = []
    ids = Counter(row.id for row in policy.rows)
    for index, row in enumerate(policy.rows):
        place = f"policy.rows[{index}]"
        if ids[row.id] > 1:
            findings.append(Finding("error", f"{place}.id", f"{row.id!r} stands {ids[row.id]} times; make it unique"))
        if row.route != REPLY and row.route not in tools:
            findings.append(Finding("error", f"{place}.route", f"{row.route!r} is no tool of the catalog"))
        if row.skill is not None and row.skill not in skills:
            findings.append(Finding("error", f"{place}.skill", f"{row.skill!r} is no skill of the catalog"))
        if not row.examples:
            findings.append(Finding("warning", f"{place}.examples", f"{row.id!r} has no example"))
    findings.extend(_shared_examples(policy))
    routes = {row.route for row in policy.rows}
    used_skills = {row.skill for row in policy.rows}
    findings.extend(
        Finding("warning", "policy.rows", f"no row leads to tool {tool!r}") for tool in tools if tool not in routes
    )
    findings.extend(
        Finding("warning", "policy.rows", f"no row loads skill {skill!r}")
        for skill in skills
        if skill not in used_skills
    )
    return tuple(findings)


def _shared_examples(policy: RoutingPolicy) -> list[Finding]:
    findings: list[Finding] = []
    first: dict[str, tuple[str, tuple[str, str | None]]] = {}
    for index, row in enumerate(policy.rows):
        for position, example in enumerate(row.examples):
            key = " ".join(example.casefold().split())
            where = f"policy.rows[{index}].examples[{position}]"
            place, route = first.setdefault(key, (where, (row.route, row.skill)))
            if place != where and route != (row.route, row.skill):
                findings.append(Finding("error", where, f"{example[:60]!r} stands at {place} under another route"))
    return findings
