"""One episode while it runs: the conversation so far, what was called, and how it ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
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
from firstchair.engines.base import ErrorKind, Stop
from firstchair.rollout.environment import Environment, Outcome, Step
from firstchair.rollout.environment_answer import Answer
from firstchair.rollout.environment_guard import EnvironmentFailed, GuardedEnvironment
from firstchair.rollout.policy import PolicyReply, PolicyRequest
from firstchair.traces.session import ModelCall, Session, Source, Turn, catalog_id_of


class EpisodeEnd(StrEnum):
    """Why an episode ended."""

    DONE = "done"
    """The environment said so."""
    MALFORMED = "malformed"
    """Too many actions that could not be read."""
    REFUSED = "refused"
    """The provider's filter stopped the model."""
    MAX_STEPS = "max_steps"
    MAX_TOKENS = "max_tokens"
    """The tokens of the episode were spent, or those of the action that was to be its last."""
    TOOL_TIME = "tool_time"
    WALL_CLOCK = "wall_clock"
    CONTEXT = "context"
    """The conversation outgrew the model's context window after the model had acted."""
    CANCELLED = "cancelled"
    """Somebody cancelled the generation; not judged."""
    ERROR = "error"
    """The policy's or the environment's machinery failed; nothing is said about the model. Not judged."""


@dataclass(frozen=True)
class Limits:
    """When an episode is given up. The limits that are ``None`` do not hold."""

    max_malformed: int = 3
    """Unreadable actions answered with an error message; the next one ends the episode."""
    max_tokens: int | None = None
    """Sampled tokens of all actions together; the action that reaches it is cut there."""
    tool_s: float | None = None
    """Seconds that the environment's steps may take together; looked at after each step."""
    wall_s: float | None = None
    """Seconds from the start. An action that is being generated is cut there, a step of the environment is not: its
    state would be unknown."""
    stall_s: float = 900.0
    """Longest wait for one step of a policy or an environment, so that nothing hangs a run. What takes longer has
    failed: an error, not a limit."""


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
    limits: Limits
    run: str = ""
    """Names the run in ``episode_id``, where several share a policy."""
    sampling_seed: int | None = None

    @property
    def episode_id(self) -> str:
        """Names the episode to its policy; no two that live at once may have the same."""
        return f"{self.run}{self.task_id}#{self.trial}"


class LiveEpisode:
    """Drives one environment. ``end`` is ``None`` as long as another decision is due.

    ``start``, then ``request`` and ``apply`` until ``end`` is set, then ``judge``; ``close`` in any case.
    """

    def __init__(self, plan: EpisodePlan):
        self.plan = plan
        self.end: EpisodeEnd | None = None
        self.error: str | None = None
        self.steps = 0
        self.sampled_tokens = 0
        self.tool_s = 0.0
        self.environment = GuardedEnvironment(plan.limits.stall_s)
        """What the episode is played in; whoever asks it beside the episode does so here too."""
        self._started = time.monotonic()
        self._close_error = ""
        self.malformed: list[dict[str, Any]] = []
        self._untidy: list[dict[str, Any]] = []
        """What is wrong with actions that can be read all the same."""
        self._retracted: list[dict[str, Any]] = []
        self._notes: dict[str, Any] | None = None
        self._created_at = utc_now()
        self._messages: list[Message] = []
        self._tools: tuple[Tool, ...] = ()
        self._calls: list[ModelCall] = []
        self._turn_starts: list[int] = []
        self._call_ids: set[str] = set()
        self._context_end = 0

    async def start(self, env_factory: Callable[[], Environment]) -> None:
        """Reset a new environment to the plan's task."""
        reset = self.environment.reset(env_factory, self.plan.task, self.plan.seed)
        observation = await self._answered(reset)
        if observation is None:
            return
        self._tools = tuple(observation.tools)
        self._observe(observation.messages)
        if any(message.role == "assistant" for message in observation.messages):
            self._context_end = len(observation.messages)

    def request(self) -> PolicyRequest:
        """What the policy is to decide now. Raises ``EnvironmentFailed`` where a conductor cannot say."""
        messages = tuple(self._messages)
        shown = self.environment.shown(messages)
        return PolicyRequest(
            episode_id=self.plan.episode_id,
            messages=shown,
            tools=self._tools,
            seed=self.plan.sampling_seed,
            max_tokens=self._tokens_left(),
            left_out=len(messages) - len(shown),
        )

    def wait_s(self) -> float:
        """How long the policy may take for its next action."""
        limits = self.plan.limits
        return limits.stall_s if limits.wall_s is None else min(limits.stall_s, limits.wall_s - self.wall_s)

    @property
    def wall_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._started

    def _tokens_left(self) -> int | None:
        allowed = self.plan.limits.max_tokens
        return None if allowed is None else allowed - self.sampled_tokens

    def note_limits(self) -> None:
        """End the episode if a limit is reached."""
        limits, left = self.plan.limits, self._tokens_left()
        if self.steps >= self.plan.max_steps:
            self.end = EpisodeEnd.MAX_STEPS
        elif left is not None and left <= 0:
            self.end = EpisodeEnd.MAX_TOKENS
        elif limits.tool_s is not None and self.tool_s >= limits.tool_s:
            self.end = EpisodeEnd.TOOL_TIME
        elif limits.wall_s is not None and self.wall_s >= limits.wall_s:
            self.end = EpisodeEnd.WALL_CLOCK

    async def apply(self, reply: PolicyReply) -> None:
        """Carry out one decision."""
        if reply.error is not None or (reply.action is None and not reply.malformed):
            self._note_call(reply, None)
            self._note_failure(reply)
            return
        self.steps += 1
        if reply.call is not None:
            self.sampled_tokens += reply.call.usage.output
        message = self._message(reply)
        self._note_call(reply, len(self._messages))
        self._messages.append(message)
        if reply.stop is Stop.REFUSAL:
            self.end = EpisodeEnd.REFUSED
        elif reply.stop is Stop.LENGTH and self._tokens_left() == 0:
            self.end = EpisodeEnd.MAX_TOKENS
        elif reply.malformed:
            await self._take_malformed(reply, message)
        else:
            if reply.problems:
                self._untidy.append(self._problems_of(reply))
            await self._step(_with_calls(reply.action, message.tool_calls))
        if self.end is None:
            self.note_limits()

    def _note_failure(self, reply: PolicyReply) -> None:
        if reply.error_kind is ErrorKind.CONTEXT_OVERFLOW and self.steps:
            self.end = EpisodeEnd.CONTEXT
        else:
            self.end = EpisodeEnd.CANCELLED if reply.stop is Stop.CANCELLED else EpisodeEnd.ERROR
            self.error = _reason(reply)

    async def judge(self) -> Outcome | None:
        """The environment's verdict on its present state; ``None`` after an error or a cancellation."""
        if self.error is not None or not self.environment.exists:
            return None
        return await self._answered(self.environment.verify())

    async def close(self) -> None:
        """Let the environment release what it holds; one that cannot is noted in the session's meta."""
        self._notes = self.environment.notes()
        self._close_error = await self.environment.close()

    def session(self, outcome: Outcome | None) -> Session:
        """The record. Its id is content-addressed: the same conversation of the same policy is the same session."""
        plan, messages = self.plan, tuple(self._messages)
        labels: dict[str, Any] = {"task_id": plan.task_id, "trial": plan.trial, "end": str(self.end)}
        meta: dict[str, Any] = {"policy": plan.policy, "seed": plan.seed}
        if outcome is not None:
            labels["completed"] = outcome.completed
            meta["checks"] = [[check.name, check.ok, check.detail] for check in outcome.checks]
            meta["violations"] = list(outcome.violations)
            if outcome.measures:
                meta["measures"] = dict(outcome.measures)
        if self.error is not None:
            labels["error"] = self.error
        if self.malformed:
            meta["malformed"] = self.malformed
        if self._untidy:
            meta["untidy"] = self._untidy
        if self._retracted:
            meta["retracted"] = self._retracted
        if self._notes is not None:
            meta["environment"] = self._notes
        if self._close_error:
            meta["close_error"] = self._close_error
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
        clock = time.monotonic()
        step = await self._answered(self.environment.step(action))
        self.tool_s += time.monotonic() - clock
        if step is not None:
            self._follow(step)

    def _follow(self, step: Step) -> None:
        if step.retracts:
            self._retract()
        self._observe(step.messages)
        if step.done:
            self.end = EpisodeEnd.DONE

    def _retract(self) -> None:
        """Take the last message out of the conversation."""
        self._retracted.append(msgspec.to_builtins(self._messages.pop()))
        index = len(self._messages)
        self._calls = [
            msgspec.structs.replace(call, message_index=None) if call.message_index == index else call
            for call in self._calls
        ]
        for noted in (self.malformed, self._untidy):
            if noted and noted[-1]["message_index"] == index:
                noted[-1]["message_index"] = None

    async def _take_malformed(self, reply: PolicyReply, message: Message) -> None:
        """Note an action that could not be read, and have it answered unless there were too many."""
        self.malformed.append({**self._problems_of(reply), "raw_text": reply.raw_text})
        told = False
        if self.environment.conducts:
            action = reply.action or Action(kind="final_reply", text=reply.raw_text)
            action = _with_calls(action, message.tool_calls)
            step = await self._answered(self.environment.unreadable(action, reply.problems))
            if step is None:
                return
            self._follow(step)
            told = bool(step.messages)
        if self.end is None and len(self.malformed) > self.plan.limits.max_malformed:
            # What a reply that was cut would have become is not known.
            self.end = EpisodeEnd.MAX_TOKENS if reply.stop is Stop.LENGTH else EpisodeEnd.MALFORMED
        elif self.end is None and not told:
            self._answer_malformed(reply, message)

    def _problems_of(self, reply: PolicyReply) -> dict[str, Any]:
        """What was wrong with the last message."""
        return {
            "message_index": len(self._messages) - 1,
            "problems": list(msgspec.to_builtins(reply.problems)),
        }

    def _answer_malformed(self, reply: PolicyReply, message: Message) -> None:
        """Tell the model what was wrong, as a harness does: as results of its calls, or in words if it has none."""
        reasons = [problem.message for problem in reply.problems] or ["it could not be read"]
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

    async def _answered(self, answer: Awaitable[Answer]) -> Answer | None:
        """The environment's answer; ``None`` when it failed, which has then ended the episode."""
        try:
            return await answer
        except EnvironmentFailed as failed:
            self.fail(str(failed))
            return None

    def fail(self, reason: str) -> None:
        """End the episode without a verdict."""
        self.end, self.error = EpisodeEnd.ERROR, reason


def _reason(reply: PolicyReply) -> str:
    """Why there is no action; begins with the kind of error where it is known, so that errors can be counted."""
    error = reply.error or "policy: a reply without action, problem or error"
    kind = reply.error_kind
    return error if kind is None or error.startswith(f"{kind}:") else f"{kind}: {error}"


def _with_calls(action: Action | None, calls: tuple[ToolCall, ...]) -> Action:
    assert action is not None
    return msgspec.structs.replace(action, calls=calls) if calls else action
