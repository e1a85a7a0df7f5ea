"""OpenThoughts3-1.2M: code, math and science problems, each with several long answers of one model.

The file is sorted by domain, so a pull reads each domain from its own region. A problem comes up to 16 times: the
first usable answer gives the task, the others are duplicates.
"""

from __future__ import annotations

from firstchair.chat.formats.base import THINK_CLOSE
from firstchair.core.errors import DataError
from firstchair.data.task_sources.fields import Fields, Unusable, items, options_in, task_id, text_of
from firstchair.rewards.answers.boxed import last_boxed
from firstchair.rewards.answers.code_answer import code_in
from firstchair.rollout.orchestration.task import OrchestrationTask

NAME = "open_thoughts3"
DATASET = "OpenThoughts3-1.2M"
COLUMNS = ("conversations", "domain", "source", "difficulty")
DOMAINS = ("code", "math", "science")

_ASKS = frozenset({"human", "user"})
_ANSWERS = frozenset({"gpt", "assistant"})


def task_of(row: Fields) -> OrchestrationTask:
    """A row as a task. Raises ``Unusable``, ``DataError``."""
    domain = text_of(row, "domain")
    if domain not in DOMAINS:
        raise DataError(f"found {domain!r}; expected one of {', '.join(DOMAINS)}", field="domain")
    problem, answer = _said(row, _ASKS), _said(row, _ANSWERS)
    if not problem:
        raise Unusable("no question")
    if not answer:
        raise Unusable("no answer")
    _, closed, after = answer.rpartition(THINK_CLOSE)
    if not closed:
        raise Unusable("its reasoning never ends")
    gold = code_in(after).strip() if domain == "code" else last_boxed(after)
    if not gold:
        raise Unusable("no answer after its reasoning" if domain == "code" else "no boxed answer after its reasoning")
    difficulty = row.get("difficulty")
    return OrchestrationTask(
        task_id=task_id(NAME, problem),
        problem=problem,
        gold_answer=gold,
        domain=domain,
        area=text_of(row, "source") if "source" in row else "",
        difficulty="" if difficulty is None else str(difficulty),
        dataset=DATASET,
        choices=() if domain == "code" else options_in(problem, gold),
        meta={"gold_from": "model"},
    )


def _said(row: Fields, roles: frozenset[str]) -> str:
    """The first text of one side."""
    turns = items(row, "conversations", dict)
    return next((text_of(turn, "value") for turn in turns if turn.get("from") in roles), "")
