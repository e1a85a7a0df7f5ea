"""The desk as an environment: the simulated user, the tools over one world, and the judgement at the end."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, ToolCall, text_message, tool_result
from firstchair.core.errors import BadRequest, ConfigError
from firstchair.rollout.desk.checks import verify_checks
from firstchair.rollout.desk.definitions import desk_tools, tool_fields
from firstchair.rollout.desk.phrases import ANSWERS, NEEDLESS_ANSWER
from firstchair.rollout.desk.review import violations_of
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tools import Result, execute, failure
from firstchair.rollout.desk.world import World, WorldSeed
from firstchair.rollout.environment import Observation, Outcome, Step

MAX_ACTIONS = 60
"""An episode that takes more actions is ended, not completed."""


@dataclass(frozen=True)
class Snapshot:
    """A whole episode at one moment."""

    task: DeskTask
    world: World
    messages: tuple[Message, ...]
    replies: tuple[str, ...]
    failures: dict[tuple[int, str], int]
    actions: int
    answer_form: str
    done: bool


def system_text(seed: WorldSeed) -> str:
    """What the platform tells the model at the start."""
    memory = "; ".join(seed.memory) if seed.memory else "empty"
    return f"You are the desk assistant. Today is {seed.date}, {seed.time}. Memory: {memory}"


class DeskEnvironment:
    """One episode at a time. Nothing is shared between instances but immutable data."""

    def __init__(self) -> None:
        self._state: Snapshot | None = None

    async def reset(self, task: Any, seed: int = 0) -> Observation:
        """Start a ``DeskTask``. The seed sets the numbers of cached results and how the user words an answer."""
        if not isinstance(task, DeskTask) or not task.turns:
            raise ConfigError(f"task: found {type(task).__name__}; expected a DeskTask with at least one turn")
        rng = Random(f"{task.task_id}:{seed}")
        messages = (text_message("system", system_text(task.world)), text_message("user", task.turns[0].user))
        self._state = Snapshot(
            task=task,
            world=World.start(task.world, first_result=10 + int(rng.random() * 80)),
            messages=messages,
            replies=(),
            failures={},
            actions=0,
            answer_form=ANSWERS[int(rng.random() * len(ANSWERS))],
            done=False,
        )
        return Observation(messages, desk_tools())

    async def step(self, action: Action) -> Step:
        """Run the calls, or hand the reply to the user, who goes on with the next turn.

        Raises ``BadRequest`` before ``reset``, after the end, and for calls whose ids are empty or equal.
        """
        state = self._running()
        ids = [call.id for call in action.calls]
        if len(set(ids)) != len(ids) or "" in ids:
            raise BadRequest(f"found ids {ids}; every call needs its own id", param="calls")
        if (action.kind == "final_reply") == bool(action.calls):
            raise BadRequest("a final reply has no calls, a tool call has at least one", param="kind")
        actions, replies = state.actions + 1, state.replies
        if action.calls:
            answers = tuple(self._result(state, call) for call in action.calls)
            done = actions >= MAX_ACTIONS
        else:
            replies = (*replies, action.text)
            done = len(replies) == len(state.task.turns) or actions >= MAX_ACTIONS
            answers = () if done else (text_message("user", state.task.turns[len(replies)].user),)
        self._state = Snapshot(
            task=state.task,
            world=state.world,
            messages=(*state.messages, action.to_message(), *answers),
            replies=replies,
            failures=state.failures,
            actions=actions,
            answer_form=state.answer_form,
            done=done,
        )
        return Step(answers, done, {"turn": len(replies), "truncated": done and len(replies) < len(state.task.turns)})

    async def verify(self) -> Outcome:
        """Check world and replies against the task, and list the policy rows broken on the way."""
        state = self._started()
        checks = verify_checks(state.task.checks, state.world, state.replies)
        finished = len(state.replies) == len(state.task.turns)
        return Outcome(
            completed=finished and all(check.ok for check in checks),
            checks=checks,
            violations=violations_of(state.messages),
        )

    async def snapshot(self) -> Snapshot:
        """The episode as it stands; later steps do not change it."""
        return _copy(self._started())

    async def restore(self, snapshot: Any) -> None:
        """Go back to a snapshot, of this or of another instance."""
        if not isinstance(snapshot, Snapshot):
            raise BadRequest(f"found {type(snapshot).__name__}; expected what snapshot() returned", param="snapshot")
        self._state = _copy(snapshot)

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation so far."""
        return self._started().messages

    def _started(self) -> Snapshot:
        if self._state is None:
            raise BadRequest("no episode; call reset first")
        return self._state

    def _running(self) -> Snapshot:
        state = self._started()
        if state.done:
            raise BadRequest("the episode is over; call reset")
        return state

    def _result(self, state: Snapshot, call: ToolCall) -> Message:
        result = _carry_out(state, call)
        return tool_result(call, result.text, is_error=result.is_error)


def _copy(state: Snapshot) -> Snapshot:
    return Snapshot(
        task=state.task,
        world=state.world.copy(),
        messages=state.messages,
        replies=state.replies,
        failures=dict(state.failures),
        actions=state.actions,
        answer_form=state.answer_form,
        done=state.done,
    )


def _carry_out(state: Snapshot, call: ToolCall) -> Result:
    """One call on the world: unknown tools and unfit arguments fail, so do the task's faults; then the tool runs."""
    fields = tool_fields().get(call.name)
    if fields is None:
        return failure(f"no such tool: {call.name}")
    arguments = call.parsed()
    if arguments is None:
        return failure("bad argument: not a JSON object")
    for name in fields:
        if not isinstance(arguments.get(name), str):
            return failure(f"bad argument: {name} must be a string")
    unknown = [name for name in arguments if name not in fields]
    if unknown:
        return failure(f"bad argument: unknown {unknown[0]}")
    number = len(state.replies)
    turn = state.task.turns[number]
    for fault in turn.faults:
        failed = state.failures.get((number, fault.tool), 0)
        if fault.tool == call.name and failed < fault.times:
            state.failures[number, fault.tool] = failed + 1
            return failure(fault.reason)
    if call.name == "AskUser":
        return Result(state.answer_form.format(value=turn.answer) + "." if turn.answer else NEEDLESS_ANSWER)
    return execute(state.world, call.name, arguments)
