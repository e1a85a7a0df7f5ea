"""One sample of a benchmark under one seed: the line of ``rows.jsonl``."""

from __future__ import annotations

from typing import Literal

import msgspec

from firstchair.catalog.token_counts import TokenCounts

Outcome = Literal["graded", "ungraded", "failed"]
"""``ungraded``: there is an answer, and the grader failed. ``failed``: the endpoint, the sandbox or the simulated
user broke before there was one. Neither is a score."""


class BenchRow(msgspec.Struct, frozen=True, kw_only=True):
    """What became of it. ``None`` is unknown, never zero."""

    sample_id: str
    seed: int
    outcome: Outcome
    score: float | None = None
    """From 0 to 1; a number exactly when ``outcome`` is ``graded``."""
    correct: bool | None = None
    """Whether the score is 1."""
    answer: str = ""
    target: str = ""
    error: str = ""
    limit: str = ""
    """The limit of the task that ended it (``message``, ``time``, …); such a sample is graded as it stands."""
    calls: int = 0
    """Of the endpoint."""
    usage: TokenCounts = TokenCounts()
    """Of the endpoint, all calls together."""
    cost_nano: int | None = None
    """Nano-USD of these calls: what the endpoint says (``usage.cost``), else by the price table."""
    helper_calls: int = 0
    """Of the grader or the simulated user; the next two are theirs too."""
    helper_usage: TokenCounts = TokenCounts()
    helper_cost_nano: int | None = None
    latency_s: float = 0.0
    """Seconds that the endpoint took, all calls together; waits between retries are not in it."""
    total_s: float = 0.0
    """Seconds of the whole sample: tools, simulated user and grading too."""
    served_models: tuple[str, ...] = ()
    """As the endpoint names what answered."""
    helper_models: tuple[str, ...] = ()
