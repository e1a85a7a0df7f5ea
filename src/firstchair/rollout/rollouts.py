"""Rollouts: episodes with the tokens that a trainer learns from, several of each task.

    tasks × samples ─► plans ─► episodes (``episodes.drive``) ─► Rollout: tokens, weights, group, status
                         │
                         └── seeds: the environment's by (seed, step, task), sampling's by (…, sample) too

``RolloutStatus`` says how an episode came to its end and ``Rollout.solved`` whether its task was done. The two have
nothing to do with each other: an episode that ran to its own end may have failed its task, and one that was cut may
have done it before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from firstchair.chat.token_conversation import TokenConversation
from firstchair.core.errors import ConfigError
from firstchair.core.seeds import seed_of
from firstchair.rollout.environment import Environment
from firstchair.rollout.episodes import NO_LIMITS, Episode, Limits, Task, drive, play_plan
from firstchair.rollout.live_episode import EpisodeEnd, EpisodePlan
from firstchair.rollout.policy import EpisodeTokens, Policy


class RolloutStatus(StrEnum):
    """How an episode came to its end; nothing about whether its task was done."""

    COMPLETED = "completed"
    """It ran to its own end: the environment ended it, or what the model wrote did (unreadable, refused)."""
    TRUNCATED = "truncated"
    """A limit cut it: steps, tokens, tool time, wall clock, context window. Judged on the state it left."""
    ABORTED = "aborted"
    """Somebody cancelled it. Not judged, and nobody's fault."""
    FAILED = "failed"
    """The machinery broke: engine, environment, verifier. Not judged, never a score."""


STATUS: Mapping[EpisodeEnd, RolloutStatus] = MappingProxyType(
    {
        EpisodeEnd.DONE: RolloutStatus.COMPLETED,
        EpisodeEnd.MALFORMED: RolloutStatus.COMPLETED,
        EpisodeEnd.REFUSED: RolloutStatus.COMPLETED,
        EpisodeEnd.MAX_STEPS: RolloutStatus.TRUNCATED,
        EpisodeEnd.MAX_TOKENS: RolloutStatus.TRUNCATED,
        EpisodeEnd.TOOL_TIME: RolloutStatus.TRUNCATED,
        EpisodeEnd.WALL_CLOCK: RolloutStatus.TRUNCATED,
        EpisodeEnd.CONTEXT: RolloutStatus.TRUNCATED,
        EpisodeEnd.CANCELLED: RolloutStatus.ABORTED,
        EpisodeEnd.ERROR: RolloutStatus.FAILED,
    }
)
"""Every way to end, and the status that it means."""


@dataclass(frozen=True)
class RolloutPlan:
    """How tasks become rollouts."""

    samples: int
    """Rollouts of each task: its group."""
    seed: int
    """Of the run."""
    step: int = 0
    """Of training: another step plays the same task with other seeds."""
    concurrency: int = 256
    """Environments that live at once."""
    max_steps: int = 40
    limits: Limits = NO_LIMITS

    def __post_init__(self) -> None:
        for name in ("samples", "concurrency", "max_steps"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}: found {getattr(self, name)}; expected at least 1")


@dataclass(frozen=True)
class Rollout:
    """One episode and everything that training needs of it."""

    episode: Episode
    group: int
    """Index of its task among the tasks of the run."""
    sample: int
    """0 … samples − 1 within its group."""
    sampling_seed: int
    segments: tuple[TokenConversation, ...]
    """The token streams, exactly as sampled; empty when nothing was. See ``EpisodeTokens``."""
    revisions: tuple[str, ...]
    """The weights that sampled each call, in order."""

    @property
    def status(self) -> RolloutStatus:
        """How the episode came to its end."""
        return STATUS[self.episode.end]

    @property
    def solved(self) -> bool | None:
        """Whether the task was done, by the environment's checks; ``None`` when that is unknown (aborted, failed)."""
        return self.episode.completed

    @property
    def name(self) -> str:
        """For messages: task and sample."""
        return f"{self.episode.task_id}#{self.sample}"


async def run_rollouts(
    env_factory: Callable[[], Environment], tasks: Iterable[Task], policy: Policy, plan: RolloutPlan
) -> AsyncGenerator[Rollout, None]:
    """Play every task ``plan.samples`` times and yield each rollout as it ends, in no order.

    The environments of a group start equal; what is sampled differs, and is a function of (seed, step, task, sample)
    where the engine keeps seeds. ``concurrency`` changes nothing. A policy that keeps no tokens gives rollouts
    without segments. Tasks are read as they are needed, and memory is that of the live episodes. Leaving early
    cancels every generation under way and closes every environment.
    """
    plans = _plans(tasks, policy.name, plan)
    async with aclosing(drive(env_factory, plans, policy, plan.concurrency)) as played:
        async for episode, tokens in played:
            group, sample = divmod(episode.number, plan.samples)
            yield _rollout(episode, tokens, plan, group, sample)


async def run_rollout(
    env_factory: Callable[[], Environment], task: Task, sample: int, policy: Policy, plan: RolloutPlan
) -> Rollout:
    """One sample of one task, the same as ``run_rollouts`` plays; ``group`` is 0. For who decides what is next."""
    episode, tokens = await play_plan(env_factory, _plan(task, sample, sample, policy.name, plan), policy)
    return _rollout(episode, tokens, plan, 0, sample)


def _rollout(episode: Episode, tokens: EpisodeTokens, plan: RolloutPlan, group: int, sample: int) -> Rollout:
    return Rollout(
        episode=episode,
        group=group,
        sample=sample,
        sampling_seed=_sampling_seed(plan, episode.task_id, episode.trial),
        segments=tokens.segments,
        revisions=tokens.revisions,
    )


def _plans(tasks: Iterable[Task], policy: str, plan: RolloutPlan) -> Iterator[EpisodePlan]:
    # A task that comes twice in one step goes on counting, so that its two groups are not the same rollouts.
    trials: Counter[str] = Counter()
    for group, task in enumerate(tasks):
        for sample in range(plan.samples):
            trial = trials[task.task_id]
            trials[task.task_id] += 1
            yield _plan(task, group * plan.samples + sample, trial, policy, plan)


def _plan(task: Task, number: int, trial: int, policy: str, plan: RolloutPlan) -> EpisodePlan:
    return EpisodePlan(
        number=number,
        task=task,
        task_id=task.task_id,
        trial=trial,
        seed=seed_of(plan.seed, plan.step, task.task_id),
        policy=policy,
        source="rollout",
        max_steps=plan.max_steps,
        limits=plan.limits,
        run=f"{plan.step}/",
        sampling_seed=_sampling_seed(plan, task.task_id, trial),
    )


def _sampling_seed(plan: RolloutPlan, task_id: str, trial: int) -> int:
    return seed_of(plan.seed, plan.step, task_id, "sampling", trial)
