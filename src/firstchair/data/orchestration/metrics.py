"""What a trajectory took: money, tokens, time, calls; kept apart by expert and tool."""

from __future__ import annotations

from typing import Any

import msgspec

from firstchair.catalog.token_counts import NANO
from firstchair.rollout.orchestration.trajectory import Trajectory


class ToolUse(msgspec.Struct, kw_only=True):
    """The dispatches of one tool or expert, by its name in the catalog."""

    kind: str
    calls: int = 0
    failed: int = 0
    """Gave no answer."""
    empty: int = 0
    cut: int = 0
    """Gave more than an observation may hold."""
    cost_nano: int = 0
    """Of the calls with a known price."""
    unpriced: int = 0
    """Calls whose price is unknown."""
    input_tokens: int = 0
    """Cached ones too."""
    output_tokens: int = 0
    latency_s: float = 0.0
    """Of all calls together."""


def add_uses(uses: dict[str, ToolUse], trajectory: Trajectory) -> None:
    """Count the dispatches of ``trajectory`` into ``uses``."""
    for dispatch in trajectory.dispatches:
        use = uses.setdefault(dispatch.name, ToolUse(kind=dispatch.kind))
        use.calls += 1
        use.failed += dispatch.error_kind is not None
        use.empty += dispatch.empty
        use.cut += dispatch.cut
        use.cost_nano += dispatch.cost_nano or 0
        use.unpriced += dispatch.cost_nano is None
        use.latency_s += dispatch.latency_s
        if (used := dispatch.usage) is not None:
            use.input_tokens += used.input + used.cache_read + used.cache_write_5m + used.cache_write_1h
            use.output_tokens += used.output


def usd(nano: int | None) -> float | None:
    """Nano-USD as USD; ``None`` stays unknown."""
    return None if nano is None else nano / NANO


def trajectory_metrics(trajectory: Trajectory, cost_nano: int | None) -> dict[str, Any]:
    """The metrics of a training record, as JSON. ``cost_nano``: of the whole trajectory."""
    uses: dict[str, ToolUse] = {}
    add_uses(uses, trajectory)
    return {
        "cost_usd": usd(cost_nano),
        "policy_cost_usd": usd(trajectory.policy_cost_nano),
        "prompt_tokens": trajectory.prompt_tokens,
        "completion_tokens": trajectory.completion_tokens,
        "latency_s": trajectory.latency_s,
        "steps": sum(message.role == "assistant" for message in trajectory.messages),
        "parse_failures": trajectory.parse_failures,
        "nudges": trajectory.nudges,
        "tools": {
            name: {
                "kind": use.kind,
                "calls": use.calls,
                "failed": use.failed,
                "cost_usd": None if use.unpriced else usd(use.cost_nano),
                "input_tokens": use.input_tokens,
                "output_tokens": use.output_tokens,
                "latency_s": use.latency_s,
            }
            for name, use in uses.items()
        },
    }
