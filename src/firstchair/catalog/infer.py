"""A first catalog from what recordings show; a person completes and verifies it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from firstchair.catalog.catalog import Catalog
from firstchair.chat.messages import Tool


class Inferred(NamedTuple):
    """A catalog and what the person who completes it should know."""

    catalog: Catalog
    notes: tuple[str, ...]


def infer_catalog(name: str, lists: Mapping[str, tuple[Tool, ...]]) -> Inferred:
    """A catalog of every tool in ``lists`` (catalog id → tools, oldest first), by first appearance.

    A tool that occurs with several schemas gets the newest, and a note.
    """
    newest: dict[str, Tool] = {}
    variants: dict[str, set[bytes]] = {}
    for tools in lists.values():
        for tool in tools:
            newest[tool.name] = tool
            variants.setdefault(tool.name, set()).add(msgspec.json.encode(tool))
    notes = tuple(
        f"{tool} was offered with {len(seen)} different schemas; the newest is written"
        for tool, seen in variants.items()
        if len(seen) > 1
    )
    return Inferred(Catalog.from_tools(name, newest.values()), notes)
