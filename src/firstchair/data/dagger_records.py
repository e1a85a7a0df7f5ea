"""What DAgger's lessons become: SFT records, each once; and the slice of earlier records replayed with them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from firstchair.core.jsonl import read_jsonl
from firstchair.core.jsontext import content_id
from firstchair.data.sft import SftRecord, read_sft
from firstchair.rollout.dagger import Lesson, MixedEpisode, Why
from firstchair.traces.session import turns_of


def lesson_records(episode: MixedEpisode, *, round_number: int, policy: str, teacher: str) -> Iterator[SftRecord]:
    """One record for each lesson; the loss is on the teacher's actions alone."""
    for lesson in episode.lessons:
        taught = frozenset(lesson.taught)
        yield SftRecord(
            id=f"dagger-{round_number}:{episode.task_id}:{lesson.step}:{lesson.why}",
            source="rollout",
            messages=lesson.messages,
            loss=tuple(place in taught for place in range(len(lesson.messages))),
            tools=episode.tools,
            meta={
                "why": str(lesson.why),
                "agreed": lesson.why is Why.AGREED,
                "policy": policy,
                "teacher": teacher,
                "round": round_number,
                "step": lesson.step,
                "derailed_at": lesson.derailed_at,
                **_counts(lesson),
                "labels": episode.session.labels,
            },
        )


def _counts(lesson: Lesson) -> dict[str, int]:
    return {
        "num_turns": len(turns_of(lesson.messages)),
        "n_tool_calls": sum(len(message.tool_calls) for message in lesson.messages),
        "n_assistant_spans": sum(message.role == "assistant" for message in lesson.messages),
        "n_trained_spans": len(lesson.taught),
    }


def new_records(records: Iterable[SftRecord], seen: set[str]) -> Iterator[SftRecord]:
    """Those that teach what no record before them did; ``seen`` grows by what they say."""
    for record in records:
        key = content_id(
            [
                [
                    [
                        message.role,
                        message.text,
                        message.thinking,
                        [[c.name, c.arguments] for c in message.tool_calls],
                    ]
                    for message in record.messages
                ],
                record.loss,
            ]
        )
        if key not in seen:
            seen.add(key)
            yield record


def replay_slice(path: Path, *, lessons: int, share: float, seed: int) -> list[SftRecord]:
    """A random slice of the records in ``path`` that makes up ``share`` of itself and so many ``lessons`` together.

    All of them where the file has fewer. The file is read twice; memory is that of the slice.
    """
    available = sum(1 for _ in read_jsonl(path))
    wanted = min(available, round(lessons * share / (1.0 - share)))
    chosen = frozenset(Random(seed).sample(range(available), wanted))
    return [record for place, record in enumerate(read_sft(path)) if place in chosen]
