"""From samples to rewards: code first, judges for what is left, one number each or the reason why there is none.

samples ─► verifiers, measures, ─► gates ─► rubric: one question a sample   ─┐
           cost-aware, preference      └──► pairwise: one tournament a group ─┴─► compose ─► GradedSample
           (over all samples)               all together within ``batch_s``
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Mapping, Sequence

from firstchair.core.errors import ConfigError
from firstchair.core.seeds import seed_of
from firstchair.rewards.composition import (
    Composition,
    CostAwareComponent,
    JudgeComponent,
    MeasureComponent,
    PreferenceComponent,
    VerifierComponent,
    applies,
    compose,
    gated,
)
from firstchair.rewards.cost_aware import cost_aware
from firstchair.rewards.judge_client import JudgeClient, JudgeError, Why
from firstchair.rewards.pairwise import PairwiseResult, judge_group
from firstchair.rewards.preference import Played, preference_rewards
from firstchair.rewards.rubric import rubric_question, rubric_value
from firstchair.rewards.samples import GATED, NOT_ASKED, GradedSample, NoValue, Sample, Value
from firstchair.rewards.verifiers import VERIFIERS, completed, structured

Graded = tuple[Value, Mapping[str, float]]
"""A value, and what it was made from."""
Job = tuple[str, list[int], Awaitable[list[Graded]]]
"""A component, the samples that it grades together, and the work."""


def verify(component: VerifierComponent, sample: Sample) -> Value:
    """What code decides of ``sample``."""
    if component.output_schema is not None:
        return structured(sample, component.output_schema, component.output_format)
    return VERIFIERS[component.check](sample)


def measure(component: MeasureComponent, sample: Sample) -> Value:
    """What ``sample`` used up. ``NoValue`` where nobody counted it."""
    found = {"cost": sample.used_usd, "latency": sample.used_s, "length": sample.reply_tokens}[component.kind]
    return NoValue("not_measured", f"the sample has no {component.kind}") if found is None else float(found)


def weigh_cost(component: CostAwareComponent, sample: Sample) -> Value:
    """The cost-aware reward of ``sample``. Without a known cost there is none, but for λ = 0."""
    outcome = completed(sample)
    if isinstance(outcome, NoValue):
        return outcome
    cost = sample.used_usd if component.lambda_cost else 0.0
    if cost is None:
        return NoValue("not_measured", "the sample has no cost")
    lambda_cost, most = component.lambda_cost, component.cost_max_usd
    return cost_aware(outcome == 1.0, cost, lambda_cost=lambda_cost, cost_max_usd=most)


def weigh_preferences(samples: Sequence[Sample]) -> list[Value]:
    """The preference rewards of ``samples``, each compared with all of them that have an outcome."""
    outcomes = [completed(sample) for sample in samples]
    batch = [
        Played(
            right=outcome == 1.0,
            cost_usd=sample.used_usd,
            latency_s=sample.used_s,
            calls=sample.tool_calls,
            preference=sample.labels.get("preference") or {},
        )
        for sample, outcome in zip(samples, outcomes, strict=True)
        if not isinstance(outcome, NoValue)
    ]
    found = iter(preference_rewards(batch))
    return [outcome if isinstance(outcome, NoValue) else next(found) for outcome in outcomes]


def _share(found: PairwiseResult) -> Value:
    if found.share is not None:
        return found.share
    assert found.error is not None
    return _no_verdict(found.error)


def _no_verdict(error: JudgeError) -> NoValue:
    return NoValue(str(error.why), f"{error.kind}: {error.detail}")


class Grader:
    """Grades samples by one composition. ``judge`` is needed where the composition has judge components."""

    def __init__(self, composition: Composition, judge: JudgeClient | None = None, *, seed: int = 0):
        """``seed`` draws the pairs of large groups. Raises ``ConfigError`` when the judge is missing."""
        asks = [c.name for c in composition.components if isinstance(c, JudgeComponent)]
        if asks and judge is None:
            raise ConfigError(f"component {asks[0]} asks a judge; open one with open_judge and pass it on")
        self.composition, self._judge, self._seed = composition, judge, seed

    async def grade(self, samples: Sequence[Sample]) -> list[GradedSample]:
        """One result per sample, in order. What fails to grade is a reason in its sample; nothing hangs."""
        compared = self._by_batch(samples)
        values = [self._by_code(sample, own) for sample, own in zip(samples, compared, strict=True)]
        details: list[dict[str, Mapping[str, float]]] = [{} for _ in samples]
        jobs: list[Job] = []
        for component in self.composition.components:
            if isinstance(component, JudgeComponent):
                asked = [
                    index
                    for index, sample in enumerate(samples)
                    if applies(component, sample.labels) and component.name not in values[index]
                ]
                jobs += self._questions(component, samples, asked)
        for indices, name, results in await self._ask(jobs):
            for index, (value, parts) in zip(indices, results, strict=True):
                values[index][name] = value
                if parts:
                    details[index][name] = parts
        return [self._graded(*row) for row in zip(samples, values, details, strict=True)]

    def _by_batch(self, samples: Sequence[Sample]) -> list[dict[str, Value]]:
        """For each sample what code decides by comparing it with all the others."""
        found: list[dict[str, Value]] = [{} for _ in samples]
        for component in self.composition.components:
            if isinstance(component, PreferenceComponent):
                mine = [index for index, sample in enumerate(samples) if applies(component, sample.labels)]
                values = weigh_preferences([samples[index] for index in mine])
                for index, value in zip(mine, values, strict=True):
                    found[index][component.name] = value
        return found

    def _by_code(self, sample: Sample, compared: Mapping[str, Value]) -> dict[str, Value]:
        """What needs no judge, ``compared`` among it; where it settles that none is asked, that stands in the judge
        components' place."""
        mine = [component for component in self.composition.components if applies(component, sample.labels)]
        # Half an episode is no answer: whatever is said of it would be a score of the machinery.
        if (failure := sample.failure) is not None:
            return {component.name: failure for component in mine}
        values: dict[str, Value] = dict(compared)
        for component in mine:
            if isinstance(component, VerifierComponent):
                values[component.name] = verify(component, sample)
            elif isinstance(component, CostAwareComponent):
                values[component.name] = weigh_cost(component, sample)
        shut = gated(self.composition, sample.labels, values)
        for component in mine:
            if isinstance(component, MeasureComponent):
                values[component.name] = NoValue(GATED) if shut else measure(component, sample)
        lost = any(isinstance(value, NoValue) and value.why != GATED for value in values.values())
        for component in mine:
            if isinstance(component, JudgeComponent) and (shut or lost):
                values[component.name] = NoValue(NOT_ASKED if lost else GATED)
        return values

    def _questions(
        self, component: JudgeComponent, samples: Sequence[Sample], open_samples: Sequence[int]
    ) -> list[Job]:
        if component.mode == "rubric":
            return [(component.name, [i], self._rubric(component, samples[i])) for i in open_samples]
        groups: dict[str, list[int]] = defaultdict(list)
        for index in open_samples:
            groups[samples[index].group].append(index)
        return [
            (component.name, indices, self._pairwise(component, [samples[i] for i in indices]))
            for indices in groups.values()
        ]

    async def _rubric(self, component: JudgeComponent, sample: Sample) -> list[Graded]:
        if not sample.answer.strip():
            return [(0.0, {})]  # nothing was said: no judge is needed to see that
        assert self._judge is not None
        question = rubric_question(
            f"{component.name}:{sample.sample_id}", sample.question, sample.answer, component.dimensions
        )
        scores = await self._judge.ask(question)
        return [(rubric_value(scores, component.dimensions), scores)]

    async def _pairwise(self, component: JudgeComponent, samples: Sequence[Sample]) -> list[Graded]:
        assert self._judge is not None
        group = samples[0].group
        found = await judge_group(
            self._judge,
            f"{component.name}:{group}",
            samples[0].question,
            [sample.answer for sample in samples],
            component.criterion,
            max_pairs=component.max_pairs,
            seed=seed_of(self._seed, component.name, group),
        )
        return [(_share(one), {"comparisons": one.comparisons, "flips": one.flips}) for one in found]

    async def _ask(self, jobs: Sequence[Job]) -> list[tuple[list[int], str, list[Graded]]]:
        """All questions at once. What is not answered within ``batch_s`` is cancelled, awaited, and has no value."""
        if not jobs:
            return []
        assert self.composition.judge is not None
        limit = self.composition.judge.batch_s
        tasks = [asyncio.ensure_future(work) for _, _, work in jobs]
        try:
            await asyncio.wait(tasks, timeout=limit)
        finally:
            late = [not task.done() for task in tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        out: list[tuple[list[int], str, list[Graded]]] = []
        for (name, indices, _), task, is_late in zip(jobs, tasks, late, strict=True):
            if is_late:
                missing = NoValue(Why.DEADLINE, f"the judge did not answer all questions within {limit:g} s")
                out.append((indices, name, [(missing, {})] * len(indices)))
                continue
            try:
                out.append((indices, name, task.result()))
            except JudgeError as error:
                out.append((indices, name, [(_no_verdict(error), {})] * len(indices)))
        return out

    def _graded(
        self, sample: Sample, values: Mapping[str, Value], details: Mapping[str, Mapping[str, float]]
    ) -> GradedSample:
        reward = compose(self.composition, sample.labels, values)
        reasons: dict[str, NoValue] = {name: v for name, v in values.items() if isinstance(v, NoValue)}
        if isinstance(reward, NoValue):
            reasons["reward"] = reward
        return GradedSample(
            sample_id=sample.sample_id,
            group=sample.group,
            reward=None if isinstance(reward, NoValue) else reward,
            components={name: None if isinstance(v, NoValue) else v for name, v in values.items()},
            reasons=reasons,
            details=details,
        )
