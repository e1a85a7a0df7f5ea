"""One batch of rollouts: played, graded, compared within its groups, and made into examples.

prompts from the cursor on ─► rollouts ─► rewards ─► filters ─► advantages ─► groups with a signal ─► examples of
        ▲                                                                          │                  each step
        └────────── refill: others in place of groups that are all alike ◄─────────┘
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from statistics import fmean
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from firstchair.catalog.call_rules import Matchers
from firstchair.chat.actions import ParsedReply, Problem, action_of
from firstchair.chat.messages import REFUSED, TRUNCATED, ending
from firstchair.core.errors import RunFailed
from firstchair.data.prompt_source import PromptSource
from firstchair.engines.base import Stop
from firstchair.rewards.grading import Grader
from firstchair.rewards.group_filters import Filtered, filter_groups
from firstchair.rewards.samples import (
    DecisionReply,
    GradedSample,
    Sample,
    count_reasons,
    sample_of_decision,
    sample_of_episode,
    task_labels,
)
from firstchair.rollout.episodes import Task
from firstchair.rollout.policy import TokenPolicy
from firstchair.rollout.prompt_record import PromptRecord
from firstchair.rollout.rollouts import Rollout, RolloutPlan, RolloutStatus, run_rollouts
from firstchair.traces.session_file import CatalogLine
from firstchair.train.advantages import (
    GroupAdvantages,
    branch_advantages,
    group_advantages,
    overlong_penalty,
    without_truncated,
)
from firstchair.train.examples import Example
from firstchair.train.grpo_recipe import GrpoRecipe
from firstchair.train.rl_tasks import OpenEnvironment
from firstchair.train.rollout_examples import RolloutExamples, rollout_examples
from firstchair.train.rollout_source import CATALOG, SESSION
from firstchair.train.sources import Feed


@dataclass(frozen=True, slots=True)
class Played:
    """Some groups, graded and turned into examples."""

    rollouts: tuple[Rollout, ...]
    graded: tuple[GradedSample, ...]
    examples: RolloutExamples
    filtered: Filtered
    advantages: GroupAdvantages

    @property
    def rewards(self) -> tuple[float | None, ...]:
        """With the overlong penalty; ``None``: not graded, filtered out, or nothing to train on."""
        return self.filtered.rewards

    @property
    def signal(self) -> frozenset[int]:
        """Groups whose members differ."""
        return frozenset(self.advantages.kept)


class RolloutBatches:
    """Makes the batches of a run. ``policy`` samples with the weights that its engine holds at the time."""

    def __init__(
        self,
        recipe: GrpoRecipe,
        environment: OpenEnvironment,
        prompts: PromptSource[Task],
        policy: TokenPolicy,
        grader: Grader,
        *,
        vocab_size: int,
    ):
        self._recipe, self._environment, self._prompts = recipe, environment, prompts
        self._policy, self._grader, self._vocab_size = policy, grader, vocab_size

    async def make(self, cursor: int) -> tuple[Feed, list[dict[str, Any]]]:
        """The batch whose first prompt is the one at ``cursor``, and a line about each of its rollouts.

        Raises ``RunFailed`` when not one rollout could be graded, naming the reasons; ``DataError`` for a rollout
        that cannot be trained on.
        """
        settings = self._recipe.rollouts
        rounds: list[Played] = []
        found, drawn = 0, 0
        for _ in range(1 + settings.refill):
            wanted = settings.prompts - found
            tasks = self._prompts.take(cursor + drawn, wanted)
            rounds.append(await self._play(tasks, cursor + drawn, drawn))
            drawn += wanted
            found += len(rounds[-1].signal)
            if found == settings.prompts:
                break
        _refuse_ungraded(rounds)
        steps = self._steps(rounds)
        lines = [line for played in rounds for line in _lines(played, cursor)]
        return Feed(steps, cursor + drawn, _figures(rounds, drawn), work=settings.prompts * settings.samples), lines

    async def _play(self, tasks: Sequence[Task], step: int, first: int) -> Played:
        """Play ``tasks`` with the seeds of ``step``; their groups are numbered from ``first`` on."""
        settings = self._recipe.rollouts
        plan = RolloutPlan(
            samples=settings.samples,
            seed=self._recipe.seed,
            step=step,
            concurrency=settings.concurrency,
            max_steps=settings.max_steps,
            limits=self._environment.limits,
        )
        async with aclosing(run_rollouts(self._environment.factory, tasks, self._policy, plan)) as running:
            rollouts = [rollout async for rollout in running]
        rollouts.sort(key=lambda rollout: (rollout.group, rollout.sample))
        samples = [sample_of_rollout(rollout, tasks[rollout.group]) for rollout in rollouts]
        graded = await self._grader.grade(samples)
        own = [replace(rollout, group=first + rollout.group) for rollout in rollouts]
        examples = rollout_examples(
            own, vocab_size=self._vocab_size, max_tokens=self._recipe.batch.micro_tokens, over_long="skip"
        )
        rewards = tuple(
            self._reward(rollout, sample.reward) if kept else None
            for rollout, sample, kept in zip(own, graded, examples.kept_S.tolist(), strict=True)
        )
        groups = [rollout.group for rollout in own]
        filters = self._recipe.grpo.filters
        filtered = filter_groups(
            rewards,
            groups,
            broken=[filters.broken_calls == "drop" and rollout.episode.malformed > 0 for rollout in own],
            no_output=[filters.no_output == "drop" and not sample.final_text.strip() for sample in samples],
            min_spread=filters.min_spread,
        )
        advantages = group_advantages(filtered.rewards, groups, normalise=self._recipe.grpo.advantage.normalise)
        return Played(tuple(own), tuple(graded), examples, filtered, advantages)

    def _reward(self, rollout: Rollout, reward: float | None) -> float | None:
        overlong = self._recipe.grpo.advantage.overlong
        if reward is None or overlong is None:
            return reward
        tokens = rollout.episode.sampled_tokens
        return reward + overlong.penalty * overlong_penalty(
            tokens, limit=overlong.limit_tokens, buffer=overlong.buffer_tokens
        )

    def _steps(self, rounds: Iterable[Played]) -> list[list[Example]]:
        """The examples of each optimizer step; groups stay whole."""
        settings = self._recipe.grpo
        drop = settings.advantage.drop_flat or self._recipe.rollouts.refill > 0
        groups: dict[int, list[Example]] = {}
        for played in rounds:
            values = played.advantages.values
            if settings.advantage.mask_truncated:
                cut = [rollout.status is RolloutStatus.TRUNCATED for rollout in played.rollouts]
                values, _ = without_truncated(values, cut)
            for example, credit in zip(played.examples.examples, self._credits(played, values), strict=True):
                assert example.group is not None
                if not drop or example.group in played.signal:
                    groups.setdefault(example.group, []).append(self._learnt(example, credit))
        steps: list[list[Example]] = [[] for _ in range(settings.steps_per_batch)]
        for place, members in enumerate(groups.values()):
            steps[place % len(steps)] += members
        return steps

    def _credits(self, played: Played, values: Sequence[float | None]) -> list[NDArray[np.float32]]:
        """What the objective is told of each example's tokens, ``[n]`` each; NaN in those that are left out."""
        settings, examples = self._recipe.grpo, played.examples.examples
        told = played.rewards if settings.kl.in_reward else values
        constant = [np.full(len(example), _or_nan(told[example.key]), np.float32) for example in examples]
        if settings.advantage.credit == "rollout":
            return constant
        members: dict[int | None, list[int]] = {}
        for place, example in enumerate(examples):
            if played.advantages.values[example.key] is not None:
                members.setdefault(example.group, []).append(place)
        for places in members.values():
            rows, rewards = [examples[place].ids for place in places], []
            for place in places:
                reward = played.rewards[examples[place].key]
                assert reward is not None, "graded, as it has an advantage"
                rewards.append(reward)
            found = branch_advantages(rows, rewards, normalise=settings.advantage.normalise)
            for place, credit in zip(places, found, strict=True):
                if not np.isnan(constant[place][0]):
                    constant[place] = credit
        return constant

    def _learnt(self, example: Example, credit: NDArray[np.float32]) -> Example:
        """The example with the column that the objective wants."""
        name = "reward" if self._recipe.grpo.kl.in_reward else "advantage"
        return replace(example, columns={**example.columns, name: credit})


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def sample_of_rollout(rollout: Rollout, task: Task) -> Sample:
    """What is graded of a rollout: the whole episode, or its one decision."""
    if not isinstance(task, PromptRecord):
        return sample_of_episode(rollout.episode, task_labels(task))
    reply, stop = _reply(rollout)
    made = DecisionReply(task.decision(), task.tools, reply, Matchers.of(task.matchers), stop)
    episode = rollout.episode
    waits = [call.latency_ms for call in episode.session.calls if call.latency_ms is not None]
    return sample_of_decision(
        rollout.name,
        made,
        task.messages,
        labels=task_labels(task),
        reply_tokens=episode.sampled_tokens or None,
        latency_s=sum(waits) / 1000 if waits else None,
    )


_STOPS: Mapping[str | None, Stop] = MappingProxyType({TRUNCATED: Stop.LENGTH, REFUSED: Stop.REFUSAL})


def _reply(rollout: Rollout) -> tuple[ParsedReply | None, Stop]:
    """The one action of a rollout, with all that is wrong with it, and what ended it; ``None`` when there was none
    for reasons that are not the model's.
    """
    episode = rollout.episode
    if episode.error is not None or not episode.steps:
        return None, Stop.END
    said = next(message for message in reversed(episode.session.messages) if message.role == "assistant")
    action, meta = action_of(said), episode.session.meta
    noted = [*meta.get("malformed", ()), *meta.get("untidy", ())]
    # The calls that could be read too: without them a call against its schema would pass for a final reply.
    reply = ParsedReply(
        calls=action.calls,
        text=action.text,
        thinking=action.thinking,
        problems=tuple(msgspec.convert(problem, Problem) for one in noted for problem in one["problems"]),
    )
    return reply, _STOPS.get(ending(said), Stop.END)


def _refuse_ungraded(rounds: Sequence[Played]) -> None:
    """Raise ``RunFailed`` when nothing could be graded: what is down must be mended before training goes on."""
    if any(sample.reward is not None for played in rounds for sample in played.graded):
        return
    reasons = count_reasons(sample for played in rounds for sample in played.graded)
    errors = Counter(r.episode.error for played in rounds for r in played.rollouts if r.episode.error is not None)
    named = "; ".join(f"{count} × {reason}" for reason, count in (*reasons.most_common(3), *errors.most_common(2)))
    raise RunFailed(
        f"none of {sum(len(p.rollouts) for p in rounds)} rollouts could be graded: {named}; mend and resume"
    )


def _figures(rounds: Sequence[Played], drawn: int) -> dict[str, float]:
    """What is logged of a batch. Rates are over what could be told; everything else is counted."""
    rollouts = [rollout for played in rounds for rollout in played.rollouts]
    graded = [sample for played in rounds for sample in played.graded]
    figures: dict[str, float] = {
        "prompts": drawn,
        "rollouts": len(rollouts),
        "ungraded": sum(sample.reward is None for sample in graded),
    }
    for status in RolloutStatus:
        if status is not RolloutStatus.COMPLETED:
            figures[str(status)] = sum(rollout.status is status for rollout in rollouts)
    for name in ("kept", "flat", "single", "empty"):
        figures[f"groups_{name}"] = sum(len(getattr(played.advantages, name)) for played in rounds)
    figures["groups_narrow"] = sum(len(played.filtered.narrow) for played in rounds)
    # Nobody failed to grade these.
    figures["groups_empty"] -= figures["groups_narrow"]
    for name in ("broken", "no_output"):
        figures[f"dropped_{name}"] = sum(getattr(played.filtered, name) for played in rounds)
    for name in ("empty", "all_masked", "over_long"):
        figures[name] = sum(getattr(played.examples.counts, name) for played in rounds)
    rates: dict[str, list[float]] = {
        "reward": [reward for played in rounds for reward in played.rewards if reward is not None],
        "solved": [float(r.solved) for r in rollouts if r.solved is not None],
        "malformed": [float(r.episode.malformed > 0) for r in rollouts],
        "turns": [float(r.episode.steps) for r in rollouts],
        "sampled_tokens": [float(r.episode.sampled_tokens) for r in rollouts],
    }
    for name in sorted({name for sample in graded for name in sample.components}):
        rates[f"reward_{name}"] = [value for s in graded if (value := s.components.get(name)) is not None]
    return figures | {name: fmean(values) for name, values in rates.items() if values}


def _lines(played: Played, batch: int) -> Iterable[dict[str, Any]]:
    """A line for each rollout, with its session, and with each tool list where it first comes."""
    catalogs: set[str] = set()
    for key, (rollout, sample) in enumerate(zip(played.rollouts, played.graded, strict=True)):
        where = {"batch": batch, "group": rollout.group, "sample": rollout.sample, "reward": played.rewards[key]}
        session = rollout.episode.session
        labelled = msgspec.structs.replace(session, labels={**session.labels, **where})
        yield {
            **where,
            "task_id": rollout.episode.task_id,
            "status": str(rollout.status),
            "end": str(rollout.episode.end),
            "solved": rollout.solved,
            "advantage": played.advantages.values[key],
            "components": dict(sample.components),
            "reasons": {name: f"{why.why}: {why.detail}".removesuffix(": ") for name, why in sample.reasons.items()},
            "turns": rollout.episode.steps,
            "sampled_tokens": rollout.episode.sampled_tokens,
            "weights": sorted(set(rollout.revisions)),
            "error": rollout.episode.error,
            "session_id": session.session_id,
            SESSION: msgspec.to_builtins(labelled),
            **({} if session.catalog_id in catalogs else {CATALOG: _catalog(rollout)}),
        }
        catalogs.add(session.catalog_id)


def _catalog(rollout: Rollout) -> dict[str, Any]:
    """The tools of a rollout as a line of ``catalogs.jsonl``."""
    line = CatalogLine(catalog_id=rollout.episode.session.catalog_id, tools=rollout.episode.tools)
    found: dict[str, Any] = msgspec.to_builtins(line)
    return found
