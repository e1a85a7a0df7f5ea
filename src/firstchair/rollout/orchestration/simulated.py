"""Simulated experts: how often each is right by domain and difficulty, what it charges, how long it takes.

Everything about an answer follows from (seed, expert, task), so a run repeats, and two policies that ask the same
expert about the same task get the same answer at the same price. Nothing waits: ``latency_s`` is told, not spent.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from firstchair.catalog.experts import Expert
from firstchair.catalog.prices import ModelPrice
from firstchair.catalog.token_counts import TokenCounts
from firstchair.core.errors import ConfigError
from firstchair.core.seeds import seed_of
from firstchair.engines.expert import ExpertAnswer
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.orchestration.simulated_tasks import DIFFICULTIES, REFERENCE
from firstchair.rollout.orchestration.task import OrchestrationTask

INPUT_TOKENS = 300
"""Of a question, more or less."""
OUTPUT_TOKENS: Mapping[str, int] = MappingProxyType({"easy": 1500, "medium": 2500, "hard": 3500})
"""Of an answer with its reasoning, by difficulty, more or less."""
SPREAD = 0.15
"""Standard deviation of the logarithm of tokens and seconds."""
ASIDE_TOKENS = 40
"""Of the answer to a question that names no task."""


@dataclass(frozen=True)
class SimulatedExpert:
    """One expert. A skill is the chance of being right on (easy, medium, hard) tasks."""

    spec: Expert
    """As a catalog has it; ``spec.latency_s`` is that of a medium answer."""
    price: ModelPrice
    skill: tuple[float, float, float]
    specialty: str = ""
    """The domain in which ``own_skill`` holds instead."""
    own_skill: tuple[float, float, float] = (0.0, 0.0, 0.0)

    @property
    def name(self) -> str:
        """Its name in the catalog."""
        return self.spec.name

    def chance(self, domain: str, difficulty: str) -> float:
        """How likely it is right on such a task."""
        skill = self.own_skill if self.specialty and domain == self.specialty else self.skill
        return skill[DIFFICULTIES.index(difficulty)]


GOOD, POOR = (0.98, 0.95, 0.88), (0.85, 0.45, 0.08)
EXPERTS: tuple[SimulatedExpert, ...] = (
    SimulatedExpert(
        Expert(
            model="solo-9b",
            category="local_open_source",
            summary="Small general model.",
            size_class="small",
            latency_s=15,
        ),
        ModelPrice.model_validate({"input": 0.1, "output": 0.15}),
        skill=(0.97, 0.70, 0.10),
    ),
    SimulatedExpert(
        Expert(
            model="abacus-70b",
            category="local_open_source",
            summary="Maths model.",
            size_class="medium",
            latency_s=25,
        ),
        ModelPrice.model_validate({"input": 2, "output": 8}),
        skill=POOR,
        specialty="math",
        own_skill=GOOD,
    ),
    SimulatedExpert(
        Expert(
            model="loom-70b",
            category="local_open_source",
            summary="Code model.",
            size_class="medium",
            latency_s=25,
        ),
        ModelPrice.model_validate({"input": 2, "output": 8}),
        skill=POOR,
        specialty="code",
        own_skill=GOOD,
    ),
    SimulatedExpert(
        Expert(
            model="summit-1",
            category="cloud_frontier",
            summary="Large general model.",
            size_class="frontier",
            latency_s=5,
        ),
        ModelPrice.model_validate({"input": 5, "output": 25}),
        skill=GOOD,
    ),
)
"""A cheap one, two that are good at one thing, and one that is good at everything, quick and dear."""
CHEAPEST, STRONGEST = EXPERTS[0].name, EXPERTS[-1].name


class SimulatedPool:
    """An ``ExpertPool`` over some tasks. A question names its task by the reference that stands in the problem."""

    def __init__(
        self, tasks: Iterable[OrchestrationTask], *, seed: int, experts: Sequence[SimulatedExpert] = EXPERTS
    ):
        self._experts = {expert.name: expert for expert in experts}
        self._tasks = {reference_of(task): task for task in tasks}
        self._seed = seed

    async def ask(self, expert: str, question: str) -> ExpertAnswer:
        """The answer of ``expert``; raises ``ConfigError`` for one that there is not."""
        if expert not in self._experts:
            raise ConfigError(f"expert: found {expert!r}; expected one of {', '.join(self._experts)}")
        found = re.search(REFERENCE, question)
        task = self._tasks.get(found[0]) if found else None
        return answer_of(self._experts[expert], task, self._seed)

    async def close(self) -> None:
        """There is nothing to release."""


def reference_of(task: OrchestrationTask) -> str:
    """How the problem of ``task`` names itself."""
    return str(task.meta["reference"])


def answer_of(expert: SimulatedExpert, task: OrchestrationTask | None, seed: int) -> ExpertAnswer:
    """What ``expert`` answers on ``task``; ``None``: it was not told which, and asks back."""
    if task is None:
        usage = TokenCounts(input=INPUT_TOKENS, output=ASIDE_TOKENS)
        return _answer(expert, "Which task? Give me its number.", usage, 1.0)
    rng = random.Random(seed_of(seed, expert.name, task.task_id))
    right = rng.random() < expert.chance(task.domain, task.difficulty)
    gold = str(task.gold_answer)
    text = gold if right else _other(gold, rng)
    effort = OUTPUT_TOKENS[task.difficulty] * rng.lognormvariate(0.0, SPREAD)
    read = INPUT_TOKENS * rng.lognormvariate(0.0, SPREAD)
    usage = TokenCounts(input=round(read), output=round(effort))
    pace = effort / OUTPUT_TOKENS["medium"]
    return _answer(expert, f"The answer is {text}.", usage, (expert.spec.latency_s or 0.0) * pace)


def _answer(expert: SimulatedExpert, text: str, usage: TokenCounts, latency_s: float) -> ExpertAnswer:
    return ExpertAnswer(
        expert=expert.name,
        text=text,
        served_model=expert.name,
        usage=usage,
        cost_nano=expert.price.cost_nano(usage),
        latency_s=latency_s,
    )


def _other(gold: str, rng: random.Random) -> str:
    """A wrong answer of the same shape."""
    while (other := str(rng.randrange(100, 1000))) == gold:
        pass
    return other


class SimulatedGrader:
    """An ``AnswerGrader`` of simulated tasks: the last number in the answer is the task's, or it is wrong."""

    async def grade(self, task: OrchestrationTask, answer: str) -> Grade:
        """The grade."""
        numbers = re.findall(r"\d+", answer)
        return Grade(correct=bool(numbers) and numbers[-1] == task.gold_answer, how="exact")

    async def close(self) -> None:
        """There is nothing to release."""
