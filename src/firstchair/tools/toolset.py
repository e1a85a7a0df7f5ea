"""The one interface to tools that run: what is offered, and a call answered by a message."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from firstchair.chat.messages import Message, Tool, ToolCall


@runtime_checkable
class Toolset(Protocol):
    """Tools of one kind or many, real ones. ``McpToolset`` is one too."""

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What is offered."""
        ...

    async def call(self, call: ToolCall) -> Message:
        """The tool message that answers ``call``.

        What the model got wrong and what a tool says failed is a message with ``is_error``, for the model to read.
        ``UpstreamError`` or ``RunFailed`` is raised when the machinery broke: that says nothing about the model.
        """
        ...

    async def close(self) -> None:
        """Release what is held."""
        ...
