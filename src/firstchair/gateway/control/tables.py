"""Tables of the gateway's database. All names begin with ``gateway_``, so that it may be the trace store's too.

    gateway_info           layout, revision: bumped by every change that workers must see
    gateway_slots          slot → its version in force ──> gateway_slot_versions: every one there ever was
    gateway_keys           digest, scopes, limits ──< gateway_budgets (spent, reserved) ──< gateway_reservations
    gateway_workers        heartbeat and the revision each worker has seen
    gateway_audit          who did what, when, why
    gateway_ledger         one row a call

Money is whole nano-USD, times are microseconds since 1970 UTC.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, Float, Index, Integer, MetaData, String, Table, Text

LAYOUT = "1"
"""Of these tables; a database of another layout is refused, not guessed at."""

metadata = MetaData()

_auto = BigInteger().with_variant(Integer, "sqlite")

info = Table(
    "gateway_info",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
    Column("number", BigInteger, nullable=False, default=0),
)

slots = Table(
    "gateway_slots",
    metadata,
    Column("slot", String(64), primary_key=True),
    Column("version", Integer, nullable=False),
)

slot_versions = Table(
    "gateway_slot_versions",
    metadata,
    Column("slot", String(64), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("config", Text),  # JSON; NULL: the slot was removed
    Column("action", String(16), nullable=False),
    Column("restores", Integer),  # the version whose configuration a rollback brought back
    Column("who", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("at_us", BigInteger, nullable=False),
)

keys = Table(
    "gateway_keys",
    metadata,
    Column("key_id", String(64), primary_key=True),
    Column("name", String(64), nullable=False),
    Column("digest", String(64), nullable=False, unique=True),
    Column("scopes", Text, nullable=False),
    Column("budget_nano", BigInteger),
    Column("budget_period", String(8), nullable=False),
    Column("requests_per_minute", Integer),
    Column("tokens_per_minute", BigInteger),
    Column("who", Text, nullable=False),
    Column("created_us", BigInteger, nullable=False),
    Column("revoked_us", BigInteger),
)

budgets = Table(
    "gateway_budgets",
    metadata,
    Column("key_id", String(64), primary_key=True),
    Column("period", String(16), nullable=False),  # "2026-01-31", "2026-01"; "" for all time
    Column("spent_nano", BigInteger, nullable=False),
    Column("reserved_nano", BigInteger, nullable=False),
)

reservations = Table(
    "gateway_reservations",
    metadata,
    Column("worker", String(64), primary_key=True),
    Column("key_id", String(64), primary_key=True),
    Column("reserved_nano", BigInteger, nullable=False),
)

workers = Table(
    "gateway_workers",
    metadata,
    Column("worker", String(64), primary_key=True),
    Column("started_us", BigInteger, nullable=False),
    Column("heartbeat_us", BigInteger, nullable=False),
    Column("seen_revision", BigInteger, nullable=False),
)

audit = Table(
    "gateway_audit",
    metadata,
    Column("seq", _auto, primary_key=True, autoincrement=True),
    Column("at_us", BigInteger, nullable=False),
    Column("who", Text, nullable=False),
    Column("action", String(32), nullable=False),
    Column("target", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("details", Text, nullable=False),  # JSON object
)

COUNTERS = ("input", "cache_read", "cache_write_5m", "cache_write_1h", "output")
"""Disjoint: their sum is every token of a call."""

ledger = Table(
    "gateway_ledger",
    metadata,
    Column("seq", _auto, primary_key=True, autoincrement=True),
    Column("call_id", String(64), nullable=False, unique=True),
    Column("received_us", BigInteger, nullable=False),
    Column("day", String(10), nullable=False),  # UTC
    Column("worker", Text, nullable=False),
    Column("slot", Text, nullable=False),
    Column("slot_version", Integer, nullable=False),
    Column("dialect", String(16), nullable=False),
    Column("requested_model", Text, nullable=False),
    Column("stream", Boolean, nullable=False),
    Column("key_id", Text, nullable=False),
    Column("session", Text, nullable=False),
    Column("client_user", Text, nullable=False),
    Column("variant", String(16), nullable=False),
    Column("shadow_of", Text, nullable=False),
    Column("provider", Text, nullable=False),
    Column("provider_model", Text, nullable=False),
    Column("response_model", Text, nullable=False),
    Column("attempts", Text, nullable=False),  # JSON list
    Column("outcome", String(32), nullable=False),
    Column("status", Integer, nullable=False),
    Column("failure", Text, nullable=False),
    Column("error", Text, nullable=False),
    Column("finish", Text, nullable=False),
    Column("native_finish", Text, nullable=False),
    Column("latency_ms", Float, nullable=False),
    Column("ttft_ms", Float),
    Column("upstream_ms", Float),
    Column("usage_state", String(16), nullable=False),
    *(Column(f"tokens_{name}", BigInteger, nullable=False) for name in COUNTERS),
    Column("tokens_reasoning", BigInteger),  # part of output; NULL: the provider does not say
    Column("raw_usage", Text, nullable=False),  # JSON; "" when the provider said nothing
    Column("cost_nano", BigInteger),
    Column("counterfactual_nano", BigInteger),
    Column("price_version", Text, nullable=False),
    Column("dropped", Text, nullable=False),  # JSON list
    Column("malformed_calls", Integer, nullable=False),
    Column("agreement", String(16), nullable=False),
    Index("ix_gateway_ledger_received", "received_us"),
    Index("ix_gateway_ledger_session", "session"),
)
