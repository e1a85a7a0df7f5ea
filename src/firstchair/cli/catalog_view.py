"""How catalogs, call problems and lint findings are printed."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from firstchair.catalog.catalog import Catalog, CatalogTool
from firstchair.catalog.policy import Finding, RoutingRow
from firstchair.catalog.validate import CallProblem, ProblemCount
from firstchair.cli.tables import one_line, print_json, table
from firstchair.core.jsontext import dumps


def print_catalog(catalog: Catalog, *, as_json: bool) -> None:
    """Tools, skills and policy."""
    if as_json:
        print_json(catalog.model_dump(mode="json"))
        return
    console = Console()
    state = "verified" if catalog.verified else "not verified"
    console.print(Text(f"{catalog.name}: {len(catalog.tools)} tools, {len(catalog.skills)} skills, {state}"))
    tools = table("tool", "kind", "fields (* required)", "matchers")
    for tool in catalog.tools:
        kind = tool.kind + (", read only" if tool.read_only else "")
        matchers = ", ".join(f"{path}: {spec}" for path, spec in tool.matchers.items())
        tools.add_row(Text(tool.name), kind, Text(_fields(tool)), Text(matchers))
    console.print(tools)
    if catalog.skills:
        skills = table("skill", "scripts", "what it is for")
        for skill in catalog.skills:
            scripts = ", ".join(script.name for script in skill.scripts)
            skills.add_row(Text(skill.name), Text(scripts), Text(skill.description))
        console.print(skills)
    if catalog.policy is not None:
        console.print(Text(f"routing policy, {len(catalog.policy.rows)} rows\n"))
        for row in catalog.policy.rows:
            _print_row(console, row)


def _print_row(console: Console, row: RoutingRow) -> None:
    """A row of the policy: too much text for columns."""
    route = f"{row.route} {row.skill}" if row.skill else row.route
    console.print(Text.assemble((row.id, "bold"), f" → {route}: {row.intent}"))
    for breaker in row.tie_breakers:
        console.print(Padding(Text(breaker), (0, 0, 0, 4)))


def _fields(tool: CatalogTool) -> str:
    """The fields of a schema; one that is no schema (`catalog lint` says why) is shown as it is."""
    required, properties = tool.parameters.get("required", []), tool.parameters.get("properties", {})
    if not isinstance(required, list) or not isinstance(properties, dict):
        return dumps(tool.parameters)
    return ", ".join(
        f"{name}{'*' if name in required else ''}: {_type(schema)}" for name, schema in properties.items()
    )


def _type(schema: object) -> str:
    if not isinstance(schema, dict):
        return "any"
    kind = schema.get("enum", schema.get("type", "any"))
    return "|".join(map(str, kind)) if isinstance(kind, list) else str(kind)


def print_problems(problems: Sequence[CallProblem], count: ProblemCount, *, as_json: bool) -> None:
    """Problems and their totals."""
    if as_json:
        print_json({**msgspec.to_builtins(count), "list": msgspec.to_builtins(list(problems))})
        return
    console = Console()
    for problem in problems:
        head = f"{problem.session_id} message {problem.message_index} {problem.tool} {problem.path}"
        console.print(Text(one_line(head), style="bold"))
        console.print(Padding(Text(one_line(f"{problem.kind.replace('_', ' ')}: {problem.message}")), (0, 0, 0, 4)))
    if len(problems) < count.problems:
        console.print(Text(f"{len(problems):,} of {count.problems:,} shown; --show N shows more"))
    kinds = ", ".join(f"{kind.replace('_', ' ')} {number:,}" for kind, number in sorted(count.by_kind.items()))
    console.print(
        Text(
            f"{count.calls:,} calls in {count.sessions:,} sessions: "
            + (f"{count.problems:,} problems in {count.bad_sessions:,} sessions ({kinds})" if kinds else "all fit")
        )
    )


def print_findings(findings: Sequence[Finding], *, as_json: bool) -> None:
    """Lint findings."""
    if as_json:
        print_json([finding._asdict() for finding in findings])
        return
    console = Console()
    if not findings:
        console.print("nothing found")
        return
    made = table("", "place", "finding")
    for finding in findings:
        style = "red" if finding.severity == "error" else "yellow"
        made.add_row(Text(finding.severity, style=style), Text(finding.place), Text(finding.message))
    console.print(made)
