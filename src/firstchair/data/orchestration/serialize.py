"""Trajectories as SFT records: one each, right or wrong, with everything that selection needs in its ``meta``.

What is taught is the policy's way to the answer, not its manner: reasoning loses control tokens, boxes and lines
about its instructions, and the last message is the bare ``FINAL_ANSWER:`` line. System prompt, problem, results and
tools stand as the policy saw them; call arguments stay byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from firstchair.chat.messages import ENDINGS, Message, Part, TextPart, ThinkingPart, text_message
from firstchair.data.orchestration.groups import Group
from firstchair.data.orchestration.metrics import trajectory_metrics
from firstchair.data.orchestration.selection import Judged, judge_group
from firstchair.data.orchestration.wording import taught_answer, taught_reasoning
from firstchair.data.sft import SftRecord
from firstchair.rollout.orchestration.final_answer import MARKER
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory
from firstchair.traces.session import turns_of


def training_records(
    groups: Iterable[Group], *, kept_only: bool = False, left_out: list[str] | None = None
) -> Iterator[SftRecord]:
    """A record for each trajectory, in order. Ids of those with nothing to teach go to ``left_out``."""
    for group in groups:
        for judged in judge_group(group):
            if kept_only and not judged.kept:
                continue
            record = training_record(group.task, judged)
            if record is not None:
                yield record
            elif left_out is not None:
                left_out.append(record_id(judged.trajectory))


def record_id(trajectory: Trajectory) -> str:
    """``<task>:<sample>``."""
    return f"{trajectory.task_id}:{trajectory.sample}"


def training_record(task: OrchestrationTask, judged: Judged) -> SftRecord | None:
    """One trajectory as a record; ``None`` when none of its messages is to be learnt."""
    trajectory = judged.trajectory
    messages, loss = taught_messages(trajectory)
    if not any(loss):
        return None
    return SftRecord(
        id=record_id(trajectory),
        source="rollout",
        messages=messages,
        loss=loss,
        tools=trajectory.tools,
        meta={**record_meta(task, judged), **_counts(messages, loss)},
    )


def taught_messages(trajectory: Trajectory) -> tuple[tuple[Message, ...], tuple[bool, ...]]:
    """The conversation to learn, and which of its messages are in the loss.

    In the loss are the steps that lead to the answer, and the answer. In the context alone: a reply that was not the
    end (a nudge follows), a message that was cut or stopped, and one with a call that cannot be read or names no tool
    on offer. A call that was never answered at the end goes. Without an answer the last message stays, untrained.
    """
    names = {tool.name for tool in trajectory.tools}
    answer = taught_answer(trajectory.final_answer)
    body = list(trajectory.messages)
    if answer:
        while body and body[-1].role == "assistant":
            body.pop()
    messages: list[Message] = []
    loss: list[bool] = []
    for message in body:
        is_policy = message.role == "assistant"
        messages.append(_taught(message) if is_policy else message)
        loss.append(is_policy and _is_right_step(message, names))
    if answer:
        messages.append(text_message("assistant", f"{MARKER} {answer}"))
        loss.append(True)
    return tuple(messages), tuple(loss)


def _is_right_step(message: Message, names: set[str]) -> bool:
    if any(message.extra.get(ending) for ending in ENDINGS):
        return False
    return bool(message.tool_calls) and all(
        call.name in names and call.parsed() is not None for call in message.tool_calls
    )


def _taught(message: Message) -> Message:
    parts: list[Part] = []
    for part in message.content:
        if not isinstance(part, TextPart | ThinkingPart):
            parts.append(part)
            continue
        text = taught_reasoning(part.text)
        if text == part.text:
            parts.append(part)
        elif text.strip():
            # A provider's signature is of the text as it was.
            parts.append(TextPart(text=text) if isinstance(part, TextPart) else ThinkingPart(text=text))
    return msgspec.structs.replace(message, content=tuple(parts))


def record_meta(task: OrchestrationTask, judged: Judged) -> dict[str, Any]:
    """What a record says of its task, its grade, the gate, and what it took; as JSON."""
    trajectory = judged.trajectory
    return {
        "task_id": task.task_id,
        "sample": trajectory.sample,
        "domain": task.domain,
        "area": task.area,
        "difficulty": task.difficulty,
        "dataset": task.dataset,
        "gold_answer": task.gold_answer,
        "correct": trajectory.correct,
        "graded_by": trajectory.graded_by,
        "clean": judged.clean,
        "unclean": [str(finding.reason) for finding in judged.findings],
        "kept": judged.kept,
        "routed": judged.routed,
        "reward": judged.reward,
        "end": str(trajectory.end),
        "salvaged": trajectory.salvaged,
        "gen_model": trajectory.policy_model,
        "anonymised": trajectory.labels,
        "metrics": trajectory_metrics(trajectory, judged.cost_nano),
    }


def _counts(messages: tuple[Message, ...], loss: tuple[bool, ...]) -> dict[str, int]:
    return {
        "num_turns": len(turns_of(messages)),
        "n_tool_calls": sum(len(message.tool_calls) for message in messages),
        "n_assistant_spans": sum(message.role == "assistant" for message in messages),
        "n_trained_spans": sum(loss),
    }
