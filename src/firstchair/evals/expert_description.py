"""What an expert is good at, measured: sample tasks, ask it, grade, and let a model put the figures into words.

    tasks ─► sampled evenly over domains ─► expert ─► grader ─► DomainResult … ─► a model's sentence ─► catalog entry
                                                                     └──────── figures, by code ────────┘

The figures in an entry are written by code behind the sentence: no model can get them wrong. An expert that could not
be reached is not an expert that was wrong: such tasks are counted apart and stand in no figure.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import msgspec

from firstchair.catalog.experts import Expert
from firstchair.catalog.token_counts import NANO
from firstchair.core.concurrency import all_or_none
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.core.progress import Progress, Silent
from firstchair.engines.expert import ExpertAnswer, ExpertPool
from firstchair.evals.stats import Rate, wilson
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.orchestration.final_answer import MARKER, final_answer
from firstchair.rollout.orchestration.task import OrchestrationTask

GradeAnswer = Callable[[OrchestrationTask, str], Awaitable[Grade]]
"""Whether a final answer solves its task; ``AnswerGrader.grade`` is one."""
Write = Callable[[str], Awaitable[str]]
"""A model that is asked to write."""

MAX_SENTENCE = 600
"""Characters of what a model may say about an expert."""
MEASURED = "Measured:"
"""What the figures in a summary begin with."""


class DomainResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an expert did on the tasks of one domain."""

    domain: str
    accuracy: Rate
    """Of the graded answers, with Wilson's interval."""
    cost_nano: float | None
    """Mean nano-USD of an answer; ``None`` when a price is missing or nothing was answered."""
    latency_s: float | None
    """Mean of an answer."""
    failed: int
    """Tasks without an answer: the expert could not be asked."""
    ungraded: int
    """Answers that nobody could grade."""


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """What an expert did on a sample of tasks."""

    expert: str
    domains: tuple[DomainResult, ...]
    """In the order of their names."""
    latency_s: float | None
    """Mean over all answers."""


@dataclass(frozen=True)
class _Asked:
    task: OrchestrationTask
    answer: ExpertAnswer
    grade: Grade | None
    """``None``: there was no answer."""


def sample_evenly(tasks: Sequence[OrchestrationTask], count: int, seed: int) -> list[OrchestrationTask]:
    """At most ``count`` tasks, as many of each domain as there are; the same ones for the same ``seed``."""
    rng = random.Random(seed)
    by_domain: dict[str, list[OrchestrationTask]] = {}
    for task in tasks:
        by_domain.setdefault(task.domain, []).append(task)
    shuffled = [rng.sample(of_domain, len(of_domain)) for _, of_domain in sorted(by_domain.items())]
    longest = max(map(len, shuffled), default=0)
    in_turn = [of_domain[place] for place in range(longest) for of_domain in shuffled if place < len(of_domain)]
    return in_turn[:count]


async def measure_expert(
    pool: ExpertPool,
    expert: str,
    tasks: Sequence[OrchestrationTask],
    grade: GradeAnswer,
    *,
    concurrency: int = 8,
    progress: Progress | None = None,
) -> Measurement:
    """Ask ``expert`` every task, ``concurrency`` at once. Raises ``RunFailed`` when no answer could be graded."""
    slots, shown = asyncio.Semaphore(concurrency), progress or Silent()

    async def one(task: OrchestrationTask) -> _Asked:
        async with slots:
            answer = await pool.ask(expert, f"{task.problem}\n\nEnd with one line: {MARKER} <the answer alone>")
            graded = None if answer.error_kind is not None else await grade(task, final_answer(answer.text))
            shown.advance(note=answer.error or "")
            return _Asked(task, answer, graded)

    asked = await all_or_none([one(task) for task in tasks])
    if not any(one.grade is not None and one.grade.correct is not None for one in asked):
        reasons = {one.answer.error or (one.grade.detail if one.grade else "") for one in asked}
        raise RunFailed(f"{expert}: none of {len(asked)} answers could be graded: {'; '.join(sorted(reasons))[:500]}")
    domains = sorted({one.task.domain for one in asked})
    return Measurement(
        expert=expert,
        domains=tuple(_result(domain, [one for one in asked if one.task.domain == domain]) for domain in domains),
        latency_s=_mean([one.answer.latency_s for one in asked if one.grade is not None]),
    )


def _result(domain: str, asked: Sequence[_Asked]) -> DomainResult:
    answered = [one for one in asked if one.grade is not None]
    verdicts = [one.grade.correct for one in answered if one.grade is not None and one.grade.correct is not None]
    costs = [one.answer.cost_nano for one in answered]
    return DomainResult(
        domain=domain,
        accuracy=_rate(sum(verdicts), len(verdicts)),
        cost_nano=None if None in costs else _mean([cost for cost in costs if cost is not None]),
        latency_s=_mean([one.answer.latency_s for one in answered]),
        failed=len(asked) - len(answered),
        ungraded=len(answered) - len(verdicts),
    )


def _rate(hits: int, trials: int) -> Rate:
    if not trials:
        return Rate(value=None, n=0, low=None, high=None)
    low, high = wilson(hits, trials)
    return Rate(value=hits / trials, n=trials, low=low, high=high, method="wilson")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


# --- words ------------------------------------------------------------------------------------------------------


def figures(measured: Measurement) -> str:
    """``Measured: math 75% right (95% interval 41 to 93%, n 8; $0.0012 and 3.2 s an answer); …``, best first."""
    graded = [one for one in measured.domains if one.accuracy.value is not None]
    graded.sort(key=lambda one: (-(one.accuracy.value or 0), one.domain))
    return f"{MEASURED} {'; '.join(map(_figure, graded))}."


def _figure(one: DomainResult) -> str:
    rate = one.accuracy
    interval = f"95% interval {100 * (rate.low or 0):.0f} to {rate.high:.0%}"
    cost = "" if one.cost_nano is None else f"{usd(one.cost_nano)} and "
    return f"{one.domain} {rate.value:.0%} right ({interval}, n {rate.n}; {cost}{one.latency_s or 0:.1f} s an answer)"


def usd(nano: float) -> str:
    """``$0.000018``: two significant digits, and two decimals at least."""
    dollars = nano / NANO
    decimals = max(2, 1 - math.floor(math.log10(dollars))) if dollars else 0
    return f"${dollars:.{decimals}f}"


def sentence_question(measured: Measurement) -> str:
    """What a model is asked, to put ``measured`` into words."""
    return (
        "Below is how a language model did on test tasks, by domain. Say in one or two plain sentences, fewer than "
        "60 words in all, what it should be asked and what it should not, for somebody who chooses between models. "
        "Do not name it, do not repeat the figures, and do not claim more than intervals as wide as these allow. "
        f"Write nothing but the sentences.\n\n{figures(measured)}"
    )


async def describe_expert(expert: Expert, measured: Measurement, write: Write | None = None) -> Expert:
    """``expert`` with a summary and a latency by what was ``measured``.

    ``write`` is asked for the sentence; without it the one that ``expert`` has stays. Raises ``RunFailed`` when it
    wrote nothing that can stand in a description.
    """
    if measured.expert != expert.name:
        raise ConfigError(f"the measurement is of {measured.expert}, not of {expert.name}")
    if write is None:
        sentence = expert.summary.partition(MEASURED)[0].strip()
    else:
        sentence = read_sentence(await write(sentence_question(measured)))
    summary = f"{sentence} {figures(measured)}".strip()
    return expert.model_copy(update={"summary": summary, "latency_s": measured.latency_s})


def read_sentence(text: str) -> str:
    """``text`` on one line, without quotes around it. Raises ``RunFailed`` for what cannot stand in a description."""
    sentence = " ".join(text.split()).strip("\"'“” ")
    if not sentence or len(sentence) > MAX_SENTENCE:
        raise RunFailed(f"the writer wrote {len(sentence)} characters; expected 1 to {MAX_SENTENCE}")
    for word in ("Pricing:", MEASURED):
        if word in sentence:
            raise RunFailed(f"the writer wrote {word!r}, which opens a line of figures; ask again")
    return sentence if sentence[-1] in ".!?" else f"{sentence}."


def writer(pool: ExpertPool, name: str) -> Write:
    """An expert as the model that writes. Its failure is ``RunFailed``."""

    async def write(question: str) -> str:
        answer = await pool.ask(name, question)
        if answer.error_kind is not None:
            raise RunFailed(f"the writer {name} gave no answer: {answer.error}")
        return answer.text

    return write
