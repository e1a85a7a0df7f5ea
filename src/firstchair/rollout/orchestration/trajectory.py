"""What one orchestration rollout did: the conversation as the policy saw it, every dispatch, and what it all cost."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from firstchair.catalog.experts import DispatchKind
from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, Tool


class Dispatch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call of a tool or an expert that was carried out."""

    step: int
    """0 for the policy's first action."""
    label: str
    """The name that the policy called it by."""
    name: str
    """Its name in the catalog."""
    kind: DispatchKind
    latency_s: float = 0.0
    usage: TokenCounts | None = None
    """Of an expert; ``None`` for tools."""
    cost_nano: int | None = 0
    """Nano-USD; ``None``: no price is known."""
    served_model: str = ""
    error_kind: str | None = None
    """Why there was no answer, where the expert or tool failed: an ``ErrorKind``, ``tool_failed`` (its machinery
    broke), ``tool_error`` (it says that it could not) or ``cancelled`` (nobody waited for it any more)."""
    error: str = ""
    """The server's or tool's own words about it. Of an expert the policy never sees them: they may tell its name."""
    started_s: float = 0.0
    """Seconds after the rollout's start."""
    cut: bool = False
    """The observation was longer than its cap."""
    empty: bool = False
    """It answered nothing."""


class TrajectoryEnd(StrEnum):
    """How a rollout ended."""

    ANSWERED = "answered"
    """A step without a call."""
    MAX_STEPS = "max_steps"
    PARSE_FAILURES = "parse_failures"
    """Too many calls that could not be read or name no tool."""
    CUT = "cut"
    """Another limit of the episode: tokens, wall clock, context, budget, the provider's filter."""
    FAILED = "failed"
    """The machinery broke; nothing is said about the policy."""


class Notes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the environment alone knows of a rollout; stands in the session's ``meta["environment"]``. The fields are
    those of ``Trajectory``.
    """

    end: TrajectoryEnd | None = None
    """``None``: the environment did not end it."""
    final_answer: str = ""
    salvaged: bool = False
    dispatches: tuple[Dispatch, ...] = ()
    nudges: dict[str, int] = {}
    parse_failures: int = 0
    labels: dict[str, str] = {}
    latency_s: float = 0.0
    correct: bool | None = None
    graded_by: str = ""
    grade_detail: str = ""


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One rollout, complete: what graders, the clean gate, serialization and viewers read."""

    task_id: str
    sample: int
    messages: tuple[Message, ...]
    """System, ``Problem: …``, then assistant and tool messages as the policy saw them, nudges among them."""
    tools: tuple[Tool, ...]
    """Exactly as the policy saw them."""
    labels: dict[str, str] = {}
    """Label that the policy saw → name in the catalog, for analysis only; empty when nothing was anonymised."""
    end: TrajectoryEnd
    final_answer: str = ""
    """What stands after the last ``FINAL_ANSWER:``, else the text of the last step."""
    salvaged: bool = False
    """The answer was taken from a rollout that never came to answer."""
    dispatches: tuple[Dispatch, ...] = ()
    nudges: dict[str, int] = {}
    """Kind → how often."""
    parse_failures: int = 0
    prompt_tokens: int = 0
    """Of the policy itself; experts have theirs in ``dispatches``."""
    completion_tokens: int = 0
    policy_model: str = ""
    policy_cost_nano: int | None = None
    latency_s: float = 0.0
    """From the first request to the end."""
    seed: int | None = None
    error: str | None = None
    correct: bool | None = None
    """``None``: not graded."""
    graded_by: str = ""
    grade_detail: str = ""
    trace_id: str = ""
    """Of its OpenTelemetry spans."""
    meta: dict[str, Any] = {}

    @property
    def known_cost_nano(self) -> int:
        """Nano-USD of the dispatches that have a known price."""
        return sum(dispatch.cost_nano or 0 for dispatch in self.dispatches)

    @property
    def unpriced(self) -> int:
        """How many dispatches have none."""
        return sum(dispatch.cost_nano is None for dispatch in self.dispatches)

    @property
    def expert_cost_nano(self) -> int | None:
        """Nano-USD of all dispatches; ``None`` when one has no known price."""
        return None if self.unpriced else self.known_cost_nano
