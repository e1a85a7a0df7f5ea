"""A real MCP server of the official SDK, run by the tests: ``python mcp_server.py`` (stdio) or with a port (HTTP)."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("words")
words: list[str] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def store(word: str) -> str:
    """Store one word."""
    words.append(word)
    return f"stored {word}"


@server.tool()
def recall() -> list[str]:
    """All words so far."""
    return words


@server.tool()
def fail() -> str:
    """Fail as a tool does."""
    raise ToolError("the shelf is full")


@server.tool()
def picture() -> Image:
    """A picture."""
    return Image(data=b"\x89PNG", format="png")


@server.tool()
def die() -> str:
    """Take the server down in the middle of the call."""
    os._exit(3)


@server.tool()
def hang() -> str:
    """Never answer."""
    time.sleep(3600)
    return ""


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[1]), stateless_http=True)
    else:
        server.run()
