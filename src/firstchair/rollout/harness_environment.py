"""A harness that drives itself as an environment: it calls what it takes for a model's API, and we are the model.

    harness ── POST /v1/chat/completions ──► waits ──► Observation, or the messages of a Step ──► policy
       ▲                                                                                            │
       └───────────────────────────── the action, as the model's answer ◄───────────────────────────┘

What a harness adds to its conversation between two calls (tool results, the user's next message) is what the action
led to. So any program that takes a base URL becomes an environment, with its tools, its loop and its own verdict.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import RunFailed
from firstchair.core.extras import require
from firstchair.rollout.environment import Check, Observation, Outcome, Step

MODEL = "policy"
"""The name under which a harness asks for its model."""

RunHarness = Callable[[Any, int, str], Awaitable[Outcome]]
"""Plays a task: from the task, the seed and the address of the model to the harness's own verdict.

The address is ``http://127.0.0.1:port``: Anthropic's SDK takes it as it is, OpenAI's wants ``/v1`` after it. What
this raises is a failure of the machinery, never a verdict.
"""


class HarnessEnvironment:
    """An ``Environment`` around ``run``. One conversation an episode, which may only grow.

    An episode that is given up before the harness is through ends with ``completed`` false and a failed check
    ``finished``. ``snapshot`` is refused: a running program cannot be copied. Needs ``firstchair[gateway]``.
    """

    def __init__(self, run: RunHarness):
        require("gateway")
        self._run = run
        self._calls: asyncio.Queue[_Call] = asyncio.Queue()
        self._call: _Call | None = None
        self._waiting: set[_Call] = set()
        self._playing: asyncio.Future[Outcome] | None = None
        self._serving: asyncio.Task[None] | None = None
        self._server: Any = None

    async def reset(self, task: Any, seed: int) -> Observation:
        """Start the harness and wait for its first call. Raises ``RunFailed`` when it ends without one."""
        await self.close()
        url = self._listen()
        self._calls, self._call = asyncio.Queue(), None
        self._playing = asyncio.ensure_future(self._run(task, seed, url))
        call = await self._next()
        if call is None:
            raise RunFailed("the harness ended without asking its model for anything")
        self._call = call
        return Observation(messages=call.messages, tools=call.tools)

    async def step(self, action: Action) -> Step:
        """Answer the harness's call with ``action`` and wait for its next one, or its end."""
        if self._call is None:
            raise RunFailed("the harness waits for no answer: step comes after reset and before the end")
        before, self._call = self._call, None
        before.answer.set_result(action)
        call = await self._next()
        if call is None:
            return Step(messages=(), done=True)
        new = _added(before, action, call)
        self._call = call
        return Step(messages=new, done=False)

    async def verify(self) -> Outcome:
        """The harness's verdict."""
        assert self._playing is not None
        if self._playing.done():
            return self._playing.result()
        await self._stop()
        return Outcome(
            completed=False,
            checks=(Check(name="finished", ok=False, detail="given up before the harness was through"),),
        )

    async def snapshot(self) -> Any:
        """Raises ``RunFailed``."""
        raise RunFailed("a harness that drives itself cannot be branched: a running program cannot be copied")

    async def restore(self, snapshot: Any) -> None:
        """Raises ``RunFailed``, as ``snapshot`` does."""
        await self.snapshot()

    async def close(self) -> None:
        """Cancel the harness and stop listening."""
        await self._stop()
        if self._serving is not None:
            self._server.should_exit = self._server.force_exit = True
            await self._serving
            self._serving = None

    async def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The harness's side: one call of its model."""
        call = _Call(tuple(messages), tuple(tools))
        self._waiting.add(call)
        try:
            await self._calls.put(call)
            return await call.answer
        finally:
            self._waiting.discard(call)

    async def _next(self) -> _Call | None:
        """The harness's next call; ``None`` when it has ended."""
        assert self._playing is not None
        waiting = asyncio.ensure_future(self._calls.get())
        try:
            both: set[asyncio.Future[Any]] = {waiting, self._playing}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                return waiting.result()
            self._playing.result()  # raises what stopped it
            return None
        finally:
            waiting.cancel()

    def _listen(self) -> str:
        from firstchair.rollout.actor_app import build_app
        from firstchair.rollout.desk.server import listening_socket, uvicorn_server

        socket = listening_socket("127.0.0.1", 0)
        self._server = uvicorn_server(build_app(self, MODEL))
        # Signals stay with the program that this runs in.
        self._server.capture_signals = contextlib.nullcontext
        self._serving = asyncio.create_task(self._server.serve(sockets=[socket]))
        return f"http://127.0.0.1:{socket.getsockname()[1]}"

    async def _stop(self) -> None:
        if self._playing is not None and not self._playing.done():
            self._playing.cancel()
            await asyncio.wait([self._playing])
        for call in self._waiting:
            if not call.answer.done():
                call.answer.set_exception(RunFailed("the episode is over"))


class _Call:
    """One call of the harness's model that waits for its answer."""

    def __init__(self, messages: tuple[Message, ...], tools: tuple[Tool, ...]):
        self.messages, self.tools = messages, tools
        self.answer: asyncio.Future[Action] = asyncio.get_running_loop().create_future()


def _added(before: _Call, action: Action, call: _Call) -> tuple[Message, ...]:
    """What ``call`` has beyond the conversation so far. Raises ``RunFailed`` when it is another conversation."""
    known = (*before.messages, action.to_message())
    for place, (had, has) in enumerate(zip(known, call.messages, strict=False)):
        if _said(had) != _said(has):
            raise RunFailed(f"the harness changed messages[{place}] of its conversation, or began another; {_WHY}")
    if len(call.messages) <= len(known):
        raise RunFailed(f"the harness asked again without adding a message; {_WHY}")
    if call.tools != before.tools:
        raise RunFailed(f"the harness offers other tools than at the start; {_WHY}")
    return call.messages[len(known) :]


_WHY = "an environment plays one conversation that only grows"


def _said(message: Message) -> tuple[str, str, list[tuple[str, Any]]]:
    """What counts: harnesses write calls anew and leave thinking out."""
    return message.role, message.text, [(call.name, call.parsed() or call.arguments) for call in message.tool_calls]
