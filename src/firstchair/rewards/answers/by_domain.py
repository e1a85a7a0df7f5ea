"""The grader for every task: what a task has, and its domain, decide who grades it.

    tests ──► code          choices ──► option named          math ──► text, number, algebra
    else  ──► exact match ─► judge, when there is one ─► token F1

Whatever breaks on the way leaves the answer ungraded.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from firstchair.core.config import Strict
from firstchair.core.errors import FirstchairError, GradingError
from firstchair.core.extras import require
from firstchair.rewards.answers.answer_judge import AnswerJudge, answer_question
from firstchair.rewards.answers.base import Grade
from firstchair.rewards.answers.boxed import last_boxed
from firstchair.rewards.answers.choice import gold_option, option_of
from firstchair.rewards.answers.code_answer import CodeGrader, CodeTests
from firstchair.rewards.answers.math_text import is_words, leaves_choice, same_text_or_number
from firstchair.rewards.answers.symbolic import Comparison, SymbolicPool
from firstchair.rewards.answers.text_match import exact_match, token_f1
from firstchair.rewards.judge_client import JudgeClient
from firstchair.rewards.judge_server import open_judge
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.sandbox.base import Sandbox

Way = Literal["code", "choice", "math", "text", "judge"]
"""``text``: exact match, then a judge or token F1; ``judge``: nothing but a judge can tell."""

MIN_F1 = 0.6
MAX_MATH_CHARS = 4000
"""Of an answer without a box; its end is what algebra looks at."""


class AlgebraProcesses(Strict):
    """The processes of a computer algebra system."""

    workers: int = Field(default=2, ge=1)
    timeout_s: float = Field(default=5.0, gt=0)
    """Of one comparison; the process is killed then, and the answer stays ungraded."""


class AnswerGrading(Strict):
    """How final answers are graded."""

    min_f1: float = Field(default=MIN_F1, gt=0, le=1)
    """Token F1 from which an answer in words is right, where no judge is asked."""
    algebra: AlgebraProcesses = AlgebraProcesses()
    code: CodeTests = CodeTests()
    judge: AnswerJudge | None = None


def way_of(task: OrchestrationTask) -> Way:
    """Who grades ``task``."""
    if task.tests:
        return "code"
    if task.choices and task.gold_answer is not None:
        return "choice"
    if task.gold_answer is None or task.assertions:
        return "judge"
    if task.domain == "math":
        return "math"
    return "text"


def needs_judge(task: OrchestrationTask) -> bool:
    """Whether its answers stay ungraded, equality with a program apart, where no judge is asked."""
    way = way_of(task)
    return way == "judge" or (way == "text" and task.domain == "code")


class DomainGrader:
    """An ``AnswerGrader`` for tasks of any kind. Without a ``sandbox`` or ``judge`` what needs one stays ungraded."""

    def __init__(
        self,
        *,
        algebra: SymbolicPool,
        code: CodeGrader | None = None,
        judge: JudgeClient | None = None,
        min_f1: float = MIN_F1,
    ):
        """Owns ``algebra`` and ``judge``."""
        self._algebra, self._code, self._judge, self._min_f1 = algebra, code, judge, min_f1

    async def grade(self, task: OrchestrationTask, answer: str) -> Grade:
        """Whether ``answer`` solves ``task``."""
        way = way_of(task)
        if not answer.strip():
            return Grade(False, way, "an empty answer")
        try:
            if way == "code":
                return await self._by_tests(task, answer)
            if way == "choice":
                return _by_choice(task, answer)
            if way == "math":
                return await self._by_math(task, answer)
            return await self._by_text(task, answer)
        except FirstchairError as error:
            return Grade(None, way, str(error))

    async def close(self) -> None:
        """Kill the algebra's processes, and close the judge."""
        await self._algebra.close()
        if self._judge is not None:
            await self._judge.close()

    async def _by_tests(self, task: OrchestrationTask, answer: str) -> Grade:
        if self._code is None:
            raise GradingError("it has tests and no sandbox was opened for them")
        return await self._code.grade(task, answer)

    async def _by_math(self, task: OrchestrationTask, answer: str) -> Grade:
        assert task.gold_answer is not None
        gold, own = (last_boxed(text) or text.strip() for text in (task.gold_answer, answer))
        same = same_text_or_number(gold, own)
        if same is not None:
            return Grade(same, "math", "as text or number")
        if is_words(gold):
            return await self._by_text(task, answer)
        if leaves_choice(gold, own):
            return Grade(False, "math", "several values where one is asked for")
        found = await self._algebra.compare(gold, own[-MAX_MATH_CHARS:])
        if found is Comparison.GOLD_UNREADABLE:  # no mathematics to compare with
            return await self._by_text(task, answer)
        return Grade(found is Comparison.EQUAL, "math", "by algebra")

    async def _by_text(self, task: OrchestrationTask, answer: str) -> Grade:
        gold, own = task.gold_answer, last_boxed(answer) or answer
        # Assertions are more than the reference answer says, so equality with it proves too little.
        if gold is not None and not task.assertions and exact_match(gold, own):
            return Grade(True, "exact")
        if self._judge is not None:
            correct = await self._judge.ask(answer_question(task, answer))
            return Grade(correct, "judge")
        if gold is None or task.assertions:
            raise GradingError("only a judge can tell, and none was opened: set `judge`")
        if task.domain == "code":
            raise GradingError(
                "a program without tests needs a judge: set `judge`; shared words say nothing about it"
            )
        score = token_f1(gold, own)
        return Grade(score >= self._min_f1, "f1", f"token F1 {score:.2f}")


def _by_choice(task: OrchestrationTask, answer: str) -> Grade:
    assert task.gold_answer is not None
    gold = gold_option(task.gold_answer, task.choices)
    if gold is None:
        raise GradingError(f"its gold answer {task.gold_answer[:80]!r} is none of its {len(task.choices)} options")
    named = option_of(answer, task.choices)
    return Grade(named == gold, "choice", f"names {named}" if named else "names no option, or several")


def open_answer_grader(grading: AnswerGrading, sandbox: Sandbox | None = None) -> DomainGrader:
    """A grader by ``grading``; close it. ``sandbox`` runs the tests of code and stays its owner's.

    Raises ``ConfigError`` when the packages of the extra ``tools`` are missing, or the judge cannot be opened.
    """
    require("tools")
    return DomainGrader(
        algebra=SymbolicPool(workers=grading.algebra.workers, timeout_s=grading.algebra.timeout_s),
        code=None if sandbox is None else CodeGrader(sandbox, grading.code),
        judge=None if grading.judge is None else open_judge(grading.judge),
        min_f1=grading.min_f1,
    )
