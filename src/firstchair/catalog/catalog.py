"""The catalog: what a session can use (tools, skills) and how its arguments are compared, as one YAML file.

name: airline
verified: true            # a person has read it; golden sets may be frozen against it
tools:
  - name: search_flights
    description: Search direct flights.
    parameters: {type: object, properties: {origin: {type: string}}, required: [origin]}
    matchers: {origin: casefold}
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import Field, field_validator, model_validator

from firstchair.catalog.policy import RoutingPolicy
from firstchair.chat.messages import Tool
from firstchair.core.config import Strict, load_recipe
from firstchair.core.errors import ConfigError

ToolKind = Literal["universal", "convention"]
"""``universal``: any model that knows tools can use it. ``convention``: only this platform has it or means it so."""


class CatalogTool(Strict):
    """One tool: its schema, and what scoring and replay need to know about it."""

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] = Field(default_factory=dict)
    """JSON Schema of the arguments."""
    matchers: dict[str, str] = Field(default_factory=dict)
    """JSON path below the arguments (``query``, ``items[].name``) → matcher (``exact``, ``ws``, ``fuzzy>=0.8``)."""
    kind: ToolKind = "universal"
    read_only: bool = False
    """Calling it changes nothing, so an extra call costs only time."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Provider fields beside the schema, verbatim."""

    @field_validator("parameters", "extra")
    @classmethod
    def _is_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        problem = not_json(value)
        if problem:
            raise ValueError(problem)
        return value

    def tool(self) -> Tool:
        """The tool as a model is offered it."""
        return Tool(name=self.name, description=self.description, parameters=self.parameters, extra=self.extra)


class SkillScript(Strict):
    """A script that a skill brings along."""

    name: str = Field(min_length=1)
    description: str = ""


class Skill(Strict):
    """A named bundle of instructions, loaded by a tool call."""

    name: str = Field(min_length=1)
    description: str = ""
    scripts: tuple[SkillScript, ...] = ()
    instructions: str = ""
    """What loading it shows the model."""


class Catalog(Strict):
    """Everything that a session can use."""

    name: str = Field(min_length=1)
    verified: bool = False
    """A person has read it. Golden sets are frozen only against a verified catalog."""
    tools: tuple[CatalogTool, ...] = ()
    skills: tuple[Skill, ...] = ()
    policy: RoutingPolicy | None = None
    extra_read_only: int = Field(default=0, ge=0)
    """How many calls of read-only tools beside the wanted ones an action may make and still pass leniently."""
    tool_names: dict[str, str] = Field(default_factory=dict)
    """Name that a model may call a tool by on the wire → the tool's name here."""

    @model_validator(mode="after")
    def _names_are_unique(self) -> Catalog:
        for kind, names in (("tool", [t.name for t in self.tools]), ("skill", [s.name for s in self.skills])):
            twice = [name for name, count in Counter(names).items() if count > 1]
            if twice:
                raise ValueError(f"{kind} {twice[0]!r} stands twice; keep one")
        return self

    @model_validator(mode="after")
    def _other_names_lead_to_tools(self) -> Catalog:
        known = {tool.name for tool in self.tools}
        for other, name in self.tool_names.items():
            if name not in known:
                raise ValueError(f"tool_names.{other}: {name!r} is no tool here; expected one of {sorted(known)}")
            if other in known:
                raise ValueError(f"tool_names.{other}: is a tool itself; take it out, two tools are never one")
        return self

    def tool_schemas(self) -> tuple[Tool, ...]:
        """The tools as a model is offered them, in order."""
        return tuple(tool.tool() for tool in self.tools)

    def matchers(self) -> dict[str, dict[str, str]]:
        """Tool → {argument path: matcher}, for tools that have any."""
        return {tool.name: dict(tool.matchers) for tool in self.tools if tool.matchers}

    def tool(self, name: str) -> CatalogTool | None:
        """The tool of this name, if there is one."""
        return next((tool for tool in self.tools if tool.name == name), None)

    @classmethod
    def from_tools(cls, name: str, tools: Iterable[Tool]) -> Catalog:
        """An unverified catalog of ``tools``, without matchers."""
        return cls(
            name=name,
            tools=tuple(
                CatalogTool(name=t.name, description=t.description, parameters=t.parameters, extra=t.extra)
                for t in tools
            ),
        )


def not_json(value: Any, path: str = "") -> str | None:
    """Why ``value`` is not JSON, or ``None``. YAML reads an unquoted 2024-05-20 as a date and ``on:`` as true."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                return f"{path or 'here'}: key {key!r} is {type(key).__name__}; quote it"
            problem = not_json(item, f"{path}.{key}" if path else key)
            if problem:
                return problem
        return None
    if isinstance(value, list):
        return next(filter(None, (not_json(item, f"{path}[{i}]") for i, item in enumerate(value))), None)
    if value is None or isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value)):
        return None
    return f"{path}: {value!r} is not JSON; quote it"


def load_catalog(path: Path) -> Catalog:
    """Read a catalog from YAML. Raises ``ConfigError`` naming the file and the field."""
    if not path.is_file():
        raise ConfigError(f"{path}: no such catalog; check the path, or write one with `firstchair catalog infer`")
    return load_recipe(Catalog, path)


def catalog_yaml(catalog: Catalog) -> str:
    """``catalog`` as YAML that ``load_catalog`` reads back equal; fields at their default are left out."""
    data = catalog.model_dump(mode="json", exclude_defaults=True)
    # `verified` is the field that a person is meant to edit, so it is always there to be seen.
    head = {"name": catalog.name, "verified": catalog.verified}
    return yaml.dump(
        {**head, **data}, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False
    )


class _Plain(yaml.SafeDumper):
    """YAML without anchors: a schema that occurs twice is written twice, as people would."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


# Line ends that only Unicode knows are lost in plain and single-quoted YAML; double quotes escape them.
_UNICODE_BREAKS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = '"' if _UNICODE_BREAKS.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Plain.add_representer(str, _text_node)
