"""What calls cost and how long they took, whichever way that was measured: the gateway's ledger, or a replay run."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from firstchair.evals.metrics import Prices
from firstchair.evals.run_record import DecisionRow


class Call(msgspec.Struct, frozen=True):
    """One answered call."""

    session: str
    usd: float | None
    """``None``: no price is known, or no tokens."""
    latency_s: float


class Spending(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one model."""

    calls: tuple[Call, ...]
    excluded: dict[str, int] = {}
    """Reason → calls that count in nothing."""


def spending_of_run(rows: Iterable[DecisionRow], prices: Prices) -> Spending:
    """One call for each decision that was answered. Latency in a batch is the time until that reply was ready."""
    calls: list[Call] = []
    unanswered = 0
    for row in rows:
        if not row.obtained:
            unanswered += 1
            continue
        known = row.prompt_tokens > 0 and row.output_tokens is not None
        usd = prices.usd(row.prompt_tokens, row.cached_tokens, row.output_tokens or 0) if known else None
        calls.append(Call(row.session_id, usd, row.latency_s))
    return Spending(calls=tuple(calls), excluded={"no answer": unanswered} if unanswered else {})
