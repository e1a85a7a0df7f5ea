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
from firstchair.core.seeds import seed_of
from firstchair.rollout.environment import Environment, Outcome
from firstchair.rollout.live_episode import EpisodeEnd, EpisodePlan, LiveEpisode
from firstchair.rollout.policy import Policy, PolicyReply, PolicyRequest
from firstchair.traces.session import Session, Source

__all__ = ["Episode", "EpisodeEnd", "Limits", "Policy", "PolicyReply", "PolicyRequest", "run_episodes"]


class Task(Protocol):
    """What every task has; the rest is between the task and its environment."""

    @property
    def task_id(self) -> str: ...


@dataclass(frozen=True)
class Limits:
    """When an episode is given up."""

    max_malformed: int = 3
    """Unreadable actions answered with an error message; the next one ends the episode."""
    stall_s: float = 900.0
    """Longest wait for one step of a policy or an environment, so that nothing hangs a run."""


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
    """``None`` exactly when ``error`` is set: not judged, left out of every rate."""
    end: EpisodeEnd
    steps: int
    """Actions taken, malformed ones included."""
    malformed: int
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
    limits: Limits = Limits(),
    source: Source = "rollout",
) -> AsyncGenerator[Episode, None]:
    """Run one episode per task and yield each as it ends.

    At most ``concurrency`` environments live at once. The environment's seed follows from ``seed`` and the task's
    id, so all trials of a task start equal and the order of tasks does not matter. An episode ends when the
    environment says so, after ``max_steps`` actions, or by ``limits``; all three are judged by ``verify``.
    """
    plans = _plans(tasks, policy.name, seed, source, max_steps, limits)
    drive = _lockstep if policy.batched else _independent
    async with aclosing(drive(env_factory, plans, policy, concurrency)) as episodes:
        async for episode in episodes:
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
            max_malformed=limits.max_malformed,
            stall_s=limits.stall_s,
        )


async def _lockstep(
    env_factory: Callable[[], Environment], plans: Iterator[EpisodePlan], policy: Policy, concurrency: int
) -> AsyncGenerator[Episode, None]:
    """All live episodes take one decision together; a finished one makes room for the next task."""
    live: list[LiveEpisode] = []
    while True:
        while len(live) < concurrency and (plan := next(plans, None)) is not None:
            live.append(await LiveEpisode.start(env_factory, plan))
        if not live:
            return
        # A policy and environments that never wait would keep Ctrl-C and everything else waiting.
        await asyncio.sleep(0)
        acting = [episode for episode in live if episode.end is None]
        for episode, reply in zip(acting, await _ask(policy, acting), strict=True):
            await episode.apply(reply)
        for episode in [episode for episode in live if episode.end is not None]:
            live.remove(episode)
            yield await _finished(episode)


async def _independent(
    env_factory: Callable[[], Environment], plans: Iterator[EpisodePlan], policy: Policy, concurrency: int
) -> AsyncGenerator[Episode, None]:
    """Each episode goes at its own pace, so that waiting for one overlaps with the work of the others."""
    done: asyncio.Queue[Episode | None] = asyncio.Queue(maxsize=concurrency)

    async def work() -> None:
        for plan in plans:
            episode = await LiveEpisode.start(env_factory, plan)
            while episode.end is None:
                await asyncio.sleep(0)
                (reply,) = await _ask(policy, [episode])
                await episode.apply(reply)
            await done.put(await _finished(episode))

    async def all_of_it() -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(work())
        await done.put(None)

    running = asyncio.ensure_future(all_of_it())
    getting: asyncio.Future[Episode | None] | None = None
    try:
        while True:
            getting = asyncio.ensure_future(done.get())
            await asyncio.wait({getting, running}, return_when=asyncio.FIRST_COMPLETED)
            if not getting.done() and running.done():
                await running  # raises what stopped it: our own bug, or the tasks' iterator
            episode = await getting
            if episode is None:
                return
            yield episode
    finally:
        for future in (running, getting):
            if future is not None:
                future.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def _ask(policy: Policy, episodes: list[LiveEpisode]) -> list[PolicyReply]:
    """The policy's replies, or one error reply each when it fails as a whole."""
    if not episodes:
        return []
    stall_s = episodes[0].plan.stall_s
    try:
        async with asyncio.timeout(stall_s):
            replies = await policy.act([episode.request() for episode in episodes])
    except TimeoutError:
        return [PolicyReply(error=f"policy: no reply within {stall_s:g} s") for _ in episodes]
    except Exception as error:  # noqa: BLE001 - the rollout boundary: recorded and counted
        return [PolicyReply(error=f"policy: {type(error).__name__}: {error}") for _ in episodes]
    if len(replies) != len(episodes):
        found = f"policy: {len(replies)} replies to {len(episodes)} requests; expected one each, in order"
        return [PolicyReply(error=found) for _ in episodes]
    return replies


async def _finished(episode: LiveEpisode) -> Episode:
    outcome = await episode.judge()
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
        error=episode.error,
    )
