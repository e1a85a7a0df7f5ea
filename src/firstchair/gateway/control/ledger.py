"""The ledger: one row a call, and reports whose totals are the sums of those rows, to the last nano-USD.

Nothing is stored that can be derived: tokens of a call are the sum of five disjoint counters, a report is a ``GROUP
BY``, a total is the sum of its lines. Shadow calls are billed apart: nobody was served by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, get_args

import msgspec
from sqlalchemy import Connection, Row, bindparam, case, func, insert, select, update

from firstchair.core.errors import ConfigError
from firstchair.gateway.control.tables import COUNTERS, ledger
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.traces.times import utc_text

By = Literal["slot", "model", "provider", "key", "day", "session"]
GROUPS: tuple[By, ...] = get_args(By)
UsageState = Literal["reported", "estimated", "absent", "absurd"]
"""Whose word the counters are: the provider's, ours (counted from the text), nobody's (all 0), or a provider's that
cannot be true (all 0; its own words are in ``raw_usage``)."""

MAX_TOKENS = 10**12
"""Of one counter of one call; more is absurd, and would spoil every sum that it is part of."""
MAX_NANO = 10**18
"""Of one call: a billion dollars."""
MAX_NAME = 512
"""Characters of a name that a client or provider chose."""
BATCH = 200


# --- writing ----------------------------------------------------------------------------------------------------


def insert_records(connection: Connection, records: Iterable[CallRecord]) -> int:
    """Write one row for each record that the ledger does not have yet; how many that were.

    ``connection`` is a write transaction of the caller (``ControlStore.transaction``): rows and whatever marks the
    records as read come and go together. No record can fail it: what a column has no room for is cut or left out.
    """
    added = 0
    pending = iter(records)
    while batch := {record.call_id: record for record in islice(pending, BATCH)}:
        known = set(connection.execute(select(ledger.c.call_id).where(ledger.c.call_id.in_(batch))).scalars())
        rows = [row_of(record) for call_id, record in batch.items() if call_id not in known]
        if rows:
            connection.execute(insert(ledger), rows)
        added += len(rows)
    return added


def set_sessions(connection: Connection, sessions: Mapping[str, str]) -> None:
    """Name the session of calls (``call_id`` → session) that was found out after their rows were written."""
    if sessions:
        one = update(ledger).where(ledger.c.call_id == bindparam("of_call")).values(session=bindparam("to_session"))
        rows = [{"of_call": call_id, "to_session": _name(session)} for call_id, session in sessions.items()]
        connection.execute(one, rows)


def row_of(record: CallRecord) -> dict[str, Any]:
    """The row of one call, by column."""
    state, counts = _counts(record)
    believed = state != "absurd"
    return {
        "call_id": record.call_id,
        "received_us": record.received_us,
        "day": utc_text(record.received_us)[:10],
        "worker": _name(record.worker),
        "slot": record.slot,
        "slot_version": record.slot_version,
        "dialect": record.dialect,
        "requested_model": _name(record.requested_model),
        "stream": record.stream,
        "key_id": record.key_id,
        "session": _name(record.session),
        "client_user": _name(record.user),
        "variant": record.variant,
        "shadow_of": record.shadow_of,
        "provider": record.provider,
        "provider_model": _name(record.provider_model),
        "response_model": _name(record.response_model),
        "attempts": _json(record.attempts),
        "outcome": record.outcome.value,
        "status": record.status,
        "failure": record.failure.value if record.failure else "",
        "error": _name(record.error),
        "finish": record.finish,
        "native_finish": _name(record.native_finish),
        "latency_ms": record.latency_ms,
        "ttft_ms": record.ttft_ms,
        "upstream_ms": record.upstream_ms,
        "usage_state": state,
        **counts,
        "raw_usage": "" if record.raw_usage is None else _json(record.raw_usage),
        "cost_nano": _money(record.cost_nano) if believed else None,
        "counterfactual_nano": _money(record.counterfactual_nano) if believed else None,
        "price_version": record.price_version,
        "dropped": _json(record.dropped),
        "malformed_calls": record.malformed_calls,
        "agreement": record.agreement,
    }


def _counts(record: CallRecord) -> tuple[UsageState, dict[str, int | None]]:
    usage = record.usage
    nothing: dict[str, int | None] = {**{f"tokens_{name}": 0 for name in COUNTERS}, "tokens_reasoning": None}
    if usage is None:
        return "absent", nothing
    counts: dict[str, int | None] = {f"tokens_{name}": getattr(usage, name) for name in COUNTERS}
    reasoning = usage.reasoning
    sane = all(value is not None and 0 <= value <= MAX_TOKENS for value in counts.values())
    if not sane or not 0 <= (reasoning or 0) <= usage.output:
        return "absurd", nothing
    return "estimated" if record.estimated else "reported", {**counts, "tokens_reasoning": reasoning}


def _money(nano: int | None) -> int | None:
    return nano if nano is not None and 0 <= nano <= MAX_NANO else None


def _name(text: str) -> str:
    """A name from outside, for a column: no U+0000, which PostgreSQL has no room for, and not without end."""
    clean = text.replace("\0", "\ufffd")
    return clean if len(clean) <= MAX_NAME else clean[: MAX_NAME - 1] + "…"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- reports ----------------------------------------------------------------------------------------------------


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over the calls of one group; ``+`` gives those of both."""

    name: str
    calls: int = 0
    outcomes: dict[str, int] = {}
    """Calls by how they ended; together all calls."""
    fallbacks: int = 0
    """Answered by another route than the one chosen first."""
    input: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int = 0
    """Part of ``output``, where the provider says it."""
    usage: dict[str, int] = {}
    """Calls by whose word their counters are (``UsageState``); together all calls."""
    cost_nano: int = 0
    """Over the calls that have a price."""
    unpriced_calls: int = 0
    """Calls with tokens and without a price: cost is at least ``cost_nano``."""
    counterfactual_nano: int = 0
    """What the incumbent would have cost, over the calls that know both; ``compared_nano`` is what they did cost."""
    compared_nano: int = 0
    compared_calls: int = 0
    latency_ms: float = 0.0
    """Sum over the calls."""
    ttft_ms: float = 0.0
    """Sum over ``ttft_calls``."""
    ttft_calls: int = 0

    @property
    def tokens(self) -> int:
        return sum(getattr(self, name) for name in COUNTERS)

    @property
    def saved_nano(self) -> int:
        """What the incumbent would have cost more; negative when it would have been cheaper."""
        return self.counterfactual_nano - self.compared_nano

    @property
    def mean_latency_ms(self) -> float | None:
        return self.latency_ms / self.calls if self.calls else None

    @property
    def mean_ttft_ms(self) -> float | None:
        return self.ttft_ms / self.ttft_calls if self.ttft_calls else None

    def __add__(self, other: Line) -> Line:
        values: dict[str, Any] = {"name": self.name}
        for field in self.__struct_fields__[1:]:
            mine, theirs = getattr(self, field), getattr(other, field)
            values[field] = _added(mine, theirs) if isinstance(mine, dict) else mine + theirs
        return Line(**values)


def _added(first: Mapping[str, int], second: Mapping[str, int]) -> dict[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in sorted({*first, *second})}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of calls that served somebody, and those of shadow calls."""

    by: By
    lines: list[Line]
    shadow: list[Line]

    @property
    def total(self) -> Line:
        return sum(self.lines, Line(name="total"))

    @property
    def shadow_total(self) -> Line:
        return sum(self.shadow, Line(name="total"))


_GROUP = {
    "slot": ledger.c.slot,
    "model": case((ledger.c.provider_model != "", ledger.c.provider_model), else_=ledger.c.requested_model),
    "provider": ledger.c.provider,
    "key": ledger.c.key_id,
    "day": ledger.c.day,
    "session": ledger.c.session,
}
_OUTCOMES = tuple(outcome.value for outcome in Outcome)
_STATES: tuple[UsageState, ...] = get_args(UsageState)
_SHADOW = case((ledger.c.variant == "shadow", 1), else_=0)


def report(
    connection: Connection, by: By, *, since_us: int | None = None, until_us: int | None = None, slot: str = ""
) -> Report:
    """Sums by ``by``, of calls received in ``[since_us, until_us)``; lines by name. Raises ``ConfigError``."""
    if by not in _GROUP:
        raise ConfigError(f"ledger: by: found {by!r}; expected one of {', '.join(GROUPS)}")
    both = ledger.c.cost_nano.is_not(None) & ledger.c.counterfactual_nano.is_not(None)
    name = _GROUP[by].label("name")
    query = select(
        _SHADOW.label("is_shadow"),
        name,
        func.count().label("calls"),
        *(_count(ledger.c.outcome == outcome).label(f"outcome_{outcome}") for outcome in _OUTCOMES),
        *(_count(ledger.c.usage_state == state).label(f"usage_{state}") for state in _STATES),
        _count(ledger.c.variant == "fallback").label("fallbacks"),
        *(func.sum(ledger.c[f"tokens_{counter}"]).label(counter) for counter in (*COUNTERS, "reasoning")),
        func.sum(ledger.c.cost_nano).label("cost_nano"),
        _count(ledger.c.cost_nano.is_(None) & (_tokens() > 0)).label("unpriced_calls"),
        func.sum(case((both, ledger.c.counterfactual_nano))).label("counterfactual_nano"),
        func.sum(case((both, ledger.c.cost_nano))).label("compared_nano"),
        _count(both).label("compared_calls"),
        func.sum(ledger.c.latency_ms).label("latency_ms"),
        func.sum(ledger.c.ttft_ms).label("ttft_ms"),
        func.count(ledger.c.ttft_ms).label("ttft_calls"),
    )
    # By their places: an expression with parameters is not the same twice to PostgreSQL.
    query = within(query, since_us, until_us, slot).group_by("is_shadow", "name").order_by("name")
    lines: tuple[list[Line], list[Line]] = ([], [])
    for row in connection.execute(query):
        lines[row.is_shadow].append(_line(row))
    return Report(by=by, lines=lines[0], shadow=lines[1])


def _count(condition: Any) -> Any:
    return func.sum(case((condition, 1), else_=0))


def _tokens() -> Any:
    return sum((ledger.c[f"tokens_{counter}"] for counter in COUNTERS[1:]), ledger.c[f"tokens_{COUNTERS[0]}"])


def within(query: Any, since_us: int | None, until_us: int | None, slot: str) -> Any:
    """``query`` of the ledger, for calls received in ``[since_us, until_us)``, of one slot unless it is empty."""
    if since_us is not None:
        query = query.where(ledger.c.received_us >= since_us)
    if until_us is not None:
        query = query.where(ledger.c.received_us < until_us)
    return query.where(ledger.c.slot == slot) if slot else query


def _line(row: Row[Any]) -> Line:
    found = row._asdict()
    whole = ["calls", "fallbacks", *COUNTERS, "reasoning", "cost_nano", "unpriced_calls", "counterfactual_nano"]
    whole += ["compared_nano", "compared_calls", "ttft_calls"]
    return Line(
        name=found["name"],
        outcomes=_nonzero(found, "outcome_", _OUTCOMES),
        usage=_nonzero(found, "usage_", _STATES),
        latency_ms=float(found["latency_ms"] or 0),
        ttft_ms=float(found["ttft_ms"] or 0),
        **{field: int(found[field] or 0) for field in whole},
    )


def _nonzero(found: Mapping[str, Any], prefix: str, names: Sequence[str]) -> dict[str, int]:
    return {name: count for name in names if (count := int(found[prefix + name] or 0))}


# --- single calls -----------------------------------------------------------------------------------------------


def tail(
    connection: Connection, limit: int = 20, *, after_seq: int | None = None, slot: str = ""
) -> list[dict[str, Any]]:
    """The newest calls by column, the oldest of them first; with ``after_seq`` the next ones after that row."""
    query = select(ledger).limit(limit)
    if slot:
        query = query.where(ledger.c.slot == slot)
    if after_seq is None:
        rows = list(connection.execute(query.order_by(ledger.c.seq.desc())))[::-1]
    else:
        rows = list(connection.execute(query.where(ledger.c.seq > after_seq).order_by(ledger.c.seq)))
    return [_call(row) for row in rows]


def _call(row: Row[Any]) -> dict[str, Any]:
    found = row._asdict()
    for name in ("attempts", "dropped", "raw_usage"):
        found[name] = msgspec.json.decode(found[name]) if found[name] else None
    return found
