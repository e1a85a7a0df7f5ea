"""One request played as one rollout: what it asks for, within its budget and its time.

Asked ─► problem, purse, limits ─► run_rollout ─► traced ──► Routed
                                    └─ cut short: everything under way is ended, and Routed says what it had cost
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import msgspec

from firstchair.catalog.prices import PriceTable
from firstchair.catalog.token_counts import NANO
from firstchair.core.clock import utc_now
from firstchair.core.seeds import seed_of
from firstchair.engines.base import ErrorKind
from firstchair.engines.expert import ExpertPool
from firstchair.gateway.dialects.base import Failure, FailureKind
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.live_episode import EpisodeEnd, Limits
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.limits import OrchestrationLimits
from firstchair.rollout.orchestration.offer import OfferOf
from firstchair.rollout.orchestration.purse import Purse
from firstchair.rollout.orchestration.run import policy_cost_nano, traced, with_spans
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Notes, Trajectory, TrajectoryEnd
from firstchair.rollout.policy import EpisodeTokens, Policy, PolicyReply, PolicyRequest, TokenPolicy
from firstchair.rollout.rollouts import RolloutPlan, run_rollout
from firstchair.serve.problem import problem_of, system_of
from firstchair.serve.requests import Asked
from firstchair.tools.toolset import Toolset
from firstchair.traces.session import ModelCall, Session

_FAILURES: Mapping[str, FailureKind] = MappingProxyType(
    {
        ErrorKind.CONTEXT_OVERFLOW: FailureKind.CONTEXT_OVERFLOW,
        ErrorKind.TIMEOUT: FailureKind.TIMEOUT,
        ErrorKind.RATE_LIMITED: FailureKind.RATE_LIMIT,
    }
)
"""Why the policy gave no action → what the client is told; anything else is a server error."""


CANCELLED = "cancelled"
"""End of a request that was cut short: its time was over, its client left, or the process ended."""


class Failed(Exception):
    """A request without an answer."""

    def __init__(self, failure: Failure):
        self.failure = failure
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
    """What a request came to: its answer where there is one, and what it took."""

    found: Trajectory
    calls: tuple[ModelCall, ...]
    """Of the policy."""
    budget_spent: bool

    @property
    def steps(self) -> int:
        """Actions of the policy."""
        return int(self.found.meta["steps"])

    @property
    def end(self) -> str:
        """How it ended: a ``TrajectoryEnd``, or ``CANCELLED``."""
        return CANCELLED if self.episode_end is EpisodeEnd.CANCELLED else str(self.found.end)

    @property
    def episode_end(self) -> EpisodeEnd:
        """The same, as the episode has it."""
        return EpisodeEnd(self.found.meta["episode_end"])


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
    keep: Callable[[Routed], None],
    parent: Any = None,
    on_call: Callable[[str], None] | None = None,
) -> Routed:
    """The answer to ``asked``. ``parent`` is the client's trace context; ``on_call`` hears each label that is asked.

    ``keep`` hears once what it came to, whether there is an answer, a failure, or it was cancelled on the way. Raises
    ``Failed`` where the policy broke or time ran out; an expert that fails is neither. Cancelled, it leaves nothing
    running.
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

    environments: list[OrchestrationEnvironment] = []

    def environment() -> OrchestrationEnvironment:
        made = OrchestrationEnvironment(
            shared.offer_of,
            shared.experts,
            shared.toolset(),
            Ungraded(),
            defaults.limits,
            system=system,
            purse=purse,
            asked=on_call,
        )
        environments.append(made)
        return made

    plan = RolloutPlan(
        samples=1,
        seed=seed_of(request_id),
        max_steps=wishes.max_steps or defaults.max_steps,
        limits=Limits(max_tokens=ask.max_tokens, wall_s=defaults.answer_after_s),
    )
    policy, created_at = _Noting(shared.policy, purse, shared.prices), utc_now()

    def cut() -> Routed:
        notes = environments[0].notes() if environments else {}
        session = Session(session_id=request_id, source="rollout", created_at=created_at, calls=tuple(policy.calls))
        found = _cut_short(task, session, msgspec.convert(notes, Notes), policy, shared.prices)
        return Routed(with_spans(found, session, shared.tracer, parent), session.calls, _is_spent(purse))

    try:
        async with asyncio.timeout(defaults.timeout_s):
            rollout = await run_rollout(environment, task, 0, policy, plan)
    except TimeoutError:
        keep(cut())
        message = f"there was no answer within {defaults.timeout_s:g} s"
        raise Failed(Failure(kind=FailureKind.TIMEOUT, message=message)) from None
    except asyncio.CancelledError:
        keep(cut())
        raise
    found = traced(rollout, shared.prices, shared.tracer, parent=parent)
    routed = Routed(found, rollout.episode.session.calls, _is_spent(purse))
    keep(routed)
    if found.end is TrajectoryEnd.FAILED:
        raise Failed(_failure(found.error or ""))
    return routed


def _cut_short(
    task: OrchestrationTask, session: Session, notes: Notes, policy: _Noting, prices: PriceTable
) -> Trajectory:
    """The record of a request that was cut short: no conversation, but every call and what it cost."""
    used = [call.usage for call in session.calls]
    return Trajectory(
        task_id=task.task_id,
        sample=0,
        messages=(),
        tools=(),
        end=TrajectoryEnd.FAILED,
        dispatches=notes.dispatches,
        nudges=notes.nudges,
        parse_failures=notes.parse_failures,
        prompt_tokens=sum(usage.input + usage.cache_read + usage.cache_write for usage in used),
        completion_tokens=sum(usage.output for usage in used),
        policy_model=policy.name,
        policy_cost_nano=policy_cost_nano(session.calls, prices),
        latency_s=notes.latency_s,
        error=CANCELLED,
        meta={"episode_end": str(EpisodeEnd.CANCELLED), "steps": policy.steps, "session_id": None},
    )


def _is_spent(purse: Purse | None) -> bool:
    return purse is not None and purse.is_empty


def _failure(error: str) -> Failure:
    """By the kind that an error begins with. A server's own words stay here: they may tell addresses and names."""
    word = error.partition(":")[0]
    kind = _FAILURES.get(word, FailureKind.SERVER_ERROR)
    if kind is FailureKind.CONTEXT_OVERFLOW:
        return Failure(kind=kind, message="the conversation is longer than the model that leads can read; shorten it")
    known = word if word in set(map(str, ErrorKind)) else "error"
    return Failure(kind=kind, message=f"the model that leads could not answer: {known}")


class _Noting:
    """A policy whose calls are noted as they come back, and, where their price is known, paid from the purse too."""

    def __init__(self, policy: Policy, purse: Purse | None, prices: PriceTable):
        self.name, self._policy, self._purse, self._prices = policy.name, policy, purse, prices
        self.calls: list[ModelCall] = []
        self.steps = 0

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """As the policy does."""
        replies = await self._policy.act(requests)
        made = [reply.call for reply in replies if reply.call is not None]
        self.calls += made
        self.steps += sum(reply.error is None for reply in replies)
        cost = policy_cost_nano(made, self._prices)
        if cost is not None and self._purse is not None:
            self._purse.take(cost)
        return replies

    def take(self, episode_id: str) -> EpisodeTokens:
        """The tokens that the policy kept, where it keeps any."""
        return self._policy.take(episode_id) if isinstance(self._policy, TokenPolicy) else EpisodeTokens()
