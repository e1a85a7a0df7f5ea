"""Environments of the ``verifiers`` package (0.4, ``verifiers.v1``): its tasks, its tools, its rewards, our policy.

``verifiers`` is not among this package's extras: it pins an older ``openai``. Install both where you play.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from firstchair.core.errors import ConfigError, GradingError, RunFailed
from firstchair.rollout.environment import Check, Outcome
from firstchair.rollout.harness_environment import MODEL, HarnessEnvironment


@dataclass(frozen=True)
class VerifiersTask:
    """One task of a taskset."""

    task_id: str
    """The task's own key."""
    task: Any


def verifiers_tasks(taskset: Iterable[Any], *, limit: int | None = None) -> list[VerifiersTask]:
    """The tasks of a ``verifiers`` taskset (``vf.load_taskset(config)``, or a ``Taskset`` of yours), in its order.

    A taskset without end needs ``limit``. Raises ``ConfigError`` otherwise.
    """
    if limit is None and getattr(taskset, "INFINITE", False):
        raise ConfigError(f"{type(taskset).__name__}: has no end; pass limit")
    return [VerifiersTask(str(task.key), task) for task in itertools.islice(taskset, limit)]


def verifiers_environment(taskset: Any, *, completed_at: float = 1.0) -> HarnessEnvironment:
    """An environment that plays one ``VerifiersTask`` of ``taskset`` at a time, in the present process.

    The task's ``setup``, tools, ``finalize``, rewards, metrics and judges run as in ``verifiers``, with a chat loop
    in place of its harness programs: the model answers, its calls go to the task's tool servers, until it answers
    without a call. ``Outcome.score`` is the trace's reward (the weighted sum), each reward is a check that holds when
    its score is at least ``completed_at``, and the whole is completed when the sum is.

    Raises ``ConfigError`` when ``verifiers`` is not installed.
    """
    try:
        import verifiers.v1 as vf
        from verifiers.v1.mcp.launch import serve_shared

        from firstchair.rollout.verifiers_harness import ChatHarness
    except ImportError as error:
        raise ConfigError(
            f"{error.name}: not installed; run: pip install 'verifiers>=0.4' 'firstchair[mcp]'"
        ) from error

    async def run(task: VerifiersTask, seed: int, url: str) -> Outcome:
        client = vf.EvalClientConfig(base_url=f"{url}/v1", api_key_var="FIRSTCHAIR_NO_KEY")
        config = vf.AgentConfig(
            model=MODEL, client=client, harness=vf.HarnessConfig(id="null"), runtime=vf.SubprocessConfig()
        )
        agent = vf.Agent(config)
        agent.harness = ChatHarness(agent.config.harness)
        toolsets = taskset.toolsets(taskset.config)
        async with serve_shared(toolsets) if toolsets else nullcontext({}) as shared:
            trace = await agent.run(task.task, tools=shared)
        return outcome_of_trace(trace, completed_at)

    return HarnessEnvironment(run)


def outcome_of_trace(trace: Any, completed_at: float) -> Outcome:
    """The outcome in a finished trace.

    Raises ``RunFailed`` when the rollout failed, and ``GradingError`` when a reward is missing.
    """
    if not trace.ok:
        errors = [f"{error.type}: {error.message}" for error in trace.errors] or [str(trace.stop_condition)]
        raise RunFailed(f"verifiers: {'; '.join(errors)}")
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing:
        raise GradingError(f"verifiers: no value for the reward {', '.join(missing)}")
    checks = [
        Check(name=name, ok=reward.score >= completed_at, detail=f"{reward.score:g} × {reward.weight:g}")
        for name, reward in trace.rewards.items()
    ]
    return Outcome(completed=trace.reward >= completed_at, checks=tuple(checks), score=float(trace.reward))
