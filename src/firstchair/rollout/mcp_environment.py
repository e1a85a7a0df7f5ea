"""A task of the user's around the tools of MCP servers."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, text_message
from firstchair.core.errors import RunFailed
from firstchair.rollout.environment import Check, Observation, Outcome, Step
from firstchair.rollout.mcp_tools import McpToolset


class McpTask(msgspec.Struct, frozen=True, kw_only=True):
    """What the user says, one text a turn, and anything that ``verify`` needs to know."""

    task_id: str
    turns: tuple[str, ...]
    system: str = ""
    data: dict[str, Any] = {}


Verdict = bool | Outcome
Verify = Callable[[McpTask, tuple[Message, ...], McpToolset], Verdict | Awaitable[Verdict]]
"""From the task, the whole conversation and the live tools (to look at the servers' state) to a verdict."""


class McpEnvironment:
    """The user speaks, the model calls tools until it replies, the user speaks again; then ``verify`` judges.

    ``reset`` opens ``toolset`` and ``close`` closes it: with a toolset of its own each episode has stdio servers of
    its own, and so a fresh state. A server over HTTP is shared; its tools must keep episodes apart.
    """

    def __init__(self, toolset: McpToolset, verify: Verify):
        self._toolset, self._verify = toolset, verify
        self._task = McpTask(task_id="", turns=())
        self._turn, self._messages = 0, list[Message]()

    async def reset(self, task: McpTask, seed: int) -> Observation:
        """The system message, if any, and the first turn."""
        await self.close()
        await self._toolset.__aenter__()
        self._task, self._turn = task, 0
        self._messages = [text_message("system", task.system)] if task.system else []
        self._messages.append(text_message("user", task.turns[0]))
        return Observation(messages=tuple(self._messages), tools=self._toolset.tools)

    async def step(self, action: Action) -> Step:
        """Run the calls one after the other, or go on to the next turn."""
        self._messages.append(action.to_message())
        if action.kind == "tool_call":
            new = tuple([await self._toolset.call(call) for call in action.calls])
        else:
            self._turn += 1
            new = tuple(text_message("user", text) for text in self._task.turns[self._turn : self._turn + 1])
        self._messages += new
        return Step(messages=new, done=not new)

    async def verify(self) -> Outcome:
        """What the user's function says."""
        verdict = self._verify(self._task, tuple(self._messages), self._toolset)
        if inspect.isawaitable(verdict):
            verdict = await verdict
        if isinstance(verdict, Outcome):
            return verdict
        return Outcome(completed=verdict, checks=(Check(name="verify", ok=verdict),))

    async def snapshot(self) -> Any:
        """Raises ``RunFailed``: the state is in the servers, and MCP has no way to copy it."""
        raise RunFailed("an environment of MCP servers cannot be branched: their state cannot be copied")

    async def restore(self, snapshot: Any) -> None:
        """Raises ``RunFailed``, as ``snapshot`` does."""
        await self.snapshot()

    async def close(self) -> None:
        """End the connections and the processes."""
        await self._toolset.close()
