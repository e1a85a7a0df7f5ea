"""GeneralThought-430K: questions of many collections with a reference answer, or else a model's answer."""

from __future__ import annotations

from firstchair.data.task_sources.fields import Fields, Unusable, options_in, task_id, text_of
from firstchair.rewards.answers.boxed import last_boxed
from firstchair.rollout.orchestration.task import OrchestrationTask

NAME = "general_thought"
DATASET = "GeneralThought-430K"
COLUMNS = ("question_id", "question", "prev_messages", "reference_answer", "model_answer", "question_source", "task")
DOMAINS = ("math", "medical", "code", "chat", "misc")

_DOMAIN_OF = (
    ("math", ("numina", "math")),
    ("medical", ("nhsqa", "medical")),
    ("code", ("taco", "code", "glaive")),
    ("chat", ("oasst", "lmsys", "chat")),
)


def domain_of(question_source: str) -> str:
    """The domain of a collection, by words in its name; the first that fits."""
    name = question_source.lower()
    return next((domain for domain, words in _DOMAIN_OF if any(word in name for word in words)), "misc")


def task_of(row: Fields) -> OrchestrationTask:
    """A row as a task. Raises ``Unusable``, ``DataError``."""
    question = text_of(row, "question")
    if not question:
        raise Unusable("no question")
    if row.get("prev_messages"):
        raise Unusable("it goes on from earlier messages")
    reference, model = text_of(row, "reference_answer"), text_of(row, "model_answer")
    said = reference or model
    if not said:
        raise Unusable("no answer")
    gold = last_boxed(said) or said
    identity = row.get("question_id")
    return OrchestrationTask(
        task_id=task_id(NAME, question),
        problem=question,
        gold_answer=gold,
        domain=domain_of(text_of(row, "question_source")),
        area=text_of(row, "task") if "task" in row else "",
        dataset=DATASET,
        choices=options_in(question, gold),
        meta={
            "gold_from": "reference" if reference else "model",
            "question_source": text_of(row, "question_source"),
            **({} if identity is None else {"source_id": identity}),
        },
    )
