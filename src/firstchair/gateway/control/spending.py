"""What a candidate's calls cost in a slot, beside the baseline's: read from the ledger for the gates.

Two ways to compare, both by session:

- the candidate *served* (as canary, fallback or primary): whole sessions of the one against whole sessions of the
  other. A session that both had a part in is left out; half a session is cheap for no merit of its model.
- the candidate only *shadowed*: each copy against the very call that it copied.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, select

from firstchair.catalog.token_counts import NANO
from firstchair.core.errors import ConfigError
from firstchair.core.jsontext import content_id
from firstchair.evals.spending import Call, Spending
from firstchair.gateway.control.ledger import within
from firstchair.gateway.control.slots import Route
from firstchair.gateway.control.tables import ledger
from firstchair.gateway.records import Outcome


class Compared(NamedTuple):
    """Both sides, and what they were read from."""

    baseline: Spending
    candidate: Spending
    how: str
    """``served`` or ``shadowed``."""
    sha256: str
    """Of the rows that count: call, session, cost, latency."""


_COLUMNS = ("call_id", "session", "variant", "shadow_of", "outcome", "provider", "provider_model")


def compare_spending(
    connection: Connection,
    slot: str,
    candidate: Route,
    baseline: Route,
    *,
    since_us: int | None = None,
    until_us: int | None = None,
) -> Compared:
    """The answered calls of two routes in a slot, received in ``[since_us, until_us)``.

    Raises ``ConfigError`` when the ledger has none of either.
    """
    columns = [ledger.c[name] for name in (*_COLUMNS, "cost_nano", "latency_ms")]
    rows = list(connection.execute(within(select(*columns), since_us, until_us, slot).order_by(ledger.c.seq)))
    names = {str(candidate): "candidate", str(baseline): "baseline"}
    excluded: dict[str, Counter[str]] = {"candidate": Counter(), "baseline": Counter()}
    answered: list[tuple[str, Row[Any]]] = []
    for row in rows:
        side = names.get(f"{row.provider}/{row.provider_model}", "")
        if row.outcome == Outcome.OK:
            answered.append((side, row))
        elif side:
            excluded[side][f"ended {row.outcome}"] += 1
    if any(side == "candidate" and row.variant != "shadow" for side, row in answered):
        how, pairs = "served", _served(answered, excluded)
    else:
        how, pairs = "shadowed", _shadowed(answered, excluded)
    for side, calls in pairs.items():
        if not calls:
            raise ConfigError(
                f"--ledger: slot {slot}: no call of {candidate if side == 'candidate' else baseline} that can be "
                "compared; let the candidate be canary or shadow for a while, or correct route, slot and times"
            )
    return Compared(
        baseline=_spending(pairs["baseline"], excluded["baseline"]),
        candidate=_spending(pairs["candidate"], excluded["candidate"]),
        how=how,
        sha256=content_id(
            {
                side: [[session, row.call_id, row.cost_nano, row.latency_ms] for session, row in calls]
                for side, calls in pairs.items()
            }
        ),
    )


_Sides = dict[str, list[tuple[str, Row[Any]]]]
"""Side → session and row of each call that counts."""


def _served(answered: list[tuple[str, Row[Any]]], excluded: dict[str, Counter[str]]) -> _Sides:
    whose: dict[str, set[str]] = {}
    for side, row in answered:
        if row.variant != "shadow":
            whose.setdefault(row.session, set()).add(side)
    found: _Sides = {"candidate": [], "baseline": []}
    for side, row in answered:
        if not side:
            continue
        if row.variant == "shadow":
            excluded[side]["a shadow"] += 1
        elif not row.session:
            excluded[side]["no session"] += 1
        elif len(whose[row.session]) > 1:
            excluded[side]["session that others served too"] += 1
        else:
            found[side].append((row.session, row))
    return found


def _shadowed(answered: list[tuple[str, Row[Any]]], excluded: dict[str, Counter[str]]) -> _Sides:
    copied = {row.call_id: row for side, row in answered if side == "baseline" and row.variant != "shadow"}
    found: _Sides = {"candidate": [], "baseline": []}
    for side, row in answered:
        if side != "candidate":
            continue
        original = copied.pop(row.shadow_of, None)
        if original is None:
            excluded[side]["copied a call that the baseline did not answer"] += 1
        elif not original.session:
            excluded[side]["no session"] += 1
        else:
            found["candidate"].append((original.session, row))
            found["baseline"].append((original.session, original))
    excluded["baseline"]["not copied to the candidate"] += len(copied)
    return found


def _spending(calls: list[tuple[str, Row[Any]]], excluded: Counter[str]) -> Spending:
    return Spending(
        calls=tuple(
            Call(session, None if row.cost_nano is None else row.cost_nano / NANO, row.latency_ms / 1000)
            for session, row in calls
        ),
        excluded={reason: count for reason, count in excluded.items() if count},
    )
