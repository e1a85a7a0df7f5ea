"""A judge's question about one final answer: correct or not correct."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from firstchair.chat.messages import text_message
from firstchair.rewards.fence import fenced
from firstchair.rewards.judge_client import Question
from firstchair.rewards.judge_server import JudgeServer
from firstchair.rewards.rubric import DATA_ONLY
from firstchair.rollout.orchestration.task import OrchestrationTask

CORRECT, NOT_CORRECT = "correct", "not correct"

_INSTRUCTIONS = (
    "You decide whether the final answer to a problem is correct. {data_only} {measure} Other words, more detail and "
    "another notation do not make an answer wrong; a missing part, another value, or several answers of which one is "
    "right do. Answer with one JSON object and nothing else: `reason`, one or two sentences, then `verdict`, "
    '"correct" or "not correct".'
)
_BY_REFERENCE = "It is correct when it says what the reference answer says."
_BY_ASSERTIONS = "It is correct when each of the assertions holds of it."
_BY_BOTH = "It is correct when it says what the reference answer says and each of the assertions holds of it."
_BY_ITSELF = "There is no reference answer: solve the problem yourself first."

_SCHEMA = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "verdict": {"type": "string", "enum": [CORRECT, NOT_CORRECT]}},
    "required": ["reason", "verdict"],
    "additionalProperties": False,
}


class AnswerJudge(JudgeServer):
    """The judge of final answers."""

    tries: int = Field(default=6, ge=1)
    """A rate limit that outlasts them leaves the answer ungraded, so there is one more round than elsewhere."""


def answer_question(task: OrchestrationTask, answer: str) -> Question[bool]:
    """Ask whether ``answer`` solves ``task``, by its reference answer and its assertions where it has them."""
    blocks = {"problem": task.problem}
    if task.gold_answer is not None:
        blocks["reference answer"] = task.gold_answer
    if task.assertions:
        blocks["assertions"] = "\n".join(f"{n}. {text}" for n, text in enumerate(task.assertions, start=1))
    blocks["answer"] = answer
    measure = {
        (True, True): _BY_BOTH,
        (True, False): _BY_REFERENCE,
        (False, True): _BY_ASSERTIONS,
        (False, False): _BY_ITSELF,
    }[task.gold_answer is not None, bool(task.assertions)]
    return Question(
        question_id=f"answer:{task.task_id}",
        messages=(
            text_message("system", _INSTRUCTIONS.format(data_only=DATA_ONLY, measure=measure)),
            text_message("user", fenced(blocks)),
        ),
        schema=_SCHEMA,
        read=_read,
    )


def _read(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"reason", "verdict"}:
        raise ValueError("want exactly reason and verdict")
    # Whole words, never a search: "not correct" contains "correct".
    if value["verdict"] not in (CORRECT, NOT_CORRECT):
        raise ValueError(f"verdict={value['verdict']!r}, want {CORRECT!r} or {NOT_CORRECT!r}")
    return bool(value["verdict"] == CORRECT)
