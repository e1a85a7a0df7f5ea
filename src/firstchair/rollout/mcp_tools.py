"""Tools of MCP servers: listed as ours, called as ours."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from firstchair.chat.messages import ImagePart, Message, Part, RawPart, TextPart, Tool, ToolCall, tool_result
from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.core.extras import require
from firstchair.core.jsontext import dumps
from firstchair.rollout.mcp_servers import McpConnection, McpServer


class McpToolset:
    """The tools of one or more servers, as an async context manager.

    A call that the model got wrong (no such tool, arguments that are no object or against the schema) and a tool that
    says it failed are results with ``is_error``, for the model to read. A server that dies, hangs longer than
    ``timeout_s`` or breaks the protocol raises ``UpstreamError``: the call is not repeated, since it may have had its
    effect. The next call connects anew, which starts a stdio server afresh, and must find the same tools.

    Raises ``ConfigError`` when the SDK (``firstchair[mcp]``) is missing. Opening raises ``UpstreamError`` when a
    server cannot be reached, and ``ConfigError`` when two servers offer a tool of one name or a variable is not set.
    """

    def __init__(self, servers: Mapping[str, McpServer], *, timeout_s: float = 30.0):
        require("mcp")
        self._servers, self._timeout_s = dict(servers), timeout_s
        self._connections: dict[str, McpConnection] = {}
        self._offered: dict[str, tuple[Tool, ...]] = {}
        self._owner: dict[str, str] = {}
        self._connecting = {name: asyncio.Lock() for name in servers}

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What is offered, server by server in the order given; empty before it is opened."""
        return tuple(tool for offered in self._offered.values() for tool in offered)

    async def __aenter__(self) -> McpToolset:
        try:
            for name in self._servers:
                await self._connected(name)
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all connections."""
        connections, self._connections = self._connections, {}
        await asyncio.gather(*(connection.close() for connection in connections.values()))

    async def call(self, call: ToolCall) -> Message:
        """The tool message that answers ``call``."""
        server, arguments = self._owner.get(call.name), call.parsed()
        if server is None:
            return tool_result(call, f"There is no tool {call.name!r}.", is_error=True)
        if arguments is None:
            return tool_result(call, "The arguments are not a JSON object.", is_error=True)
        connection = await self._connected(server)
        from mcp import MCPError

        try:
            result = await connection.call(call.name, arguments)
        except MCPError as error:
            return tool_result(call, str(error), is_error=True)
        parts = tuple(map(_part, result.content))
        if not parts and result.structured_content is not None:
            parts = (TextPart(text=dumps(result.structured_content)),)
        return Message(
            role="tool", content=parts, tool_call_id=call.id, name=call.name, is_error=bool(result.is_error)
        )

    async def _connected(self, name: str) -> McpConnection:
        """The live connection of a server, opened when there is none."""
        async with self._connecting[name]:
            connection = self._connections.get(name)
            if connection is not None and not connection.lost:
                return connection
            if connection is not None:
                await connection.close()
            connection = McpConnection(name, self._servers[name], timeout_s=self._timeout_s)
            await connection.open()
            self._connections[name] = connection
            self._offer(name, tuple(map(_tool, await connection.tools())))
            return connection

    def _offer(self, server: str, tools: tuple[Tool, ...]) -> None:
        known = self._offered.get(server)
        if known is not None and known != tools:
            raise UpstreamError(f"MCP server {server!r}: offers other tools than before it was lost; open it again")
        for tool in tools:
            owner = self._owner.setdefault(tool.name, server)
            if owner != server:
                raise ConfigError(
                    f"tool {tool.name!r}: offered by the MCP servers {owner!r} and {server!r}; leave one of them out"
                )
        self._offered[server] = tools


def _tool(tool: Any) -> Tool:
    return Tool(name=tool.name, description=tool.description, parameters=tool.input_schema)


def _part(block: Any) -> Part:
    if block.type == "text":
        return TextPart(text=block.text)
    if block.type == "image":
        return ImagePart(url=f"data:{block.mime_type};base64,{block.data}", media_type=block.mime_type)
    return RawPart(provider="other", data=msgspec.to_builtins(block.model_dump(mode="json", by_alias=True)))
