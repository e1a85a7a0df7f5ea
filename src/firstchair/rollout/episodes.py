"""Many environments driven by one policy, each episode recorded as a session.

    tasks ─► reset ─► request ─► policy.act ─► step ─► … ─► verify ─► Episode
                         ▲                      │
                         └── results, or what was wrong with the action

One failing episode never touches another: whatever an environment or a policy raises ends that episode with
``error`` set and no outcome, to be counted apart. A failure of the machinery is never a score.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Protocol

from firstchair.chat.messages import Tool
from firstchair.core.concurrency import was_cancelled
from firstchair.core.errors import RunFailed
from firstchair.core.seeds import seed_of
from firstchair.rollout.environment import Environment, Outcome
from firstchair.rollout.environment_guard import EnvironmentFailed
from firstchair.rollout.live_episode import EpisodeEnd, EpisodePlan, Limits, LiveEpisode
from firstchair.rollout.policy import EpisodeTokens, Policy, PolicyReply, PolicyRequest, TokenPolicy
from firstchair.traces.session import Session, Source

NO_LIMITS = Limits()
"""What holds unless told otherwise."""

__all__ = ["Episode", "EpisodeEnd", "Limits", "Policy", "PolicyReply", "PolicyRequest", "drive", "run_episodes"]


class Task(Protocol):
    """What every task has; the rest is between the task and its environment."""

    @property
    def task_id(self) -> str: ...


@dataclass(frozen=True)
class Episode:
    """One finished episode."""

    number: int
    """Index of its task in ``tasks``."""
    task_id: str
    trial: int
    """0 for the first episode of a task, 1 for the second of the same ``task_id``, and so on."""
    session: Session
    """Labels: ``task_id``, ``trial``, ``end`` and, when it was judged, ``completed``."""
    tools: tuple[Tool, ...]
    """What was offered; ``session.catalog_id`` is its content address."""
    outcome: Outcome | None
    """``None`` exactly when ``error`` is set (it failed or was cancelled): not judged, left out of every rate."""
    end: EpisodeEnd
    steps: int
    """Actions taken, malformed ones included."""
    malformed: int
    sampled_tokens: int
    """Of all actions, where the policy tells; 0 otherwise."""
    tool_s: float
    """Seconds that the environment's steps took together."""
    wall_s: float
    error: str | None = None

    @property
    def completed(self) -> bool | None:
        """Whether the task was completed; ``None`` when that is unknown."""
        return None if self.outcome is None else self.outcome.completed


async def run_episodes(
    env_factory: Callable[[], Environment],
    tasks: Iterable[Task],
    policy: Policy,
    *,
    seed: int = 0,
    concurrency: int = 16,
    max_steps: int = 40,
    limits: Limits = NO_LIMITS,
    source: Source = "rollout",
) -> AsyncGenerator[Episode, None]:
    """Run one episode per task and yield each as it ends.

    At most ``concurrency`` environments live at once, each going at its own pace: waiting for one overlaps with the
    work of the others, and the next task starts when an episode has ended. The environment's seed follows from
    ``seed`` and the task's id, so all trials of a task start equal and the order of tasks does not matter. An episode
    ends when the environment says so, after ``max_steps`` actions, or by ``limits``; all three are judged by
    ``verify``. Leaving early cancels what is under way and closes every environment.
    """
    plans = _plans(tasks, policy.name, seed, source, max_steps, limits)
    async with aclosing(drive(env_factory, plans, policy, concurrency)) as played:
        async for episode, _ in played:
            yield episode


def _plans(
    tasks: Iterable[Task], policy: str, seed: int, source: Source, max_steps: int, limits: Limits
) -> Iterator[EpisodePlan]:
    trials: Counter[str] = Counter()
    for number, task in enumerate(tasks):
        trial = trials[task.task_id]
        trials[task.task_id] += 1
        yield EpisodePlan(
            number=number,
            task=task,
            task_id=task.task_id,
            trial=trial,
            seed=seed_of(seed, task.task_id),
            policy=policy,
            source=source,
            max_steps=max_steps,
            limits=limits,
        )


async def drive(
    env_factory: Callable[[], Environment], plans: Iterator[EpisodePlan], policy: Policy, concurrency: int
) -> AsyncGenerator[tuple[Episode, EpisodeTokens], None]:
    """Play ``plans``, ``concurrency`` at once; yields each as it ends, with the tokens that the policy kept of it."""
    done: asyncio.Queue[tuple[Episode, EpisodeTokens] | None] = asyncio.Queue(maxsize=concurrency)

    async def work() -> None:
        for plan in plans:
            await done.put(await play_plan(env_factory, plan, policy))

    async def all_of_it() -> None:
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(work()) for _ in range(concurrency)]
        if any(worker.cancelled() for worker in workers):  # a group takes that for no failure
            raise RunFailed(
                "an environment or a policy cancelled the task that it ran in; it must cancel only its own"
            )
        await done.put(None)

    running = asyncio.ensure_future(all_of_it())
    getting: asyncio.Future[tuple[Episode, EpisodeTokens] | None] | None = None
    try:
        while True:
            getting = asyncio.ensure_future(done.get())
            await asyncio.wait({getting, running}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and running.done():
                await running  # raises what stopped it: our own bug, or the tasks' iterator
            played = await getting
            if played is None:
                return
            yield played
    finally:
        for future in (running, getting):
            if future is not None:
                future.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def play_plan(
    env_factory: Callable[[], Environment], plan: EpisodePlan, policy: Policy
) -> tuple[Episode, EpisodeTokens]:
    """Play one episode, and take the tokens that the policy kept of it. What breaks is in the episode."""
    episode, tokens = LiveEpisode(plan), EpisodeTokens()
    try:
        await episode.start(env_factory)
        while episode.end is None:
            # A policy and environments that never wait would keep Ctrl-C and everything else waiting.
            await asyncio.sleep(0)
            reply = await ask_policy(policy, episode)
            if reply is None:
                episode.end = EpisodeEnd.WALL_CLOCK
            else:
                await episode.apply(reply)
        outcome = await episode.judge()
    finally:
        if isinstance(policy, TokenPolicy):
            tokens = policy.take(plan.episode_id)
        await episode.close()
    return _finished(episode, outcome), tokens


async def ask_policy(policy: Policy, episode: LiveEpisode) -> PolicyReply | None:
    """The policy's reply, an error reply when it fails; ``None`` when the episode's time is over before."""
    stall_s = episode.plan.limits.stall_s
    wait_s = episode.wait_s()
    try:
        async with asyncio.timeout(wait_s) as timeout:
            replies = await policy.act([episode.request()])
    except asyncio.CancelledError:
        if was_cancelled():
            raise
        return PolicyReply(error="policy: CancelledError: nobody had cancelled it")
    except EnvironmentFailed as failed:
        return PolicyReply(error=str(failed))
    except Exception as error:  # noqa: BLE001 - the rollout boundary: recorded and counted
        if isinstance(error, TimeoutError) and timeout.expired():
            return PolicyReply(error=f"policy: no reply within {stall_s:g} s") if wait_s == stall_s else None
        return PolicyReply(error=f"policy: {type(error).__name__}: {error}")
    if len(replies) != 1:
        return PolicyReply(error=f"policy: {len(replies)} replies to 1 request; expected one")
    return replies[0]


def _finished(episode: LiveEpisode, outcome: Outcome | None) -> Episode:
    assert episode.end is not None
    return Episode(
        number=episode.plan.number,
        task_id=episode.plan.task_id,
        trial=episode.plan.trial,
        session=episode.session(outcome),
        tools=episode.tools,
        outcome=outcome,
        end=episode.end,
        steps=episode.steps,
        malformed=len(episode.malformed),
        sampled_tokens=episode.sampled_tokens,
        tool_s=episode.tool_s,
        wall_s=episode.wall_s,
        error=episode.error,
    )
