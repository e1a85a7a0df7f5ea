"""A plain Python class as an environment: three methods, messages as OpenAI dicts, blocking or not.

class Counter:
    tools = [{"type": "function", "function": {...}}]          # optional
    def reset(self, task, seed): return "Count to three."      # or messages, or (messages, tools)
    def step(self, message): return [...], done                # message: the assistant's, as a dict
    def verify(self): return True                              # or a number from 0 to 1, or an Outcome
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import threading
from collections.abc import Callable, Sequence
from typing import Any

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool, text_message
from firstchair.chat.openai_wire import messages_from_openai, messages_to_openai, tools_from_openai
from firstchair.core.errors import ConfigError, DataError, RunFailed
from firstchair.rollout.environment import Check, Observation, Outcome, Step

METHODS = ("reset", "step", "verify")


class PythonEnvironment:
    """An ``Environment`` around an object with ``reset(task, seed)``, ``step(message)`` and ``verify()``.

    A method may be a coroutine; one that is not runs in a thread, so that a blocking class holds up nobody else. Its
    calls never overlap, but each may come from another thread. A call that takes longer than ``timeout_s`` fails, and
    the object is not called again. A number from ``verify`` is ``Outcome.score``, and completes from
    ``completed_at``. ``snapshot`` copies the object deeply.

    Raises ``ConfigError`` when a method is missing. What the class returns and cannot be read raises ``DataError``
    naming class and method; its own exceptions go through.
    """

    def __init__(self, wrapped: Any, *, timeout_s: float = 60.0, completed_at: float = 1.0):
        missing = [name for name in METHODS if not callable(getattr(wrapped, name, None))]
        if missing:
            raise ConfigError(
                f"{type(wrapped).__name__}: no method {', '.join(missing)}; expected {', '.join(METHODS)}"
            )
        self._wrapped, self._timeout_s, self._completed_at = wrapped, timeout_s, completed_at
        self._hung = ""

    async def reset(self, task: Any, seed: int) -> Observation:
        """What ``reset`` returned: an ``Observation``, a text (the user's), messages, or messages and tools."""
        found = await self._call("reset", task, seed)
        if isinstance(found, Observation):
            return found
        tools = getattr(self._wrapped, "tools", ())
        if isinstance(found, tuple) and len(found) == 2 and not isinstance(found[0], dict | Message):
            found, tools = found
        return Observation(messages=self._messages("reset", found), tools=self._tools(tools))

    async def step(self, action: Action) -> Step:
        """What ``step`` returned: a ``Step``, or messages and whether the episode is over."""
        (message,) = messages_to_openai([action.to_message()])
        found = await self._call("step", message)
        if isinstance(found, Step):
            return found
        if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], bool)):
            raise self._wrong("step", found, "(messages, done) with done True or False")
        return Step(messages=self._messages("step", found[0]), done=found[1])

    async def verify(self) -> Outcome:
        """What ``verify`` returned: an ``Outcome``, a boolean, or a score from 0 to 1."""
        found = await self._call("verify")
        if isinstance(found, Outcome):
            return found
        if isinstance(found, bool):
            return Outcome(completed=found, checks=(Check(name="verify", ok=found),))
        if not isinstance(found, int | float) or not 0 <= found <= 1:
            raise self._wrong("verify", found, "True, False, a number from 0 to 1 or an Outcome")
        return outcome_of_score(float(found), self._completed_at)

    async def snapshot(self) -> Any:
        """A deep copy of the object."""
        return copy.deepcopy(self._wrapped)

    async def restore(self, snapshot: Any) -> None:
        """Go on with a copy of that copy."""
        self._wrapped = copy.deepcopy(snapshot)

    async def close(self) -> None:
        """The object's own ``close``, where it has one and still answers."""
        if not self._hung and callable(getattr(self._wrapped, "close", None)):
            await self._call("close")

    async def _call(self, method: str, *arguments: Any) -> Any:
        name = f"{type(self._wrapped).__name__}.{method}"
        if self._hung:
            raise RunFailed(f"{name}: not called, because {self._hung} never came back")
        function = getattr(self._wrapped, method)
        try:
            async with asyncio.timeout(self._timeout_s):
                if inspect.iscoroutinefunction(function):
                    return await function(*arguments)
                return await in_thread(lambda: function(*arguments))
        except TimeoutError as error:
            # A thread cannot be stopped; whatever it still does, it does to an object that nobody uses any more.
            self._hung = name
            raise RunFailed(
                f"{name}: no answer within {self._timeout_s:g} s; raise timeout_s or make it faster"
            ) from error

    def _messages(self, method: str, found: Any) -> tuple[Message, ...]:
        if isinstance(found, str):
            return (text_message("user", found),)
        rows = [found] if isinstance(found, dict | Message) else found
        if not isinstance(rows, Sequence) or not all(isinstance(row, dict | Message) for row in rows):
            raise self._wrong(method, found, "a text, or messages as OpenAI dicts")
        try:
            return tuple(
                row if isinstance(row, Message) else messages_from_openai([row], strict=False)[0] for row in rows
            )
        except DataError as error:
            raise DataError(f"{type(self._wrapped).__name__}.{method}: {error}") from error

    def _tools(self, found: Any) -> tuple[Tool, ...]:
        return tuple(tool if isinstance(tool, Tool) else tools_from_openai([tool])[0] for tool in found)

    def _wrong(self, method: str, found: Any, wanted: str) -> DataError:
        return DataError(f"{type(self._wrapped).__name__}.{method}: found {found!r:.200}; expected {wanted}")


def outcome_of_score(score: float, completed_at: float) -> Outcome:
    """The outcome of an environment that gives one number."""
    done = score >= completed_at
    return Outcome(completed=done, checks=(Check(name="score", ok=done, detail=f"{score:g}"),), score=score)


async def in_thread(function: Callable[[], Any]) -> Any:
    """``function()`` in a thread of its own, which does not keep the process alive when it never ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(result: Any, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is None:
            future.set_result(result)
        elif isinstance(error, StopIteration):  # no future may carry one
            future.set_exception(RuntimeError(f"StopIteration: {error}"))
        else:
            future.set_exception(error)

    def work() -> None:
        result, failed = None, None
        try:
            result = function()
        except BaseException as error:  # noqa: BLE001 - carried over to the caller
            failed = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, result, failed)

    threading.Thread(target=work, daemon=True).start()
    return await future
