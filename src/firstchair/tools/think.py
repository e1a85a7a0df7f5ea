"""``think``: room to reason in the middle of tool calls. It does nothing, and says so."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.tools.base import object_schema


class ThinkSpec(Strict):
    """Has nothing to set."""

    type: Literal["think"] = "think"


class Think:
    """The tool."""

    timeout_s: float | None = None

    def __init__(self) -> None:
        self.tool = Tool(
            name="think",
            description="Write down a thought: weigh findings, plan the next steps. It looks nothing up and changes "
            "nothing.",
            parameters=object_schema({"thought": {"type": "string"}}, required=("thought",)),
        )

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """A word, so that no result is empty."""
        return "Noted."

    async def close(self) -> None:
        """Nothing is held."""
