"""What the desk offers, read from its YAML files: tool schemas, required fields, skills, policy rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

import yaml

from firstchair.catalog.catalog import Catalog
from firstchair.catalog.policy import RoutingPolicy
from firstchair.chat.messages import Tool
from firstchair.core.config import validate

CATALOG_FILE, POLICY_FILE = "catalog.yaml", "policy.yaml"


def read_yaml(name: str) -> dict[str, Any]:
    """One of the desk's data files."""
    loaded = yaml.safe_load(resources.files("firstchair.rollout.desk").joinpath(name).read_text(encoding="utf-8"))
    assert isinstance(loaded, dict)
    return loaded


@cache
def desk_catalog() -> Catalog:
    """The desk's catalog with its routing policy."""
    data = {**read_yaml(CATALOG_FILE), "policy": read_yaml(POLICY_FILE)}
    return validate(Catalog, data, source=f"the desk's {CATALOG_FILE} and {POLICY_FILE}")


@cache
def desk_tools() -> tuple[Tool, ...]:
    """The 21 tools as a model sees them, in catalog order."""
    return desk_catalog().tool_schemas()


@cache
def tool_fields() -> Mapping[str, tuple[str, ...]]:
    """Tool → its fields. On the desk every field is a required string."""
    return MappingProxyType({tool.name: tuple(tool.parameters["properties"]) for tool in desk_tools()})


def desk_policy() -> RoutingPolicy:
    """The routing policy."""
    policy = desk_catalog().policy
    assert policy is not None
    return policy
