"""MCP servers as they are configured, and one live connection to each, through the official SDK.

The SDK wants a connection to be opened and closed by one task; it lives here, and whoever calls may be another.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError, UpstreamError


class StdioServer(Strict):
    """A server that is started as a process and spoken to over its standard input and output."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = Field(default_factory=dict)
    """Added to the few variables that a server gets by default (``PATH``, ``HOME`` and the like)."""
    pass_env: tuple[str, ...] = ()
    """Variables of this process's environment that it gets too: keys, which no file has to hold then."""
    cwd: str | None = None


class HttpServer(Strict):
    """A server that runs already, over streamable HTTP."""

    url: str
    """With its path, usually ``/mcp``."""
    headers: Mapping[str, str] = Field(default_factory=dict)
    api_key_env: str = ""
    """Environment variable of a key that is sent as ``authorization: Bearer``."""


McpServer = StdioServer | HttpServer


def _written_with(server: Any) -> str:
    is_http = "url" in server if isinstance(server, dict) else isinstance(server, HttpServer)
    return "url" if is_http else "command"


class McpSpec(Strict):
    """Servers whose tools are offered, as a YAML file says."""

    servers: dict[
        str,
        Annotated[
            Annotated[StdioServer, Tag("command")] | Annotated[HttpServer, Tag("url")], Discriminator(_written_with)
        ],
    ] = Field(min_length=1)
    """By a name for messages."""
    timeout_s: float = Field(default=30.0, gt=0)
    """Of connecting, and of one call."""


def with_environment(name: str, server: McpServer) -> McpServer:
    """``server`` with what it gets of this process's environment. Raises ``ConfigError`` for what is not set."""

    def value(variable: str) -> str:
        if not os.environ.get(variable):
            raise ConfigError(f"MCP server {name!r}: the environment variable {variable} is not set")
        return os.environ[variable]

    if isinstance(server, StdioServer):
        passed = {variable: value(variable) for variable in server.pass_env}
        return server.model_copy(update={"env": {**server.env, **passed}})
    if not server.api_key_env:
        return server
    key = {"authorization": f"Bearer {value(server.api_key_env)}"}
    return server.model_copy(update={"headers": {**server.headers, **key}})


class McpConnection:
    """One open connection. ``open`` it before use and ``close`` it; it does not come back by itself."""

    def __init__(self, name: str, server: McpServer, *, timeout_s: float):
        self.name, self._server, self._timeout_s = name, server, timeout_s
        self._end = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._client: Any = None
        self.lost = False

    async def open(self) -> None:
        """Connect. Raises ``UpstreamError`` when the server does not answer in time, ``ConfigError`` for a variable
        that is not set.
        """
        server = with_environment(self.name, self._server)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._hold(server, ready))
        try:
            async with asyncio.timeout(self._timeout_s):
                await asyncio.shield(ready)
        except BaseException as error:
            await self.close()
            if isinstance(error, Exception):
                raise self.failure("connecting", error) from error
            raise

    async def close(self) -> None:
        """End the connection, and the process of a stdio server."""
        self._end.set()
        if self._task is not None:
            if self._client is None:
                self._task.cancel()
            await asyncio.wait([self._task])
            self._task = None

    async def _hold(self, server: McpServer, ready: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                self._client = await _connect(server, stack)
                ready.set_result(None)
                await self._end.wait()
        except BaseException as error:  # noqa: BLE001 - handed to whoever opens; after that there is nobody to tell
            self.lost = True
            if not ready.done():
                ready.set_exception(error if isinstance(error, Exception) else ConnectionError("cancelled"))
        finally:
            self.lost = True

    async def tools(self) -> list[Any]:
        """The SDK's tools, all pages."""
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self._ask("listing its tools", self._client.list_tools(cursor=cursor, cache_mode="bypass"))
            found += page.tools
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """The SDK's result. Raises ``UpstreamError``, or the SDK's ``MCPError`` where the request was at fault."""
        return await self._ask(f"calling {tool}", self._client.call_tool(tool, arguments))

    async def _ask(self, doing: str, waiting: Any) -> Any:
        from mcp import MCPError
        from mcp.types import INVALID_PARAMS, METHOD_NOT_FOUND

        try:
            async with asyncio.timeout(self._timeout_s):
                return await waiting
        except MCPError as error:
            if error.code in (INVALID_PARAMS, METHOD_NOT_FOUND):
                raise
            self.lost = True
            raise self.failure(doing, error) from error
        except TimeoutError as error:
            self.lost = True  # the call may still be going on there
            raise self.failure(doing, error) from error
        except Exception as error:
            self.lost = True
            raise self.failure(doing, error) from error

    def failure(self, doing: str, error: Exception) -> UpstreamError:
        """What went wrong, in words that name the server."""
        reason = f"no answer within {self._timeout_s:g} s" if isinstance(error, TimeoutError) else _inner(error)
        return UpstreamError(f"MCP server {self.name!r} ({_where(self._server)}): {doing}: {reason}", retryable=True)


async def _connect(server: McpServer, stack: AsyncExitStack) -> Any:
    """The SDK's client, entered; ``stack`` closes it with all that it needs."""
    import httpx2
    from mcp import Client, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if isinstance(server, StdioServer):
        log = stack.enter_context(os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))
        own = {"args": list(server.args), "env": dict(server.env), "cwd": server.cwd}
        transport = stdio_client(StdioServerParameters(command=server.command, **own), errlog=log)
    else:
        # How long an answer may take is bounded where it is waited for.
        http = httpx2.AsyncClient(headers=dict(server.headers), timeout=None)
        transport = streamable_http_client(server.url, http_client=await stack.enter_async_context(http))
    return await stack.enter_async_context(Client(transport))


def _where(server: McpServer) -> str:
    return server.url if isinstance(server, HttpServer) else " ".join([server.command, *server.args])


def _inner(error: BaseException) -> str:
    """The first cause inside the SDK's exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}"
