"""A problem with a known answer, for an orchestrator of models and tools."""

from __future__ import annotations

from typing import Any

import msgspec


class OrchestrationTask(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One problem. What a verifier needs is for the verifier, never for the model."""

    task_id: str
    problem: str
    """What the policy is shown, after ``Problem: ``."""
    gold_answer: str | None = None
    """``None``: only tests, assertions or a judge can tell."""
    domain: str = "misc"
    """``math``, ``code``, ``science``, ``medical``, ``chat``, ``qa``, ``misc``, …: what verifiers are chosen by."""
    area: str = ""
    difficulty: str = ""
    dataset: str = ""
    choices: tuple[str, ...] = ()
    """Of a multiple-choice question, in the order of their letters; ``gold_answer`` is then a letter."""
    tests: tuple[str, ...] = ()
    """Python programs that exit with 0 when the answer's code, which stands before them, is right."""
    assertions: tuple[str, ...] = ()
    """Sentences that must hold of the answer; for a judge."""
    preference: dict[str, float] = {}
    """What the user wants, tool, ``accuracy``, ``cost`` or ``latency`` → weight; empty: accuracy alone."""
    meta: dict[str, Any] = {}
