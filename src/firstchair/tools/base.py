"""What one real tool is: a schema, an async function of checked arguments, limits of its own, and how it fails.

model's call ──→ ToolBox: name, JSON, schema, time ──→ RealTool.run ──→ text
                                                          ├─ ToolFailed     for the model: a message with is_error
                                                          └─ UpstreamError  the machinery broke: raised to the caller
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from firstchair.chat.messages import Tool


class Failure(StrEnum):
    """Why a call failed, in one word: the text of such a result begins with it, and callers count by it."""

    INVALID_ARGUMENTS = "invalid_arguments"
    """Not JSON, against the schema, or a value that the tool cannot work with."""
    UNKNOWN_TOOL = "unknown_tool"
    NOT_FOUND = "not_found"
    REFUSED = "refused"
    """Understood and not allowed: outside of the work dir, a private address, a write to a read-only database."""
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"
    FAILED = "failed"
    """What was asked for did not work out: a patch that does not fit, a query with an error, a site that is down."""


class ToolFailed(Exception):
    """A call that failed by what was asked, not by our machinery; the text is for the model and says what to do."""

    def __init__(self, kind: Failure, message: str):
        self.kind = kind
        super().__init__(f"{kind}: {message}")


@runtime_checkable
class RealTool(Protocol):
    """One tool that does something."""

    @property
    def tool(self) -> Tool:
        """Name, description and JSON Schema, as a model is offered them."""
        ...

    @property
    def timeout_s(self) -> float | None:
        """Longest run; ``None`` when the tool keeps its own time."""
        ...

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """The result as text. ``arguments`` fit the schema.

        Raises ``ToolFailed`` for the model to read, ``UpstreamError`` or ``RunFailed`` when the machinery broke.
        """
        ...

    async def close(self) -> None:
        """Release what is held."""
        ...


def object_schema(properties: Mapping[str, Mapping[str, Any]], *, required: tuple[str, ...] = ()) -> dict[str, Any]:
    """A JSON Schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": {name: dict(schema) for name, schema in properties.items()},
        "required": list(required),
        "additionalProperties": False,
    }
