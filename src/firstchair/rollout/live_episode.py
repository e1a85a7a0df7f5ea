"""One episode while it runs: the conversation so far, what was called, and how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from firstchair.chat.actions import Action
from firstchair.chat.messages import (
    REFUSED,
    TRUNCATED,
    Message,
    Tool,
    ToolCall,
    assistant_message,
    text_message,
    tool_result,
)
from firstchair.core.clock import utc_now
from firstchair.core.jsontext import content_id
from firstchair.engines.base import Stop
from firstchair.rollout.environment import Environment, Outcome
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.traces.session import ModelCall, Session, Source, Turn, catalog_id_of


class EpisodeEnd(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment said so."""
    MAX_STEPS = "max_steps"
    MALFORMED = "malformed"
    """Too many actions that could not be read."""
    REFUSED = "refused"
    """The provider's filter stopped the model."""
    ERROR = "error"
    """The policy's or the environment's machinery failed; nothing is said about the model."""


@dataclass(frozen=True)
class EpisodePlan:
    """What is to be run, fixed before it starts."""

    number: int
    task: Any
    task_id: str
    trial: int
    seed: int
    policy: str
    source: Source
    max_steps: int
    max_malformed: int
    stall_s: float


class LiveEpisode:
    """Drives one environment. ``end`` is ``None`` as long as another decision is due."""

    def __init__(self, plan: EpisodePlan):
        self.plan, self.episode_id = plan, f"{plan.task_id}#{plan.trial}"
        self.end: EpisodeEnd | None = None
        self.error: str | None = None
        self.steps = 0
        self.malformed: list[dict[str, Any]] = []
        self._environment: Environment | None = None
        self._created_at = utc_now()
        self._messages: list[Message] = []
        self._tools: tuple[Tool, ...] = ()
        self._calls: list[ModelCall] = []
        self._turn_starts: list[int] = []
        self._call_ids: set[str] = set()
        self._context_end = 0

    @classmethod
    async def start(cls, env_factory: Callable[[], Environment], plan: EpisodePlan) -> LiveEpisode:
        """Reset a new environment to the plan's task."""
        episode = cls(plan)
        try:
            episode._environment = env_factory()
            async with asyncio.timeout(plan.stall_s):
                observation = await episode._environment.reset(plan.task, plan.seed)
        except Exception as error:  # noqa: BLE001 - the rollout boundary: recorded and counted
            episode._fail("environment.reset", error)
            return episode
        episode._tools = observation.tools
        episode._observe(observation.messages)
        if any(message.role == "assistant" for message in observation.messages):
            episode._context_end = len(observation.messages)
        return episode

    def request(self) -> PolicyRequest:
        """What the policy is to decide now."""
        return PolicyRequest(episode_id=self.episode_id, messages=tuple(self._messages), tools=self._tools)

    async def apply(self, reply: PolicyReply) -> None:
        """Carry out one decision."""
        if reply.error is not None or (reply.action is None and not reply.malformed):
            self._note_call(reply, None)
            self.end, self.error = EpisodeEnd.ERROR, _reason(reply)
            return
        self.steps += 1
        message = self._message(reply)
        self._note_call(reply, len(self._messages))
        self._messages.append(message)
        if reply.stop is Stop.REFUSAL:
            self.end = EpisodeEnd.REFUSED
        elif reply.malformed:
            self._answer_malformed(reply, message)
        else:
            await self._step(_with_calls(reply.action, message.tool_calls))
        if self.end is None and self.steps >= self.plan.max_steps:
            self.end = EpisodeEnd.MAX_STEPS

    async def judge(self) -> Outcome | None:
        """The environment's verdict on its present state; ``None`` after an error."""
        if self.end is EpisodeEnd.ERROR or self._environment is None:
            return None
        try:
            async with asyncio.timeout(self.plan.stall_s):
                return await self._environment.verify()
        except Exception as error:  # noqa: BLE001 - a verifier that fails has not said "wrong"
            self._fail("environment.verify", error)
            return None

    def session(self, outcome: Outcome | None) -> Session:
        """The record. Its id is content-addressed: the same conversation of the same policy is the same session."""
        plan, messages = self.plan, tuple(self._messages)
        labels: dict[str, Any] = {"task_id": plan.task_id, "trial": plan.trial, "end": str(self.end)}
        meta: dict[str, Any] = {"policy": plan.policy, "seed": plan.seed}
        if outcome is not None:
            labels["completed"] = outcome.completed
            meta["checks"] = [[check.name, check.ok, check.detail] for check in outcome.checks]
            meta["violations"] = list(outcome.violations)
        if self.error is not None:
            labels["error"] = self.error
        if self.malformed:
            meta["malformed"] = self.malformed
        digest = content_id([plan.policy, plan.trial, plan.seed, msgspec.to_builtins(messages)])
        ends = [*self._turn_starts[1:], len(messages)] if self._turn_starts else []
        return Session(
            session_id=f"{plan.task_id}-{digest[:12]}",
            source=plan.source,
            created_at=self._created_at,
            catalog_id=catalog_id_of(self._tools),
            messages=messages,
            turns=tuple(Turn(start=start, end=end) for start, end in zip(self._turn_starts, ends, strict=True)),
            calls=tuple(self._calls),
            labels=labels,
            meta=meta,
            context_end=self._context_end,
        )

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The tools on offer; ``session(...).catalog_id`` is their content address."""
        return self._tools

    def _observe(self, messages: tuple[Message, ...]) -> None:
        for message in messages:
            follows_user = bool(self._messages) and self._messages[-1].role == "user"
            if message.role == "user" and not follows_user:
                self._turn_starts.append(len(self._messages))
            self._messages.append(message)

    async def _step(self, action: Action) -> None:
        assert self._environment is not None
        try:
            async with asyncio.timeout(self.plan.stall_s):
                step = await self._environment.step(action)
        except Exception as error:  # noqa: BLE001 - the rollout boundary: recorded and counted
            self._fail("environment.step", error)
            return
        self._observe(step.messages)
        if step.done:
            self.end = EpisodeEnd.DONE

    def _answer_malformed(self, reply: PolicyReply, message: Message) -> None:
        """Tell the model what was wrong, as a harness does: as results of its calls, or in words if it has none."""
        reasons = [problem.message for problem in reply.problems] or ["it could not be read"]
        self.malformed.append(
            {
                "message_index": len(self._messages) - 1,
                "raw_text": reply.raw_text,
                "problems": list(msgspec.to_builtins(reply.problems)),
            }
        )
        if len(self.malformed) > self.plan.max_malformed:
            self.end = EpisodeEnd.MALFORMED
            return
        if not message.tool_calls:
            text = f"Your last message could not be read: {'; '.join(reasons)}. Send the whole action again."
            # Not a turn of the user's: appended without _observe.
            self._messages.append(text_message("user", text))
            return
        own: dict[int | None, str] = {problem.call: problem.message for problem in reply.problems}
        for index, call in enumerate(message.tool_calls):
            reason = own.get(index) or own.get(None) or "another call of the same message could not be read"
            self._messages.append(tool_result(call, f"Not run: {reason}. Send the call again.", is_error=True))

    def _message(self, reply: PolicyReply) -> Message:
        """The model's message, its call ids made unique in the episode."""
        message = reply.message
        if message is None:
            message = reply.action.to_message() if reply.action is not None else assistant_message()
            if reply.malformed and not message.tool_calls:
                message = assistant_message(reply.raw_text)
        if reply.stop is Stop.LENGTH:
            # It has no end token of its own; what renders it must not train one.
            message = msgspec.structs.replace(message, extra={**message.extra, TRUNCATED: True})
        elif reply.stop is Stop.REFUSAL:
            message = msgspec.structs.replace(message, extra={**message.extra, REFUSED: True})
        calls: list[ToolCall] = []
        for call in message.tool_calls:
            call_id = call.id
            if not call_id or call_id in self._call_ids:
                call_id = f"call_{len(self._call_ids)}"
                while call_id in self._call_ids:
                    call_id += "_"
                call = msgspec.structs.replace(call, id=call_id)
            self._call_ids.add(call_id)
            calls.append(call)
        return msgspec.structs.replace(message, tool_calls=tuple(calls)) if calls else message

    def _note_call(self, reply: PolicyReply, message_index: int | None) -> None:
        if reply.call is not None:
            error = reply.call.error or reply.error
            self._calls.append(msgspec.structs.replace(reply.call, message_index=message_index, error=error))

    def _fail(self, where: str, error: Exception) -> None:
        self.end, self.error = EpisodeEnd.ERROR, f"{where}: {type(error).__name__}: {error}"


def _reason(reply: PolicyReply) -> str:
    """Why there is no action; begins with the kind of error where it is known, so that errors can be counted."""
    error = reply.error or "policy: a reply without action, problem or error"
    kind = reply.error_kind
    return error if kind is None or error.startswith(f"{kind}:") else f"{kind}: {error}"


def _with_calls(action: Action | None, calls: tuple[ToolCall, ...]) -> Action:
    assert action is not None
    return msgspec.structs.replace(action, calls=calls) if calls else action
