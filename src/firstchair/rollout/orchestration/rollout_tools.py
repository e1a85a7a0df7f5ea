"""The tools of one rollout: those that all rollouts share, and those that work in a directory of its own.

ToolsSpec ─► SharedTools: searches, calculators, HTTP clients, opened once
McpSpec   ─┘    └─ of_rollout ─► RolloutTools: a copy of the work dir, the tools in it, connections to MCP servers,
                                 made by the first call that needs them and gone when it is closed
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from firstchair.chat.messages import Message, Tool, ToolCall, tool_result
from firstchair.core.errors import ConfigError
from firstchair.core.scratch import remove_tree
from firstchair.rollout.mcp_servers import McpSpec
from firstchair.rollout.mcp_tools import McpToolset
from firstchair.sandbox.base import Sandbox
from firstchair.tools.spec import ToolsSpec, needs_work_dir, open_tools, sandbox_of
from firstchair.tools.toolbox import ToolBox


class SharedTools:
    """What is offered, opened as far as rollouts can share it. Close it when none of them uses it any more."""

    def __init__(
        self,
        tools: tuple[Tool, ...],
        box: ToolBox | None,
        own: ToolsSpec | None,
        mcp: McpSpec | None = None,
        of_servers: tuple[Tool, ...] = (),
    ):
        self.tools = (*tools, *of_servers)
        """In the order of the spec, those of MCP servers last."""
        self._box, self._own, self._mcp = box, own, mcp
        self.server_names = frozenset(tool.name for tool in of_servers)
        self.sandbox: Sandbox | None = None if own is None else sandbox_of(own)
        """Where code of all rollouts runs, each in its own directory."""
        shared = {tool.name for tool in box.tools} if box is not None else set()
        self.own_names = frozenset(tool.name for tool in tools if tool.name not in shared)
        """The tools that work in a rollout's directory."""

    @classmethod
    async def open(cls, spec: ToolsSpec | None, mcp: McpSpec | None = None) -> SharedTools:
        """Open it. Raises ``ConfigError`` or ``DataError`` for a key, an index, a database or a package that is
        missing, and for a name that stands twice; ``UpstreamError`` for an MCP server that cannot be reached.
        """
        # Connected once for the list, and to find out now what is missing.
        listed = () if mcp is None else await _listed(mcp)
        if spec is None:
            return cls((), None, None, mcp, listed)
        twice = {one.type for one in spec.tools}.intersection(tool.name for tool in listed)
        if twice:
            raise ConfigError(f"mcp: a server offers {min(twice)!r}, and so does tools; leave one of the two out")
        in_dir = [needs_work_dir(one) for one in spec.tools]
        own, shared = (
            tuple(one for one, inside in zip(spec.tools, in_dir, strict=True) if inside is wanted)
            for wanted in (True, False)
        )
        own_spec = spec.model_copy(update={"tools": own}) if own else None
        box = open_tools(spec.model_copy(update={"tools": shared, "work_dir": None})) if shared else None
        found = {False: iter(box.tools if box is not None else ()), True: iter(())}
        if own_spec is not None:
            if own_spec.work_dir is not None and not own_spec.work_dir.is_dir():
                raise ConfigError(
                    f"tools.work_dir: {own_spec.work_dir}: no such directory; every rollout works in a copy of it: "
                    "correct the path, or make it, empty if there is nothing to begin with"
                )
            # Opened once for their schemas, and to find out now what is missing.
            with tempfile.TemporaryDirectory() as place:
                async with open_tools(own_spec, work_dir=Path(place)) as opened:
                    found[True] = iter(opened.tools)
        return cls(tuple(next(found[inside]) for inside in in_dir), box, own_spec, mcp, listed)

    def of_rollout(self) -> RolloutTools:
        """The tools of one rollout, whose close leaves the shared ones open."""
        return RolloutTools(self, self._box, self._own, self._mcp)

    async def close(self) -> None:
        """Close what is shared."""
        if self._box is not None:
            await self._box.close()


async def _listed(mcp: McpSpec) -> tuple[Tool, ...]:
    async with McpToolset(mcp.servers, timeout_s=mcp.timeout_s) as servers:
        return servers.tools


class RolloutTools:
    """A ``Toolset``. Its directory is made by the first call that works in it, and MCP servers are connected to by
    the first call of a tool of theirs: one that is a process starts afresh for each rollout.
    """

    def __init__(
        self, all_tools: SharedTools, shared: ToolBox | None, own: ToolsSpec | None, mcp: McpSpec | None = None
    ):
        self._all, self._shared, self._own, self._mcp = all_tools, shared, own, mcp
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._box: ToolBox | None = None
        self._servers: McpToolset | None = None
        self._opening = asyncio.Lock()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What is offered."""
        return self._all.tools

    async def call(self, call: ToolCall) -> Message:
        """The tool message that answers ``call``."""
        if call.name in self._all.own_names and self._own is not None:
            async with self._opening:
                if self._box is None:
                    self._directory = tempfile.TemporaryDirectory(prefix="firstchair-rollout-")
                    place = Path(self._directory.name)
                    if self._own.work_dir is not None:
                        await asyncio.to_thread(
                            shutil.copytree, self._own.work_dir, place, symlinks=True, dirs_exist_ok=True
                        )
                    self._box = open_tools(self._own, work_dir=place, sandbox=self._all.sandbox)
            return await self._box.call(call)
        if call.name in self._all.server_names and self._mcp is not None:
            async with self._opening:
                if self._servers is None:
                    servers = McpToolset(self._mcp.servers, timeout_s=self._mcp.timeout_s)
                    self._servers = await servers.__aenter__()
            return await self._servers.call(call)
        if self._shared is None:
            return tool_result(call, f"There is no tool {call.name!r}.", is_error=True)
        return await self._shared.call(call)

    async def close(self) -> None:
        """Close the tools of the directory, and remove it; end the connections to servers."""
        box, directory, servers = self._box, self._directory, self._servers
        self._box = self._directory = self._servers = None
        if servers is not None:
            await servers.close()
        if box is not None:
            await box.close()
        if directory is not None:
            remove_tree(directory.name)  # of programs that a model wrote
            directory.cleanup()
