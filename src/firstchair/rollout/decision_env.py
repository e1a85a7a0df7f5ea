"""One decision as an environment: the model acts once, and code says how good that was.

Five checks, by the verifiers that rewards use: ``schema_valid``, ``right_tool``, ``arguments``, ``termination``,
``efficiency``. An action that could not be read never arrives here, so without one all five fail: what is malformed
is never taken for "no call". Arguments that the matchers leave to a judge are ``Outcome.undecided``.
"""

from __future__ import annotations

from typing import Any

from firstchair.catalog.call_rules import Matchers
from firstchair.chat.actions import Action
from firstchair.core.errors import BadRequest, ConfigError
from firstchair.rewards.samples import DecisionReply, NoValue, sample_of_decision
from firstchair.rewards.verifiers import VERIFIERS
from firstchair.rollout.environment import Check, Observation, Outcome, Step
from firstchair.rollout.live_episode import Limits
from firstchair.rollout.prompt_record import PromptRecord

CHECKS = ("schema_valid", "right_tool", "arguments", "termination", "efficiency")

ONE_ACTION = Limits(max_malformed=0)
"""The limits to play it with: an action that cannot be read is the one action, and gets no second try."""


class DecisionEnvironment:
    """Plays ``PromptRecord``s; wants ``RolloutPlan(…, limits=ONE_ACTION)``."""

    def __init__(self) -> None:
        self._record: PromptRecord | None = None
        self._action: Action | None = None

    async def reset(self, task: Any, seed: int = 0) -> Observation:
        """The prompt. There is nothing random in it."""
        if not isinstance(task, PromptRecord):
            raise ConfigError(f"task: found {type(task).__name__}; expected a PromptRecord")
        self._record, self._action = task, None
        return Observation(task.messages, task.tools)

    async def step(self, action: Action) -> Step:
        """Take the action. No tool runs, and the episode is over."""
        if self._record is None or self._action is not None:
            raise BadRequest("one action was taken, or there was no reset; call reset")
        self._action = action
        return Step((), done=True)

    async def verify(self) -> Outcome:
        """The checks on the action; all fail when there is none."""
        if self._record is None:
            raise BadRequest("no episode; call reset first")
        if self._action is None:
            return Outcome(completed=False, checks=tuple(Check(name, False, "no readable action") for name in CHECKS))
        return judged(self._record, self._action)

    async def snapshot(self) -> Any:
        """The record and the action, both immutable."""
        return self._record, self._action

    async def restore(self, snapshot: Any) -> None:
        """Back to it."""
        self._record, self._action = snapshot


def judged(record: PromptRecord, action: Action) -> Outcome:
    """The checks on ``action``. A check holds where its verifier gives 1."""
    made = DecisionReply(record.decision(), record.tools, action, Matchers.of(record.matchers))
    sample = sample_of_decision(record.id, made, record.messages)
    checks: list[Check] = []
    undecided: list[str] = []
    for name in CHECKS:
        value = VERIFIERS[name](sample)
        if isinstance(value, NoValue):
            undecided.append(name)
        else:
            checks.append(Check(name, value == 1.0, f"{value:g}"))
    completed = not undecided and all(check.ok for check in checks)
    return Outcome(completed=completed, checks=tuple(checks), undecided=tuple(undecided))
