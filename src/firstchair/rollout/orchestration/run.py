"""Tasks × samples played to trajectories, each as it ends, and every one accounted for.

    tasks ─► run_rollouts ─► Rollout ─► traced ─► Trajectory ─► Tally

Who decides himself what is played next (rejection sampling, a server) takes ``run_rollout`` and ``traced``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import msgspec

from firstchair.catalog.prices import PriceTable
from firstchair.catalog.token_counts import NANO, TokenCounts
from firstchair.rollout.environment import Environment
from firstchair.rollout.live_episode import EpisodeEnd
from firstchair.rollout.orchestration.spans import emit_spans
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Notes, Trajectory, TrajectoryEnd
from firstchair.rollout.policy import Policy
from firstchair.rollout.rollouts import Rollout, RolloutPlan, run_rollouts
from firstchair.traces.session import ModelCall, Session

ENDS: Mapping[EpisodeEnd, TrajectoryEnd] = MappingProxyType(
    {
        EpisodeEnd.DONE: TrajectoryEnd.ANSWERED,
        EpisodeEnd.MALFORMED: TrajectoryEnd.PARSE_FAILURES,
        EpisodeEnd.REFUSED: TrajectoryEnd.CUT,
        EpisodeEnd.MAX_STEPS: TrajectoryEnd.MAX_STEPS,
        EpisodeEnd.MAX_TOKENS: TrajectoryEnd.CUT,
        EpisodeEnd.TOOL_TIME: TrajectoryEnd.CUT,
        EpisodeEnd.WALL_CLOCK: TrajectoryEnd.CUT,
        EpisodeEnd.CONTEXT: TrajectoryEnd.CUT,
        EpisodeEnd.CANCELLED: TrajectoryEnd.FAILED,
        EpisodeEnd.ERROR: TrajectoryEnd.FAILED,
    }
)
"""How an episode ended, where the environment did not end it itself."""


async def run_orchestrations(
    env_factory: Callable[[], Environment],
    tasks: Iterable[OrchestrationTask],
    policy: Policy,
    plan: RolloutPlan,
    *,
    prices: PriceTable | None = None,
    tracer: Any = None,
) -> AsyncGenerator[Trajectory, None]:
    """Play every task ``plan.samples`` times; one trajectory for each, in no order, as it ends.

    ``env_factory`` makes ``OrchestrationEnvironment``s. A rollout that broke comes too, with ``end`` ``failed`` and
    its error. ``prices`` say what the policy's own calls cost, ``tracer`` is OpenTelemetry's. Leaving early cancels
    what is under way; use ``contextlib.aclosing`` where that must have happened at once.
    """
    async with aclosing(run_rollouts(env_factory, tasks, policy, plan)) as played:
        async for rollout in played:
            yield traced(rollout, prices, tracer)


def traced(
    rollout: Rollout, prices: PriceTable | None = None, tracer: Any = None, *, parent: Any = None
) -> Trajectory:
    """The record of a rollout, and its spans written where there is a ``tracer``, below ``parent`` (a context)."""
    return with_spans(trajectory_of(rollout, prices), rollout.episode.session, tracer, parent)


def with_spans(found: Trajectory, session: Session, tracer: Any, parent: Any) -> Trajectory:
    """``found``, which was recorded as ``session``, with the id of its trace once that is written."""
    trace_id = "" if tracer is None else emit_spans(tracer, session, found, parent)
    return msgspec.structs.replace(found, trace_id=trace_id) if trace_id else found


def trajectory_of(rollout: Rollout, prices: PriceTable | None = None) -> Trajectory:
    """The record of a rollout that was played in an ``OrchestrationEnvironment``."""
    episode, session = rollout.episode, rollout.episode.session
    notes = msgspec.convert(session.meta.get("environment") or {}, Notes)
    end, error = ENDS[episode.end], episode.error
    if end is TrajectoryEnd.ANSWERED:
        end = notes.end or end
    if end is TrajectoryEnd.FAILED and error is None:
        error = str(episode.end)
    used = [call.usage for call in session.calls]
    return Trajectory(
        task_id=episode.task_id,
        sample=rollout.sample,
        messages=session.messages,
        tools=episode.tools,
        labels=notes.labels,
        end=end,
        final_answer=notes.final_answer,
        salvaged=notes.salvaged,
        dispatches=notes.dispatches,
        nudges=notes.nudges,
        parse_failures=notes.parse_failures,
        prompt_tokens=sum(usage.input + usage.cache_read + usage.cache_write for usage in used),
        completion_tokens=sum(usage.output for usage in used),
        policy_model=next((call.model for call in session.calls if call.model), str(session.meta["policy"])),
        policy_cost_nano=policy_cost_nano(session.calls, prices),
        latency_s=notes.latency_s,
        seed=rollout.sampling_seed,
        error=error,
        correct=None if end is TrajectoryEnd.FAILED else notes.correct,
        graded_by=notes.graded_by,
        grade_detail=notes.grade_detail,
        meta={"episode_end": str(episode.end), "steps": episode.steps, "session_id": session.session_id},
    )


def policy_cost_nano(calls: Iterable[ModelCall], prices: PriceTable | None) -> int | None:
    """Nano-USD of the policy's calls; ``None`` when one has no known price."""
    total = 0
    for call in calls:
        usage = call.usage
        counts = TokenCounts(
            input=usage.input, cache_read=usage.cache_read, cache_write_5m=usage.cache_write, output=usage.output
        )
        if call.cost_usd is not None:
            cost: int | None = round(call.cost_usd * NANO)
        else:
            cost = None if prices is None else prices.cost_nano(call.model, counts, call.provider)
        if cost is None:
            return None
        total += cost
    return total


@dataclass
class Tally:
    """What became of all trajectories; ``add`` each once."""

    ends: Counter[str] = field(default_factory=Counter)
    grades: Counter[str] = field(default_factory=Counter)
    """``correct``, ``wrong``, ``ungraded``; those that failed are among the last."""
    salvaged: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    """Of trajectories that failed, by the first word of the error."""
    first_error: str | None = None
    """The whole of the first, which says where."""
    dispatches: Counter[str] = field(default_factory=Counter)
    """Name in the catalog → calls."""
    faults: Counter[str] = field(default_factory=Counter)
    """``name: kind of error`` → calls without an answer."""
    nudges: Counter[str] = field(default_factory=Counter)
    cost_nano: int = 0
    """Of all calls of experts whose price is known."""
    unpriced: int = 0
    """Calls of experts whose price is not."""

    def add(self, found: Trajectory) -> None:
        """Count one."""
        self.ends[str(found.end)] += 1
        self.grades["ungraded" if found.correct is None else "correct" if found.correct else "wrong"] += 1
        self.salvaged += found.salvaged
        if found.error is not None:
            self.errors[found.error.partition(": ")[0]] += 1
            self.first_error = self.first_error or found.error
        self.nudges.update(found.nudges)
        self.cost_nano += found.known_cost_nano
        self.unpriced += found.unpriced
        for one in found.dispatches:
            self.dispatches[one.name] += 1
            if one.error_kind is not None:
                self.faults[f"{one.name}: {one.error_kind}"] += 1

    @property
    def trajectories(self) -> int:
        """How many were added."""
        return self.ends.total()
