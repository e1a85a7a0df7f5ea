"""What the gates ask for, as one YAML file (``recipes/gates.yaml`` holds the defaults)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from firstchair.core.config import Strict

Share = Annotated[float, Field(gt=0, lt=1)]


class RoutingBounds(Strict):
    """Is the right tool called?"""

    tool_name: Share = 0.80
    """Least share of gold's calls whose tool is right."""
    convention_tool: Share = 0.80
    """The same for each convention tool on its own."""
    strong_tool: Share = 0.75
    """A tool that the baseline takes at least so often where gold takes it must not regress."""
    regression_margin: Share = 0.10
    """Such a tool may lose at most this. That two are equal is never shown, only that one is not worse by so much:
    two models that are right in all of 30 decisions may differ by 11 points, in all of 35 by less than 10."""


class ArgumentBounds(Strict):
    """Are the arguments right, given the right tool?"""

    quality: Share = 0.85
    """Least share that passes leniently."""


class CompletionBounds(Strict):
    """Are whole tasks completed?"""

    margin: Share = 0.05
    """The share of completed tasks may be below the baseline's by at most this."""


class RecoveryBounds(Strict):
    """Does it get over failed calls?"""

    margin: float = Field(default=0.0, gt=-1, lt=1)
    """Better than the baseline by more than this. Below 0 it may be worse by less than that: for a baseline that
    leaves no room to be better."""


class StopBounds(Strict):
    """Does it stop where it should, and in readable form?"""

    precision: Share = 0.90
    """Least share of its stops where gold stops too."""
    malformed: Share = 0.005
    """Largest share of unreadable replies."""


class CostBounds(Strict):
    """Cheaper than the baseline, and not slower than this."""

    p95_ms: float | None = Field(default=None, gt=0)
    """19 of 20 calls take at most so long; ``None``: as long as the baseline's own 95th percentile."""


class RlBounds(Strict):
    """What must hold before reinforcement learning, which otherwise reinforces inconsistency."""

    skill_to_tool: Share = 10 / 35
    """Share of skill decisions that become direct calls of another tool: below this."""
    action_type: Share = 0.70
    """Least share of decisions with the right kind of action."""
    tool_name: Share = 0.27
    """The share of right tools is above this, and above the baseline's."""


class Thresholds(Strict):
    """All bounds. Each is met by the bound of a 95% interval, not by the figure itself."""

    routing: RoutingBounds = RoutingBounds()
    argument_quality: ArgumentBounds = ArgumentBounds()
    completion: CompletionBounds = CompletionBounds()
    recovery: RecoveryBounds = RecoveryBounds()
    stop: StopBounds = StopBounds()
    cost_latency: CostBounds = CostBounds()
    rl_ready: RlBounds = RlBounds()
    max_failed: Annotated[float, Field(ge=0, lt=1)] = 0.01
    """Largest share of decisions, episodes or calls that the machinery failed at. They are in no other figure, so
    many of them could hide what they would have shown."""
