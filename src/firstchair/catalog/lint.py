"""Lint of a whole catalog: schemas that are no schemas, matchers that lead nowhere, a policy that contradicts it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from firstchair.catalog.catalog import Catalog, CatalogTool
from firstchair.catalog.fields import ANY_KEY, Key, Segment, parse_field
from firstchair.catalog.matchers import parse_matcher
from firstchair.catalog.policy import Finding, lint_policy
from firstchair.chat.schema_check import schema_problem
from firstchair.core.errors import ConfigError


def lint_catalog(catalog: Catalog) -> tuple[Finding, ...]:
    """Everything questionable about ``catalog``, errors first."""
    findings: list[Finding] = []
    if not catalog.tools:
        findings.append(Finding("error", "tools", "the catalog has no tool"))
    if not catalog.verified:
        findings.append(
            Finding("warning", "verified", "not verified; golden sets are frozen only against a verified catalog")
        )
    if catalog.extra_read_only and not any(tool.read_only for tool in catalog.tools):
        findings.append(Finding("warning", "extra_read_only", "no tool is read_only, so this allows nothing"))
    for index, tool in enumerate(catalog.tools):
        findings.extend(_lint_tool(tool, f"tools[{index}]"))
    if catalog.policy is not None:
        tools = [tool.name for tool in catalog.tools]
        skills = [skill.name for skill in catalog.skills]
        findings.extend(lint_policy(catalog.policy, tools=tools, skills=skills))
    return tuple(sorted(findings, key=lambda finding: finding.severity))


def _lint_tool(tool: CatalogTool, place: str) -> Iterator[Finding]:
    broken = schema_problem(tool.parameters)
    if broken is not None:
        yield Finding("error", f"{place}.parameters", f"{tool.name!r}: not a JSON Schema: {broken}")
        return
    if not tool.description:
        yield Finding("warning", f"{place}.description", f"{tool.name!r} has no description")
    properties = tool.parameters.get("properties", {})
    for name in tool.parameters.get("required", []):
        if name not in properties:
            yield Finding("error", f"{place}.parameters.required", f"{tool.name!r}: {name!r} is not among properties")
    for path, spec in tool.matchers.items():
        try:
            segments = parse_field(path)
            parse_matcher(spec)
        except ConfigError as error:
            yield Finding("error", f"{place}.matchers", f"{tool.name!r}: {path}: {error}")
            continue
        if not field_exists(tool.parameters, segments):
            yield Finding("error", f"{place}.matchers", f"{tool.name!r}: {path!r} is no field of its schema")


def field_exists(schema: Mapping[str, Any], segments: tuple[Segment, ...]) -> bool:
    """Whether a field path can occur under ``schema``. Open objects, unions and references allow anything."""
    node: Any = schema
    for segment in segments:
        if not isinstance(node, Mapping) or any(key in node for key in ("anyOf", "oneOf", "allOf", "$ref")):
            return True
        if segment == ANY_KEY:
            return True
        if not isinstance(segment, Key):
            node = node.get("items", True)
        elif segment.name in node.get("properties", {}):
            node = node["properties"][segment.name]
        elif isinstance(node.get("additionalProperties"), Mapping):
            node = node["additionalProperties"]
        else:
            return "properties" not in node or node.get("additionalProperties") is True
    return True
