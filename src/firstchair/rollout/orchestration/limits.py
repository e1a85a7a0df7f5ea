"""How far one orchestration rollout may go."""

from __future__ import annotations

from pydantic import Field

from firstchair.core.config import Strict


class OrchestrationLimits(Strict):
    """Caps, nudges and what ends a rollout. The number of steps is the run's (``RolloutPlan.max_steps``)."""

    observation_chars: int = Field(default=8_000, ge=100)
    """Of one answer of an expert or a tool; the rest is cut, and said to be."""
    history_chars: int = Field(default=24_000, ge=1_000)
    """Of all exchanges that the policy is shown, beside system message and problem, which stay whole. The oldest
    exchange goes first; the last one always stays."""
    answer_after_calls: int = Field(default=6, ge=1)
    """From this many calls on, a note asks for the answer after every further one."""
    delegation_nudges: int = Field(default=2, ge=0)
    """How often a policy that answers before it has asked any model is told to ask one."""
    empty_nudges: int = Field(default=3, ge=0)
    """How often a call with nothing in it is taken back and told; the next one ends the rollout."""
    parse_failures: int = Field(default=2, ge=1)
    """Steps that cannot be read or name no tool; the one that makes it so many ends the rollout."""
    dispatch_s: float = Field(default=600.0, gt=0)
    """Longest wait for one expert or tool, whose own timeouts and tries lie within."""
