from __future__ import annotations

import asyncio

import pytest

from firstchair.catalog.experts import Expert
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.engines.base import ErrorKind
from firstchair.engines.expert import ExpertAnswer
from firstchair.evals.expert_description import (
    describe_expert,
    figures,
    measure_expert,
    read_sentence,
    sample_evenly,
    sentence_question,
    writer,
)
from firstchair.evals.stats import wilson
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.orchestration.task import OrchestrationTask

EXPERT = Expert(model="acme/Tiny-1B", category="local_open_source", summary="Short answers. Measured: old figures.")


def task(number: int, domain: str, gold: str | None = "42") -> OrchestrationTask:
    name = f"{domain}-{number}"
    return OrchestrationTask(task_id=name, problem=f"{domain} {number}?", gold_answer=gold, domain=domain)


class Pool:
    """Answers math right three times of four and code never; knows no science, and is down for chat."""

    def __init__(self) -> None:
        self.open = self.most = 0
        self.questions: list[str] = []

    async def ask(self, expert: str, question: str) -> ExpertAnswer:
        self.questions.append(question)
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0)
        self.open -= 1
        if expert == "poet":
            return ExpertAnswer(expert, text=' "Good at sums,\n not at code" ')
        domain, number = question.split("?")[0].split()
        if domain == "chat":
            return ExpertAnswer(expert, error="503: busy", error_kind=ErrorKind.SERVER, cost_nano=0, latency_s=9)
        value = "42" if domain == "math" and int(number) % 4 else "41"
        return ExpertAnswer(expert, text=f"So:\nFINAL_ANSWER: {value}.", cost_nano=1_200_000, latency_s=2.0)

    async def close(self) -> None:
        pass


async def grade(task: OrchestrationTask, answer: str) -> Grade:
    if task.gold_answer is None:
        return Grade(None, "exact", "the task has no gold answer")
    return Grade(answer.rstrip(".") == task.gold_answer, "exact")


def tasks() -> list[OrchestrationTask]:
    numbered = [task(n, domain) for domain in ("math", "code", "chat") for n in range(8)]
    return [*numbered, task(0, "science", None)]


def test_accuracy_cost_and_latency_are_measured_by_domain_and_faults_stand_in_no_figure() -> None:
    pool = Pool()
    found = asyncio.run(measure_expert(pool, "tiny_1b", tasks(), grade, concurrency=3))
    assert pool.most == 3
    by_domain = {one.domain: one for one in found.domains}
    math, code, chat, science = (by_domain[name] for name in ("math", "code", "chat", "science"))
    assert (math.accuracy.value, math.accuracy.n) == (0.75, 8)
    assert (math.accuracy.low, math.accuracy.high) == wilson(6, 8)
    assert (code.accuracy.value, code.failed) == (0.0, 0)
    assert (chat.accuracy.value, chat.accuracy.n, chat.failed, chat.cost_nano) == (None, 0, 8, None)
    assert (science.accuracy.n, science.ungraded) == (0, 1)
    assert (math.cost_nano, math.latency_s, found.latency_s) == (1_200_000, 2.0, 2.0)
    # Wilson by hand: 6 of 8 → 0.409 to 0.929; 0 of 8 → 0 to 0.324
    assert figures(found) == (
        "Measured: math 75% right (95% interval 41 to 93%, n 8; $0.0012 and 2.0 s an answer); "
        "code 0% right (95% interval 0 to 32%, n 8; $0.0012 and 2.0 s an answer)."
    )


def test_the_entry_holds_the_models_sentence_and_figures_written_by_code() -> None:
    pool = Pool()

    async def go() -> tuple[Expert, Expert]:
        found = await measure_expert(pool, "tiny_1b", tasks(), grade)
        described = await describe_expert(EXPERT, found, writer(pool, "poet"))
        assert pool.questions[-1] == sentence_question(found)
        return described, await describe_expert(EXPERT, found)

    written, kept = asyncio.run(go())
    assert written.summary.startswith("Good at sums, not at code. Measured: math 75% right (95% interval 41 to 93%")
    assert (written.latency_s, written.name) == (2.0, "tiny_1b")
    assert kept.summary.startswith("Short answers. Measured: math 75% right")
    assert "old figures" not in kept.summary


def test_what_a_writer_may_not_write_is_refused() -> None:
    for text, words in (("  ", "0 characters"), ("x" * 601, "601 characters"), ("Pricing: $0", "'Pricing:'")):
        with pytest.raises(RunFailed, match=words):
            read_sentence(text)

    async def failing() -> None:
        await writer(Pool(), "tiny_1b")("chat 1?")

    with pytest.raises(RunFailed, match="the writer tiny_1b gave no answer: 503"):
        asyncio.run(failing())


def test_nothing_is_described_from_answers_that_nobody_graded() -> None:
    with pytest.raises(RunFailed, match="none of 2 answers could be graded: 503: busy; the task has no gold answer"):
        asyncio.run(measure_expert(Pool(), "tiny_1b", [task(0, "chat"), task(0, "science", None)], grade))
    found = asyncio.run(measure_expert(Pool(), "tiny_1b", [task(1, "math")], grade))
    with pytest.raises(ConfigError, match="is of tiny_1b, not of other"):
        asyncio.run(describe_expert(EXPERT.model_copy(update={"model": "other"}), found))


def test_a_sample_is_even_over_domains_and_the_same_for_the_same_seed() -> None:
    many = [task(n, domain) for domain, count in (("math", 50), ("code", 3), ("qa", 50)) for n in range(count)]
    chosen = sample_evenly(many, 13, seed=1)
    assert sorted(one.domain for one in chosen) == ["code"] * 3 + ["math"] * 5 + ["qa"] * 5
    assert chosen == sample_evenly(many, 13, seed=1)
    assert chosen != sample_evenly(many, 13, seed=2)
    assert len(sample_evenly(many, 1000, seed=1)) == 103
    assert sample_evenly([], 5, seed=0) == []
