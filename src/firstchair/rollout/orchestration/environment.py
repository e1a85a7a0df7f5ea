"""Coordinate models and tools until a problem is answered: one task as an environment.

    reset ─► system, ``Problem: …`` and the offer
    step  ─► calls carried out at once ─► observations (capped), now and then a nudge
          └► a reply without a call ─► the answer, or a nudge when no model was asked yet
    verify ─► the grader's word on the answer, and what it all took as ``Outcome.measures``

Experts and grader are shared by many environments and closed by whoever made them; the toolset is this environment's
own, and is closed with it. What is shown of a long conversation is cut by ``shown``; the record keeps all of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import msgspec

from firstchair.chat.actions import Action, Problem
from firstchair.chat.messages import Message, ToolCall, text_message, tool_result
from firstchair.core.errors import ConfigError
from firstchair.engines.expert import ExpertPool
from firstchair.rewards.answers.base import AnswerGrader, Grade
from firstchair.rollout.environment import Check, Observation, Outcome, Step
from firstchair.rollout.orchestration import prompt
from firstchair.rollout.orchestration.dispatching import Carried, Dispatcher
from firstchair.rollout.orchestration.final_answer import final_answer, salvaged_answer
from firstchair.rollout.orchestration.history import shown_history
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.measures import measures_of
from firstchair.rollout.orchestration.offer import SUBJECT, OfferOf, OnOffer, subject_of
from firstchair.rollout.orchestration.purse import Purse
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Dispatch, Notes, TrajectoryEnd
from firstchair.tools.toolset import Toolset

BUDGET_NUDGES = 2
"""How often a policy whose budget is spent is told to answer; a call of a model after that ends the rollout."""
NO_ANSWER = Grade(correct=False, how="no_answer", detail="the rollout holds nothing that could be an answer")


@dataclass
class _State:
    """Everything of one rollout. Plain values, so that a copy is a snapshot."""

    task: OrchestrationTask
    offered: dict[str, OnOffer]
    started: float
    steps: int = 0
    said: list[str] = field(default_factory=list)
    """The policy's texts."""
    heard: list[str] = field(default_factory=list)
    """What models answered."""
    carried: list[Any] = field(default_factory=list)
    waited_s: float = 0.0
    """For experts and tools; of calls made at once the longest."""
    nudges: Counter[str] = field(default_factory=Counter)
    parse_failures: int = 0
    end: TrajectoryEnd | None = None
    latency_s: float | None = None
    answer: str = ""
    salvaged: bool = False
    grade: Grade | None = None


class OrchestrationEnvironment:
    """One rollout of an ``OrchestrationTask`` at a time."""

    def __init__(
        self,
        offer_of: OfferOf,
        experts: ExpertPool,
        toolset: Toolset | None,
        grader: AnswerGrader,
        limits: OrchestrationLimits | None = None,
        *,
        system: str = prompt.SYSTEM,
        purse: Purse | None = None,
        asked: Callable[[str], None] | None = None,
    ):
        """``purse``: what models may cost in one rollout. ``asked`` is told the label of each call as it is made."""
        self._offer_of, self._toolset, self._grader, self._system = offer_of, toolset, grader, system
        self._limits = limits or OrchestrationLimits()
        self._dispatcher = Dispatcher(experts, toolset, self._limits, self._over, purse, asked)
        self._state: _State | None = None

    async def reset(self, task: OrchestrationTask, seed: int) -> Observation:
        """The problem, and what this rollout may call. Raises ``ConfigError`` when two things have one label."""
        offer = tuple(self._offer_of(task, seed))
        offered = {one.label: one for one in offer}
        if len(offered) != len(offer):
            raise ConfigError(f"offer: found {[one.label for one in offer]}; expected every label once")
        self._state = _State(task=task, offered=offered, started=time.monotonic())
        return Observation(prompt.opening(task, self._system), tuple(one.tool for one in offer))

    async def step(self, action: Action) -> Step:
        """Carry out calls, or take a reply without one for the answer."""
        state, number = self._now, self._next_step(action)
        if not action.calls:
            return self._replied(action)
        offers = [state.offered.get(call.name) for call in action.calls]
        if any(offer is None for offer in offers) or any(call.parsed() is None for call in action.calls):
            return self._failed_to_parse(self._refusals(action.calls))
        known = [offer for offer in offers if offer is not None]
        empty = next(
            (one for one, call in zip(known, action.calls, strict=True) if subject_of(one.kind, call) == ""), None
        )
        if empty is not None:
            return self._empty(empty)
        carried = await self._carry_out(known, action.calls, number)
        messages = [one.observation for one in carried]
        purse = self._dispatcher.purse
        if any(one.dispatch is None for one in carried) and state.nudges["budget"] >= BUDGET_NUDGES:
            state.end = TrajectoryEnd.CUT
        elif purse is not None and purse.is_empty:
            messages.append(self._nudge("budget", prompt.BUDGET_SPENT))
        elif len(state.carried) >= self._limits.answer_after_calls:
            messages.append(self._nudge("answer_now", prompt.ASK_FOR_ANSWER))
        return Step(tuple(messages), done=state.end is not None)

    async def unreadable(self, action: Action, problems: tuple[Problem, ...]) -> Step:
        """An action that breaks its syntax or a schema: a call with nothing in it, or a parse failure."""
        self._next_step(action)
        for call in action.calls:
            offered = self._now.offered.get(call.name)
            if offered is not None and subject_of(offered.kind, call) == "":
                return self._empty(offered)
        return self._failed_to_parse(())

    async def verify(self) -> Outcome:
        """The grade of the answer, which is salvaged where the policy gave none.

        ``undecided`` instead of a check when the grader cannot tell, and when the answer is wrong after an expert or
        a tool had broken: nobody knows what the policy would have made of its answer.
        """
        state = self._now
        if state.latency_s is None:
            state.latency_s = time.monotonic() - state.started
        answered = state.end is TrajectoryEnd.ANSWERED
        state.answer = final_answer(state.said[-1]) if answered else ""
        if not state.answer:
            state.answer = salvaged_answer(state.said, state.heard)
            state.salvaged = bool(state.answer)
        state.grade = grade = await self._grader.grade(state.task, state.answer) if state.answer else NO_ANSWER
        measures = measures_of(self._notes(), [one.name for one in state.offered.values()], state.waited_s)
        if grade.correct is None or (not grade.correct and measures["faults"]):
            return Outcome(completed=False, undecided=("correct",), measures=measures)
        check = Check(name="correct", ok=grade.correct, detail=f"{grade.how}: {grade.detail}".removesuffix(": "))
        return Outcome(completed=grade.correct, checks=(check,), measures=measures)

    async def snapshot(self) -> Any:
        """The rollout so far; what tools have written elsewhere is not in it."""
        return deepcopy(self._state)

    async def restore(self, snapshot: Any) -> None:
        """Go on from there."""
        self._state = deepcopy(snapshot)

    async def close(self) -> None:
        """Close the toolset."""
        if self._toolset is not None:
            await self._toolset.close()

    def shown(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """System, problem, and the newest exchanges that fit ``history_chars``."""
        return shown_history(messages, self._limits.history_chars)

    def notes(self) -> dict[str, Any]:
        """A ``Notes`` as plain values; empty before ``reset`` was through."""
        return {} if self._state is None else dict(msgspec.to_builtins(self._notes()))

    @property
    def _now(self) -> _State:
        assert self._state is not None, "reset comes first"
        return self._state

    def _notes(self) -> Notes:
        state = self._now
        grade = state.grade or Grade(correct=None, how="")
        took_s = time.monotonic() - state.started if state.latency_s is None else state.latency_s
        return Notes(
            end=state.end,
            final_answer=state.answer,
            salvaged=state.salvaged,
            dispatches=tuple(state.carried),
            nudges=dict(state.nudges),
            parse_failures=state.parse_failures,
            labels={one.label: one.name for one in state.offered.values() if one.label != one.name},
            latency_s=took_s,
            correct=grade.correct,
            graded_by=grade.how,
            grade_detail=grade.detail,
        )

    def _next_step(self, action: Action) -> int:
        state = self._now
        state.steps += 1
        if action.text:
            state.said.append(action.text)
        return state.steps - 1

    def _replied(self, action: Action) -> Step:
        state = self._now
        models = any(one.kind == "model" for one in state.offered.values())
        asked = any(one.kind == "model" for one in state.carried)
        if models and not asked and state.nudges["no_delegation"] < self._limits.delegation_nudges:
            return Step((self._nudge("no_delegation", prompt.NO_DELEGATION),), done=False)
        if not action.text:
            state.said.append("")
        state.end = TrajectoryEnd.ANSWERED
        return Step((), done=True)

    def _empty(self, offered: OnOffer) -> Step:
        """Take back a call with nothing in it; one too many ends the rollout."""
        state = self._now
        if state.nudges["empty_input"] >= self._limits.empty_nudges:
            state.end = TrajectoryEnd.PARSE_FAILURES
            return Step((), done=True, retracts=True)
        told = prompt.empty_call(offered.label, SUBJECT[offered.kind])
        return Step((self._nudge("empty_input", told),), done=False, retracts=True)

    def _failed_to_parse(self, messages: tuple[Message, ...]) -> Step:
        state = self._now
        state.parse_failures += 1
        if state.parse_failures >= self._limits.parse_failures:
            state.end = TrajectoryEnd.PARSE_FAILURES
        return Step(messages, done=state.end is not None)

    def _refusals(self, calls: Sequence[ToolCall]) -> tuple[Message, ...]:
        """Answers to calls of which at least one names no tool or cannot be read; none of them is carried out."""
        told = []
        for call in calls:
            if call.name not in self._now.offered:
                reason = prompt.unknown_tool(call.name, self._now.offered)
            else:
                reason = prompt.UNREADABLE if call.parsed() is None else prompt.WITH_ANOTHER
            told.append(tool_result(call, reason, is_error=True))
        return tuple(told)

    def _nudge(self, kind: str, text: str) -> Message:
        self._now.nudges[kind] += 1
        return text_message("user", text)

    def _over(self, dispatch: Dispatch) -> None:
        self._now.carried.append(dispatch)

    async def _carry_out(self, offers: Sequence[OnOffer], calls: Sequence[ToolCall], step: int) -> list[Carried]:
        """All calls of one step at once, in their order. Cancelled, they are recorded as far as they came."""
        state, before = self._now, len(self._now.carried)
        started_s = time.monotonic() - state.started
        made = [
            self._dispatcher.carry_out(one, call, step=step, started_s=started_s)
            for one, call in zip(offers, calls, strict=True)
        ]
        # One that raises has broken the rollout, but not before the others are through and recorded.
        found = [await made[0]] if len(made) == 1 else await asyncio.gather(*made, return_exceptions=True)
        carried = [one for one in found if isinstance(one, Carried)]
        made_now = [(one.dispatch, one.text) for one in carried if one.dispatch is not None]
        state.carried[before:] = [dispatch for dispatch, _ in made_now]
        state.heard += [text for dispatch, text in made_now if dispatch.kind == "model" and text.strip()]
        state.waited_s += max((one.started_s - started_s + one.latency_s for one, _ in made_now), default=0.0)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return carried
