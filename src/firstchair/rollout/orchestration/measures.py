"""What a rollout took, as numbers for rewards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from firstchair.catalog.token_counts import NANO
from firstchair.rollout.orchestration.dispatching import FAULTS
from firstchair.rollout.orchestration.trajectory import Notes


def measures_of(notes: Notes, names: Iterable[str], waited_s: float) -> dict[str, float]:
    """``cost_usd`` of all experts (left out when a price is not known), ``latency_s`` (waiting for experts and tools;
    of calls made at once the longest), ``calls`` and ``calls.<name in the catalog>`` for everything on offer,
    ``faults`` (experts and tools that broke), ``unpriced``, ``parse_failures``, ``nudges``, ``salvaged``.
    """
    made = Counter(one.name for one in notes.dispatches)
    costs = [one.cost_nano for one in notes.dispatches]
    priced = [cost for cost in costs if cost is not None]
    found: dict[str, float] = {
        "latency_s": waited_s,
        "calls": len(costs),
        "faults": sum(one.error_kind in FAULTS for one in notes.dispatches),
        "unpriced": len(costs) - len(priced),
        "parse_failures": notes.parse_failures,
        "nudges": sum(notes.nudges.values()),
        "salvaged": float(notes.salvaged),
    }
    if len(priced) == len(costs):
        found["cost_usd"] = sum(priced) / NANO
    return found | {f"calls.{name}": made[name] for name in names}
