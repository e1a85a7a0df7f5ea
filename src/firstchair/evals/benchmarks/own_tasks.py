"""SuperGPQA and FRAMES as Inspect tasks. Imported only where Inspect is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inspect_ai import Task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser, get_model
from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, choice, scorer
from inspect_ai.solver import TaskState, generate, multiple_choice

from firstchair.core.jsontext import JsonProblem, loads
from firstchair.evals.benchmarks.catalogue import benchmark
from firstchair.rewards.answers.answer_judge import answer_question
from firstchair.rollout.orchestration.task import OrchestrationTask

SUPERGPQA = """Answer the following question; exactly one of the options is right. Think it through step by step. \
The last line of your reply must be 'ANSWER: $LETTER' (without quotes), where LETTER is one of {letters}.

{question}

{choices}"""

FRAMES = """Answer the following question. Think it through step by step, look up what you need where you can, and \
give the answer in the last line.

{question}"""


def supergpqa(records: Sequence[Mapping[str, Any]] | None) -> Task:
    """One right option of up to ten; ``answer_letter`` is the key (arXiv 2502.14739)."""
    return Task(
        dataset=_dataset("supergpqa", "train", supergpqa_sample, records),
        solver=multiple_choice(template=SUPERGPQA),
        scorer=choice(),
        name="supergpqa",
    )


def supergpqa_sample(record: dict[str, Any]) -> Sample:
    """A record as a sample."""
    return Sample(
        id=record["uuid"],
        input=record["question"],
        choices=list(record["options"]),
        target=record["answer_letter"],
        metadata={name: record.get(name) for name in ("discipline", "field", "subfield", "difficulty")},
    )


def frames(records: Sequence[Mapping[str, Any]] | None) -> Task:
    """The question alone, without the articles (arXiv 2409.12941, "naive prompt"); a judge compares answers."""
    return Task(
        dataset=_dataset("frames", "test", frames_sample, records),
        solver=generate(),
        scorer=judged_answer(),
        name="frames",
    )


def frames_sample(record: dict[str, Any]) -> Sample:
    """A record as a sample; its number in the table is its id, where it has one."""
    return Sample(
        id=record.get("Unnamed: 0"),
        input=FRAMES.format(question=record["Prompt"]),
        target=record["Answer"],
        metadata={
            "question": record["Prompt"],
            "reasoning_types": record["reasoning_types"],
            "wiki_links": record["wiki_links"],
        },
    )


def _dataset(
    name: str, split: str, to_sample: Any, records: Sequence[Mapping[str, Any]] | None
) -> Any:  # inspect_ai.dataset.Dataset
    bench = benchmark(name)
    if records is not None:
        return MemoryDataset([to_sample(dict(record)) for record in records], name=bench.dataset)
    from inspect_evals.utils.huggingface import hf_dataset

    return hf_dataset(path=bench.dataset, split=split, sample_fields=to_sample, revision=bench.revision)


@scorer(metrics=[accuracy()])  # type: ignore[untyped-decorator]
def judged_answer() -> Scorer:
    """Right when the judge says that the answer says what the reference says.

    The question to the judge and the reading of its verdict are those of our own answer judge. A verdict that cannot
    be read is asked for once more, then the sample stays unscored.
    """

    async def score(state: TaskState, target: Target) -> Score:
        grader = get_model(role="grader", required=True)
        task = OrchestrationTask(
            task_id=str(state.sample_id), problem=state.metadata["question"], gold_answer=target.text
        )
        question = answer_question(task, state.output.completion)
        asked = [
            ChatMessageSystem(content=message.text)
            if message.role == "system"
            else ChatMessageUser(content=message.text)
            for message in question.messages
        ]
        said = ""
        for _ in range(2):
            said = (await grader.generate(asked)).completion
            try:
                right = question.read(loads(_without_fence(said)))
            except (JsonProblem, ValueError):
                continue
            return Score(value=CORRECT if right else INCORRECT, answer=state.output.completion, explanation=said)
        return Score(value=float("nan"), answer=state.output.completion, explanation=said)

    return score


def _without_fence(text: str) -> str:
    """What stands in a Markdown code fence, where the whole reply is one."""
    lines = text.strip().splitlines()
    if len(lines) > 2 and lines[0].startswith("```") and lines[-1] == "```":
        return "\n".join(lines[1:-1])
    return text.strip()
