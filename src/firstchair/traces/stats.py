"""Counts over stored sessions, computed by the database."""

from __future__ import annotations

from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, func, select

from firstchair.traces.schema import session_tools, sessions


class ToolStats(msgspec.Struct, frozen=True, kw_only=True):
    """One tool's traffic."""

    tool: str
    sessions: int
    calls: int
    errors: int
    """Results that were errors."""


class StoreStats(msgspec.Struct, frozen=True, kw_only=True):
    """What a store (or the part of it that filters choose) holds."""

    sessions: int
    turns: int
    messages: int
    tool_calls: int
    tool_errors: int
    model_calls: int
    model_errors: int
    tokens_input: int
    tokens_output: int
    tokens_cache_read: int
    tokens_cache_write: int
    cost_usd: float
    catalogs: int
    """Distinct tool lists."""
    first_created_at: str
    last_created_at: str
    by_source: dict[str, int]
    """Source → sessions."""
    tools: tuple[ToolStats, ...]
    """Most called first."""


_SUMS = {
    "turns": sessions.c.num_turns,
    "messages": sessions.c.num_messages,
    "tool_calls": sessions.c.num_tool_calls,
    "tool_errors": sessions.c.num_tool_errors,
    "model_calls": sessions.c.num_model_calls,
    "model_errors": sessions.c.num_model_errors,
    "tokens_input": sessions.c.tokens_input,
    "tokens_output": sessions.c.tokens_output,
    "tokens_cache_read": sessions.c.tokens_cache_read,
    "tokens_cache_write": sessions.c.tokens_cache_write,
}


def read_stats(connection: Connection, where: list[ColumnElement[bool]]) -> StoreStats:
    """Counts over the sessions that meet every condition."""
    columns: list[Any] = [func.coalesce(func.sum(column), 0).label(name) for name, column in _SUMS.items()]
    columns.append(func.coalesce(func.sum(sessions.c.cost_usd), 0.0).label("cost_usd"))
    columns.append(func.count().label("sessions"))
    columns.append(func.count(sessions.c.catalog_id.distinct()).label("catalogs"))
    row = connection.execute(select(*columns).select_from(sessions).where(*where)).mappings().one()
    by_source = connection.execute(
        select(sessions.c.source, func.count()).where(*where).group_by(sessions.c.source).order_by(sessions.c.source)
    )
    chosen = select(sessions.c.seq).where(*where)
    per_tool = connection.execute(
        select(
            session_tools.c.tool,
            func.count(),
            func.sum(session_tools.c.calls),
            func.sum(session_tools.c.errors),
        )
        .where(session_tools.c.seq.in_(chosen))
        .group_by(session_tools.c.tool)
        .order_by(func.sum(session_tools.c.calls).desc(), session_tools.c.tool)
    )
    return StoreStats(
        sessions=int(row["sessions"]),
        catalogs=int(row["catalogs"]),
        cost_usd=float(row["cost_usd"]),
        **{name: int(row[name]) for name in _SUMS},
        first_created_at=_edge(connection, where, last=False),
        last_created_at=_edge(connection, where, last=True),
        by_source={source: int(count) for source, count in by_source},
        tools=tuple(
            ToolStats(tool=tool, sessions=int(number), calls=int(calls), errors=int(errors))
            for tool, number, calls, errors in per_tool
        ),
    )


def _edge(connection: Connection, where: list[ColumnElement[bool]], *, last: bool) -> str:
    order = sessions.c.created_us.desc() if last else sessions.c.created_us
    query = select(sessions.c.created_at).where(*where, sessions.c.created_us.is_not(None)).order_by(order).limit(1)
    return connection.execute(query).scalar() or ""
