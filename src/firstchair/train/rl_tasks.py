"""The environments that a recipe can name, opened: a factory and its tasks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from firstchair.catalog.call_rules import Matchers
from firstchair.core.errors import ConfigError
from firstchair.core.hashing import sha256_file
from firstchair.data.rl_prompts import read_prompts
from firstchair.rewards.probes import ProbePair, pairs_from_expert, pairs_of_decision
from firstchair.rewards.samples import DecisionReply, task_labels
from firstchair.rollout.decision_env import ONE_ACTION, DecisionEnvironment
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.environment import Environment
from firstchair.rollout.episodes import Limits, Task
from firstchair.rollout.orchestration.simulated_tasks import simulated_tasks
from firstchair.rollout.orchestration.simulated_world import Demonstrator, World
from firstchair.rollout.policy import Actor
from firstchair.rollout.prompt_record import PromptRecord
from firstchair.rollout.synthetic.environment import SyntheticEnvironment
from firstchair.rollout.synthetic.opened import OpenDomain
from firstchair.rollout.synthetic.players import GoldenExpert
from firstchair.rollout.synthetic.shipped import load_domains
from firstchair.train.grpo_recipe import (
    DecisionTasks,
    DeskTasks,
    EnvironmentSpec,
    OrchestrationTasks,
    Rollouts,
    SyntheticTasks,
)

PROBED = 8
"""Tasks on which the reward is probed at the start, at least."""


@dataclass(frozen=True)
class OpenEnvironment:
    """Where a policy acts, and on what."""

    factory: Callable[[], Environment]
    tasks: Sequence[Task]
    limits: Limits
    expert: Actor | None = None
    """Who is known to do right there."""
    source: str = ""
    """Hash of the file that the tasks were read from, where there is one."""

    async def probe_pairs(self) -> list[ProbePair]:
        """Known-good and known-bad answers to some of the tasks; none where nobody knows any."""
        some = _probed(self.tasks)
        if self.expert is not None:
            return await pairs_from_expert(self.factory, some, self.expert)
        return [pair for task in some if isinstance(task, PromptRecord) for pair in _pairs_of(task)]


def open_environment(spec: EnvironmentSpec, rollouts: Rollouts) -> OpenEnvironment:
    """What ``spec`` names. Raises ``ConfigError`` or ``DataError`` when it cannot be read or imported."""
    limits = Limits(
        max_tokens=rollouts.max_tokens, tool_s=rollouts.tool_s, wall_s=rollouts.wall_s, stall_s=rollouts.stall_s
    )
    if isinstance(spec, DeskTasks):
        return OpenEnvironment(DeskEnvironment, make_tasks(spec.tasks, spec.seed), limits, Teacher())
    if isinstance(spec, DecisionTasks):
        one_action = replace(limits, max_malformed=ONE_ACTION.max_malformed)
        prompts, source = read_prompts(spec.records), sha256_file(spec.records)
        return OpenEnvironment(DecisionEnvironment, prompts, one_action, source=source)
    if isinstance(spec, OrchestrationTasks):
        return _simulated(spec, limits)
    if isinstance(spec, SyntheticTasks):
        return _synthetic(spec, limits)
    factory, tasks, expert = _imported(spec.factory)
    return OpenEnvironment(factory, tasks, limits, expert)


def _simulated(spec: OrchestrationTasks, limits: Limits) -> OpenEnvironment:
    tasks = simulated_tasks(spec.tasks, spec.seed, wishes=spec.wishes)
    world = World(tuple(tasks), spec.answers_seed)
    return OpenEnvironment(world.environment(spec.presentations), tasks, limits, Demonstrator(tasks, dearest=True))


def _synthetic(spec: SyntheticTasks, limits: Limits) -> OpenEnvironment:
    domains = {domain.name: OpenDomain(domain) for domain in load_domains(spec.domains)}
    tasks = [task for opened in domains.values() for task in opened.domain.tasks]
    if not tasks:
        raise ConfigError(f"environment.domains: {', '.join(domains)}: found no task in them")
    return OpenEnvironment(partial(SyntheticEnvironment, domains), tasks, limits, GoldenExpert(domains, tasks))


def _probed(tasks: Sequence[Task]) -> list[Task]:
    """The first tasks, and one of each sort that these lack: a part of the reward may be for that sort alone."""
    chosen: list[Task] = []
    seen: set[str] = set()
    for number, task in enumerate(tasks):
        sorts = _sorts(task)
        if number < PROBED or not sorts <= seen:
            chosen.append(task)
            seen |= sorts
    return chosen


def _sorts(task: Task) -> set[str]:
    """What rewards are usually routed by."""
    if isinstance(task, PromptRecord):
        return {f"category {task.category}", f"kind {task.gold.kind}"}
    return set(getattr(task, "rows", ()))


def _pairs_of(record: PromptRecord) -> list[ProbePair]:
    made = DecisionReply(record.decision(), record.tools, None, Matchers.of(record.matchers))
    return pairs_of_decision(made, record.messages, task_labels(record))


def _imported(name: str) -> tuple[Callable[[], Environment], Sequence[Task], Actor | None]:
    module, _, function = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"environment.factory: {name}: {error}; expected a function that can be imported") from None
    try:
        made = found()
    except Exception as error:
        raise ConfigError(f"environment.factory: {name} raised {type(error).__name__}: {error}") from error
    if not (isinstance(made, tuple) and len(made) in (2, 3) and callable(made[0]) and isinstance(made[1], Sequence)):
        raise ConfigError(
            f"environment.factory: {name} gave {type(made).__name__}; expected a function that makes an Environment, "
            "a sequence of tasks and, if there is one, an expert (`act(messages, tools)`) to probe the reward with"
        )
    factory, tasks, *expert = made
    for number, task in enumerate(tasks):
        if not isinstance(getattr(task, "task_id", None), str):
            raise ConfigError(
                f"environment.factory: {name}: task {number}: found {task!r:.100}; expected one with a text `task_id`"
            )
    if expert and not callable(getattr(expert[0], "act", None)):
        raise ConfigError(
            f"environment.factory: {name}: expert: found {expert[0]!r:.100}; expected one with `act(messages, tools)`"
        )
    return factory, tasks, expert[0] if expert else None
