"""The one place where an environment is asked. Anybody may have written it: it may raise, hang, cancel itself, leave
the process or answer nonsense, and whatever it does has a name and touches nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from firstchair.chat.actions import Action, Problem
from firstchair.chat.messages import Message
from firstchair.core.concurrency import was_cancelled
from firstchair.core.errors import FirstchairError
from firstchair.rollout.environment import Closing, Conducting, Environment, Observation, Outcome, Step
from firstchair.rollout.environment_answer import Answer, checked

CLOSE_S = 10.0
"""Longest wait for an environment to close."""

Found = TypeVar("Found")


class EnvironmentFailed(FirstchairError):
    """``environment.METHOD: reason``: it raised, did not answer in time, or answered nonsense. Its state is unknown,
    so the episode is over without a verdict.
    """


class GuardedEnvironment:
    """One environment, each of whose answers comes within ``stall_s`` seconds and is whole, or is
    ``EnvironmentFailed``. There is none before ``reset`` and after ``close``.
    """

    def __init__(self, stall_s: float):
        self._stall_s = stall_s
        self._environment: Environment | None = None
        self._conductor: Conducting | None = None

    @property
    def exists(self) -> bool:
        """Whether it was made and is not closed."""
        return self._environment is not None

    @property
    def conducts(self) -> bool:
        """Whether it is ``Conducting``: ``shown``, ``unreadable`` and ``notes`` are its own."""
        return self._conductor is not None

    async def reset(self, factory: Callable[[], Environment], task: Any, seed: int) -> Observation:
        """Make the environment and start ``task`` in it."""

        async def begin() -> Observation:
            self._environment = factory()
            self._conductor = self._environment if isinstance(self._environment, Conducting) else None
            return await self._environment.reset(task, seed)

        return await self._whole("reset", Observation, begin)

    async def step(self, action: Action) -> Step:
        """Carry out ``action``."""
        return await self._whole("step", Step, lambda: self._made.step(action))

    async def unreadable(self, action: Action, problems: tuple[Problem, ...]) -> Step:
        """A conductor's answer to an action that could not be read."""
        conductor = self._conductor
        assert conductor is not None
        return await self._whole("unreadable", Step, lambda: conductor.unreadable(action, problems))

    async def verify(self) -> Outcome:
        """The judgement on the present state."""
        return await self._whole("verify", Outcome, lambda: self._made.verify())

    async def snapshot(self) -> Any:
        """A copy of the whole state."""
        return await _within(self._stall_s, "snapshot", lambda: self._made.snapshot())

    async def restore(self, snapshot: Any) -> None:
        """Back to a copy."""
        await _within(self._stall_s, "restore", lambda: self._made.restore(snapshot))

    def shown(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """What the model is shown of ``messages``: all of them, where there is no conductor."""
        if self._conductor is None:
            return messages
        try:
            return self._conductor.shown(messages)
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(f"environment.shown: {_words(error)}") from error

    def notes(self) -> dict[str, Any] | None:
        """A conductor's notes as plain values, or why there are none; ``None`` where there is no conductor."""
        if self._conductor is None:
            return None
        try:
            notes = self._conductor.notes()
            msgspec.json.encode(notes)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the rollout boundary: the record says it
            return {"error": f"environment.notes: {_words(error)}"}
        return notes

    async def close(self) -> str:
        """Let it release what it holds. Returns why it could not; nothing where it could."""
        environment, self._environment, self._conductor = self._environment, None, None
        if not isinstance(environment, Closing):
            return ""
        try:
            await _within(CLOSE_S, "close", environment.close)
        except EnvironmentFailed as failed:
            return str(failed)
        return ""

    @property
    def _made(self) -> Environment:
        assert self._environment is not None
        return self._environment

    async def _whole(self, method: str, wanted: type[Answer], call: Callable[[], Awaitable[Answer]]) -> Answer:
        async def looked_at() -> Answer:
            return checked(await call(), wanted)

        return await _within(self._stall_s, method, looked_at)


async def _within(seconds: float, method: str, call: Callable[[], Awaitable[Found]]) -> Found:
    """What ``call`` gives. Raises ``EnvironmentFailed`` when it breaks in whatever way, or takes longer."""
    try:
        async with asyncio.timeout(seconds) as timeout:
            return await call()
    except asyncio.CancelledError as error:
        if was_cancelled():
            raise
        raise EnvironmentFailed(f"environment.{method}: CancelledError: nobody had cancelled it") from error
    except (Exception, SystemExit) as error:
        late = isinstance(error, TimeoutError) and timeout.expired()
        reason = f"no answer within {seconds:g} s" if late else _words(error)
        raise EnvironmentFailed(f"environment.{method}: {reason}") from error


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
