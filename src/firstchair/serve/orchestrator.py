"""One request played as one rollout: what it asks for, within its budget and its time.

Asked ─► problem, purse, limits ─► run_rollout ─► traced ─► Routed
                                    └─ whatever ends the caller's task ends everything under way
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from firstchair.catalog.prices import PriceTable
from firstchair.catalog.token_counts import NANO
from firstchair.core.seeds import seed_of
from firstchair.engines.base import ErrorKind
from firstchair.engines.expert import ExpertPool
from firstchair.gateway.dialects.base import Failure, FailureKind
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.live_episode import Limits
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.offer import OfferOf
from firstchair.rollout.orchestration.purse import Purse
from firstchair.rollout.orchestration.run import policy_cost_nano, traced
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd
from firstchair.rollout.policy import EpisodeTokens, Policy, PolicyReply, PolicyRequest, TokenPolicy
from firstchair.rollout.rollouts import Rollout, RolloutPlan, run_rollout
from firstchair.serve.problem import problem_of, system_of
from firstchair.serve.requests import Asked
from firstchair.tools.toolset import Toolset

_FAILURES: Mapping[str, FailureKind] = MappingProxyType(
    {
        ErrorKind.CONTEXT_OVERFLOW: FailureKind.CONTEXT_OVERFLOW,
        ErrorKind.TIMEOUT: FailureKind.TIMEOUT,
        ErrorKind.RATE_LIMITED: FailureKind.RATE_LIMIT,
    }
)
"""Why the policy gave no action → what the client is told; anything else is a server error."""


class Failed(Exception):
    """A request without an answer. ``routed`` is what it took where that is known."""

    def __init__(self, failure: Failure, routed: Routed | None = None):
        self.failure, self.routed = failure, routed
        super().__init__(failure.message)


@dataclass(frozen=True)
class Shared:
    """What all requests use. Whoever opened it closes it."""

    policy: Policy
    offer_of: OfferOf
    experts: ExpertPool
    toolset: Callable[[], Toolset | None]
    """The tools of one request."""
    prices: PriceTable
    tracer: Any = None


@dataclass(frozen=True)
class Defaults:
    """What holds for a request that says nothing else, and what it cannot change."""

    max_steps: int
    budget_usd: float | None
    preference: Mapping[str, float]
    limits: OrchestrationLimits
    answer_after_s: float
    timeout_s: float


@dataclass(frozen=True)
class Routed:
    """An answer, and how it came to be."""

    rollout: Rollout
    found: Trajectory
    budget_spent: bool


class Ungraded:
    """An ``AnswerGrader`` for answers that nobody knows beforehand."""

    async def grade(self, task: OrchestrationTask, answer: str) -> Grade:
        """No grade."""
        return Grade(correct=None, how="served")

    async def close(self) -> None:
        """There is nothing to release."""


async def route(
    asked: Asked,
    request_id: str,
    shared: Shared,
    defaults: Defaults,
    *,
    parent: Any = None,
    on_call: Callable[[str], None] | None = None,
) -> Routed:
    """The answer to ``asked``. ``parent`` is the client's trace context; ``on_call`` hears each label that is asked.

    Raises ``Failed`` where the policy broke or time ran out; an expert that fails is neither. Cancelled, it leaves
    nothing running.
    """
    ask, wishes = asked.ask, asked.wishes
    budget_usd = defaults.budget_usd if wishes.budget_usd is None else wishes.budget_usd
    preference = defaults.preference if wishes.preference is None else wishes.preference
    purse = None if budget_usd is None else Purse(max(1, round(budget_usd * NANO)))
    task = OrchestrationTask(
        task_id=request_id,
        problem=problem_of(ask.messages, budget_usd=budget_usd, preference=preference),
        preference=dict(preference),
    )
    system = system_of(ask.messages)

    def environment() -> OrchestrationEnvironment:
        return OrchestrationEnvironment(
            shared.offer_of,
            shared.experts,
            shared.toolset(),
            Ungraded(),
            defaults.limits,
            system=system,
            purse=purse,
            asked=on_call,
        )

    plan = RolloutPlan(
        samples=1,
        seed=seed_of(request_id),
        max_steps=wishes.max_steps or defaults.max_steps,
        limits=Limits(max_tokens=ask.max_tokens, wall_s=defaults.answer_after_s),
    )
    policy = shared.policy if purse is None else _Paying(shared.policy, purse, shared.prices)
    try:
        async with asyncio.timeout(defaults.timeout_s):
            rollout = await run_rollout(environment, task, 0, policy, plan)
    except TimeoutError:
        message = f"there was no answer within {defaults.timeout_s:g} s"
        raise Failed(Failure(kind=FailureKind.TIMEOUT, message=message)) from None
    found = traced(rollout, shared.prices, shared.tracer, parent=parent)
    routed = Routed(rollout, found, budget_spent=purse is not None and purse.is_empty)
    if found.end is TrajectoryEnd.FAILED:
        raise Failed(_failure(found.error or ""), routed)
    return routed


def _failure(error: str) -> Failure:
    """By the kind that an error begins with. A server's own words stay here: they may tell addresses and names."""
    word = error.partition(":")[0]
    kind = _FAILURES.get(word, FailureKind.SERVER_ERROR)
    if kind is FailureKind.CONTEXT_OVERFLOW:
        return Failure(kind=kind, message="the conversation is longer than the model that leads can read; shorten it")
    known = word if word in set(map(str, ErrorKind)) else "error"
    return Failure(kind=kind, message=f"the model that leads could not answer: {known}")


class _Paying:
    """A policy whose own calls, where their price is known, are paid from the purse too."""

    def __init__(self, policy: Policy, purse: Purse, prices: PriceTable):
        self.name, self._policy, self._purse, self._prices = policy.name, policy, purse, prices

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """As the policy does."""
        replies = await self._policy.act(requests)
        cost = policy_cost_nano([reply.call for reply in replies if reply.call is not None], self._prices)
        if cost is not None:
            self._purse.take(cost)
        return replies

    def take(self, episode_id: str) -> EpisodeTokens:
        """The tokens that the policy kept, where it keeps any."""
        return self._policy.take(episode_id) if isinstance(self._policy, TokenPolicy) else EpisodeTokens()
