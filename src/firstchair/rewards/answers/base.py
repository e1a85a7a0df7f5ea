"""The one interface to graders of final answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from firstchair.rollout.orchestration.task import OrchestrationTask


@dataclass(frozen=True)
class Grade:
    """What a grader says of one answer."""

    correct: bool | None
    """``None``: it could not be graded, which says nothing about the answer."""
    how: str
    """Which grader said so: ``math``, ``code``, ``choice``, ``exact``, ``f1``, ``judge``, or why none could."""
    detail: str = ""


@runtime_checkable
class AnswerGrader(Protocol):
    """Grades final answers against their tasks; many at once."""

    async def grade(self, task: OrchestrationTask, answer: str) -> Grade:
        """Whether ``answer`` solves ``task``. A grader that breaks gives a grade without ``correct``."""
        ...

    async def close(self) -> None:
        """Release processes and connections."""
        ...
