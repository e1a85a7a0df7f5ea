"""The protocol of every environment: a harness that can be reset, stepped, verified and branched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from firstchair.chat.actions import Action, Problem
from firstchair.chat.messages import Message, Tool


@dataclass(frozen=True)
class Observation:
    """What the model sees after ``reset``: the conversation so far and the tools on offer."""

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]


@dataclass(frozen=True)
class Step:
    """What an action led to: tool results, or the user's next message; none when the episode is over."""

    messages: tuple[Message, ...]
    done: bool
    info: dict[str, Any] = field(default_factory=dict)
    retracts: bool = False
    """The action is taken out of the conversation: the model goes on as if it had not been said. What it sampled
    stays in the token stream, and the record keeps what was said apart."""


@dataclass(frozen=True)
class Check:
    """One condition on the final state or a reply."""

    name: str
    ok: bool
    detail: str = ""


@dataclass(frozen=True)
class Outcome:
    """The judgement of code on an episode."""

    completed: bool
    """Every check holds."""
    checks: tuple[Check, ...] = ()
    violations: tuple[str, ...] = ()
    """Policy rows broken on the way; they do not by themselves undo completion."""
    score: float | None = None
    """A figure of the environment's own beside its checks, for one that grades; higher is better."""
    undecided: tuple[str, ...] = ()
    """Names of checks that code cannot decide and a judge must; they are not in ``checks``, and ``completed`` is then
    false without anything being wrong."""
    measures: Mapping[str, float] = field(default_factory=dict)
    """What the episode took, by name with its unit (``cost_usd``, ``latency_s``, ``calls.search``, …), for rewards to
    read. A figure that is unknown is left out: that is not 0."""


@runtime_checkable
class Environment(Protocol):
    """One episode at a time per instance; no state is shared between instances."""

    async def reset(self, task: Any, seed: int) -> Observation:
        """Start ``task`` afresh; equal arguments give equal episodes."""
        ...

    async def step(self, action: Action) -> Step:
        """Carry out tool calls, or hand the final reply to the user."""
        ...

    async def verify(self) -> Outcome:
        """Check the present state against the task."""
        ...

    async def snapshot(self) -> Any:
        """An opaque copy of the whole state."""
        ...

    async def restore(self, snapshot: Any) -> None:
        """Go back to a state taken by ``snapshot``."""
        ...


@runtime_checkable
class Closing(Protocol):
    """An environment that holds something (a process, a connection) has this too."""

    async def close(self) -> None:
        """Release it. Called once when the episode is over, however it ended, cancelled ones included."""
        ...


@runtime_checkable
class Conducting(Protocol):
    """An environment that has more of a say in its episode has these three too."""

    def shown(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """What the model is shown of the conversation so far; the record keeps all of it."""
        ...

    async def unreadable(self, action: Action, problems: tuple[Problem, ...]) -> Step:
        """Answer an action that could not be read, or can be read only in part. Without messages, and not done, the
        episode tells the model what was wrong, as it does where there is no such method.
        """
        ...

    def notes(self) -> dict[str, Any]:
        """What the record holds beside the conversation (``meta["environment"]``), as plain values. Asked once at the
        end, however the episode ended, failed ones included.
        """
        ...
