"""Real tools joined to one ``Toolset``: every call is checked, timed and its result cut to what a model can read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from firstchair.chat.messages import Message, Tool, ToolCall, tool_result
from firstchair.chat.schema_check import check_arguments
from firstchair.core.errors import ConfigError
from firstchair.tools.base import Failure, RealTool, ToolFailed

OBSERVATION_CHARS = 8_000
"""What a model gets to see of one result."""


class ToolBox:
    """A ``Toolset`` of ``tools``, in their order. Raises ``ConfigError`` when two have one name.

    A name that is not there, arguments that are no JSON object or break the schema, a tool that says it failed and
    one that takes longer than its ``timeout_s`` are messages with ``is_error``; their text begins with a ``Failure``
    and a colon. What a tool raises beside that is raised.
    """

    def __init__(self, tools: Sequence[RealTool], *, observation_chars: int = OBSERVATION_CHARS):
        # One object for each tool's schema: checks of arguments are cached by its identity.
        self._tools: dict[str, tuple[Tool, RealTool]] = {}
        for one in tools:
            tool = one.tool
            if tool.name in self._tools:
                raise ConfigError(f"tool {tool.name!r}: stands twice; keep one")
            self._tools[tool.name] = (tool, one)
        self._observation_chars = observation_chars

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What is offered."""
        return tuple(tool for tool, _ in self._tools.values())

    async def call(self, call: ToolCall) -> Message:
        """The tool message that answers ``call``."""
        try:
            text, is_error = await self._run(call), False
        except ToolFailed as failed:
            text, is_error = str(failed), True
        return tool_result(call, shown(text, self._observation_chars), is_error=is_error)

    async def close(self) -> None:
        """Close all tools."""
        for _, one in self._tools.values():
            await one.close()

    async def __aenter__(self) -> ToolBox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _run(self, call: ToolCall) -> str:
        if call.name not in self._tools:
            raise ToolFailed(Failure.UNKNOWN_TOOL, _no_such_tool(call.name, list(self._tools)))
        tool, one = self._tools[call.name]
        arguments = _checked(call, tool)
        try:
            async with asyncio.timeout(one.timeout_s) as limit:
                return await one.run(arguments)
        except TimeoutError:
            if not limit.expired():
                raise
            raise ToolFailed(
                Failure.TIMEOUT, f"{call.name} was stopped after {one.timeout_s:g} s; ask for less at once"
            ) from None


def _checked(call: ToolCall, tool: Tool) -> dict[str, Any]:
    arguments = call.parsed()
    if arguments is None:
        raise ToolFailed(
            Failure.INVALID_ARGUMENTS, f"the arguments are not a JSON object; {tool.name} takes {signature(tool)}"
        )
    fault = check_arguments(tool.parameters, arguments)
    if fault is not None:
        raise ToolFailed(
            Failure.INVALID_ARGUMENTS, f"{fault.path}: {fault.message}; {tool.name} takes {signature(tool)}"
        )
    return arguments


def signature(tool: Tool) -> str:
    """The arguments of a tool in one line: ``{path: string, start_line?: integer}``."""
    required = tool.parameters.get("required", [])
    fields = [
        f"{name}{'' if name in required else '?'}: {schema.get('type', 'any')}"
        for name, schema in tool.parameters.get("properties", {}).items()
    ]
    return "{" + ", ".join(fields) + "}"


def _no_such_tool(name: str, known: Sequence[str]) -> str:
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known) or 'none'}"
    return f"there is no tool {name!r}; {hint}"


def shown(text: str, limit: int) -> str:
    """The first ``limit`` characters of ``text``, with a note where something is left out; always valid Unicode."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    if len(text) <= limit:
        return text
    note = f"\n[cut: the result has {len(text):,} characters]"
    return text[: max(0, limit - len(note))] + note
