"""Experts, tools and a grader by script, for tests of everything that orchestrates."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from firstchair.catalog.experts import DispatchKind
from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, Tool, ToolCall, assistant_message, tool_result
from firstchair.engines.base import ErrorKind
from firstchair.engines.expert import ExpertAnswer
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.orchestration.offer import Offered
from firstchair.rollout.orchestration.task import OrchestrationTask

Answer = str | ExpertAnswer
"""A text, which costs ``COST_NANO`` and takes ``LATENCY_S``, or a whole answer (its ``expert`` is filled in)."""
COST_NANO, LATENCY_S = 2_000_000, 0.5
USAGE = TokenCounts(input=100, output=20)


class ScriptedExperts:
    """An ``ExpertPool`` whose answers are a function of expert and question, which may be async. ``asked`` keeps
    what was asked; ``closed`` says whether it was closed.
    """

    def __init__(self, answer: Callable[[str, str], Answer | Awaitable[Answer]]):
        self._answer = answer
        self.asked: list[tuple[str, str]] = []
        self.closed = False

    async def ask(self, expert: str, question: str) -> ExpertAnswer:
        """By the script."""
        self.asked.append((expert, question))
        found = self._answer(expert, question)
        answer = await found if inspect.isawaitable(found) else found
        if isinstance(answer, ExpertAnswer):
            return replace(answer, expert=expert)
        return ExpertAnswer(
            expert, answer, served_model=f"{expert}-2026", usage=USAGE, cost_nano=COST_NANO, latency_s=LATENCY_S
        )

    async def close(self) -> None:
        """Note it."""
        self.closed = True


def failing(kind: ErrorKind, error: str = "the server's own words") -> ExpertAnswer:
    """An answer that failed."""
    return ExpertAnswer("", error=error, error_kind=kind, cost_nano=0, latency_s=LATENCY_S)


async def never(*_: Any) -> str:
    """An answer that does not come."""
    await asyncio.Event().wait()
    return ""


class ScriptedTools:
    """A ``Toolset`` of functions from arguments to a text; one that raises does so where it is called."""

    def __init__(self, functions: Mapping[str, Callable[[dict[str, Any]], str]]):
        self._functions = functions
        self.closed = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """One for each function."""
        return tuple(Tool(name=name, parameters={"type": "object"}) for name in self._functions)

    async def call(self, call: ToolCall) -> Message:
        """The function's text; one that begins with ``failed`` is an error."""
        text = self._functions[call.name](call.parsed() or {})
        return tool_result(call, text, is_error=text.startswith("failed"))

    async def close(self) -> None:
        """Note it."""
        self.closed = True


class ExactGrader:
    """Right when the answer is the gold one; a task without one cannot be graded."""

    async def grade(self, task: OrchestrationTask, answer: str) -> Grade:
        """By comparison."""
        if task.gold_answer is None:
            return Grade(correct=None, how="no gold answer")
        return Grade(correct=answer == task.gold_answer, how="exact", detail=f"{answer!r:.100}")

    async def close(self) -> None:
        """There is nothing to release."""


def model_on_offer(label: str, name: str = "") -> Offered:
    """A model as a tool, in the catalog as ``name`` (``label`` if not given)."""
    schema = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return Offered(Tool(name=label, description="A model.", parameters=schema), name or label, "model")


def tool_on_offer(name: str, kind: DispatchKind = "other") -> Offered:
    """A tool that takes any object."""
    return Offered(Tool(name=name, description="A tool.", parameters={"type": "object"}), name, kind)


def calls(*made: tuple[str, dict[str, Any]], text: str = "") -> Message:
    """An assistant message with calls of ``(label, arguments)``."""
    return assistant_message(text, calls=tuple(ToolCall.of("", label, arguments) for label, arguments in made))
