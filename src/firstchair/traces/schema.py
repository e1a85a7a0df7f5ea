"""Tables of the trace store. Conversations are JSON text, never columns: a schema or an argument keeps its bytes.

    catalogs ──< sessions ──< session_labels   (filters)
                     └──────< session_tools    (filters, statistics)

``seq`` is the order of arrival and the key of the side tables: reading pages by it, so order is stable and
memory is one page. PostgreSQL cannot hold U+0000 in text; JSON writes it as an escape, so bodies may carry it.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table, Text

STORE_VERSION = "1"
"""Layout of these tables; a store of another version is refused, not guessed at."""

metadata = MetaData()

store_info = Table(
    "store_info",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", Text, nullable=False),
)

catalogs = Table(
    "catalogs",
    metadata,
    Column("catalog_id", String(64), primary_key=True),
    Column("tools", Text, nullable=False),
    Column("received", Text),
)

_seq_key = BigInteger().with_variant(Integer, "sqlite")

sessions = Table(
    "sessions",
    metadata,
    Column("seq", _seq_key, primary_key=True, autoincrement=False),
    Column("session_id", Text, nullable=False, unique=True),
    Column("content_sha256", String(64), nullable=False),
    Column("schema_version", String(16), nullable=False),
    Column("source", String(16), nullable=False),
    Column("created_at", Text, nullable=False),
    Column("created_us", BigInteger),
    Column("catalog_id", String(64), ForeignKey("catalogs.catalog_id")),
    Column("context_end", Integer, nullable=False),
    Column("num_turns", Integer, nullable=False),
    Column("num_messages", Integer, nullable=False),
    Column("num_tool_calls", Integer, nullable=False),
    Column("num_tool_errors", Integer, nullable=False),
    Column("num_model_calls", Integer, nullable=False),
    Column("num_model_errors", Integer, nullable=False),
    Column("tokens_input", BigInteger, nullable=False),
    Column("tokens_output", BigInteger, nullable=False),
    Column("tokens_cache_read", BigInteger, nullable=False),
    Column("tokens_cache_write", BigInteger, nullable=False),
    Column("cost_usd", Float, nullable=False),
    Column("num_chars", BigInteger, nullable=False),
    Column("messages", Text, nullable=False),
    Column("turns", Text, nullable=False),
    Column("calls", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("meta", Text, nullable=False),
    Column("origin", Text, nullable=False),
    Column("stored_at", Text, nullable=False),
    Index("ix_sessions_created", "created_us"),
    Index("ix_sessions_catalog", "catalog_id"),
)

session_labels = Table(
    "session_labels",
    metadata,
    Column("seq", _seq_key, ForeignKey("sessions.seq", ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("value", Text, nullable=False),
    Index("ix_session_labels_value", "name", "value"),
)

session_tools = Table(
    "session_tools",
    metadata,
    Column("seq", _seq_key, ForeignKey("sessions.seq", ondelete="CASCADE"), primary_key=True),
    Column("tool", Text, primary_key=True),
    Column("calls", Integer, nullable=False),
    Column("errors", Integer, nullable=False),
    Index("ix_session_tools_tool", "tool"),
)
