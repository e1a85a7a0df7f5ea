"""The trace store: recorded sessions and their tool catalogs, in SQLite or PostgreSQL.

    store = TraceStore.open("traces.db")
    store.add(sessions, {catalog_id_of(tools): tools})
    for session in store.sessions(source="production", tool="WebFetch"): ...

Adding is idempotent: a session that is here already, byte for byte, is counted and passed over. Reading pages by
order of arrival: the order is stable, memory is one page, and no reader holds a transaction open.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

import msgspec
from sqlalchemy import ColumnElement, Connection, delete, func, insert, inspect, select

from firstchair.chat.messages import Tool
from firstchair.core.clock import utc_now
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad
from firstchair.traces import schema
from firstchair.traces.checks import check_session
from firstchair.traces.database import OpenDatabase, open_engine, reading, store_url, use_wal, writing
from firstchair.traces.filters import Filters, conditions, id_text
from firstchair.traces.rows import SessionRows, rows_of, session_of, tools_of, tools_text
from firstchair.traces.session import Session, catalog_id_of
from firstchair.traces.stats import StoreStats, read_stats

OnConflict = Literal["error", "keep", "replace"]
"""What to do when an id is here with other content."""

PAGE = 200
BATCH = 500
MAX_CHARS = 32 * 1024 * 1024
"""Of one page or batch: sessions may be of any size, memory is not."""


class NewSession(NamedTuple):
    """A session on its way in."""

    session: Session
    origin: str = ""
    """Where it was read, ``file:line``; shown when it clashes with another."""
    checked: bool = False
    """Whether ``check_session`` has passed already."""


class AddReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the sessions handed to ``add``."""

    added: int = 0
    duplicates: int = 0
    """Here already, byte for byte."""
    replaced: int = 0
    kept: int = 0
    """Here already with other content; the old one was kept."""
    messages: int = 0
    """Messages of the added and replaced sessions."""


class SessionRow(NamedTuple):
    """One line of a listing: no bodies."""

    session_id: str
    source: str
    created_at: str
    catalog_id: str
    num_turns: int
    num_messages: int
    num_tool_calls: int
    num_tool_errors: int
    labels: str
    origin: str


class TraceStore(OpenDatabase):
    """An open store. Safe to share between threads; one writer at a time, readers never wait."""

    @classmethod
    def open(cls, url: str | Path, *, must_exist: bool = False) -> TraceStore:
        """Open (and, unless ``must_exist``, create) the store at ``url``.

        ``url`` is ``sqlite:///path``, ``postgresql+pg8000://user@host/db``, or a bare path for SQLite. Raises
        ``ConfigError`` for a wrong URL, another layout or a database that is no store (it is left as it is),
        ``UpstreamError`` when a server cannot be reached.
        """
        engine = open_engine(store_url(url), must_exist=must_exist)
        # A store that exists is only read here: opening it must not wait for a writer.
        with reading(engine) as connection:
            found = _layout(connection)
            names = [] if found else inspect(connection).get_table_names()
            others = [name for name in names if not name.startswith("gateway_")]
        if found is None:
            where = engine.url.render_as_string(hide_password=True)
            if must_exist:
                raise ConfigError(f"{where}: no Firstchair store in it; import something first, or correct --store")
            if others and engine.dialect.name == "sqlite":
                raise ConfigError(
                    f"{where}: a database of another program (with the table {others[0]}); name another file"
                )
            use_wal(engine)
            with writing(engine) as connection:
                schema.metadata.create_all(connection)
                found = _layout(connection)
                if found is None:
                    found = schema.STORE_VERSION
                    connection.execute(insert(schema.store_info).values(name="version", value=found))
        if found != schema.STORE_VERSION:
            raise ConfigError(
                f"store: found layout {found}; this program knows {schema.STORE_VERSION}; "
                "export with the version that wrote it, then import here"
            )
        return cls(engine)

    # Writing

    def add(
        self,
        sessions: Iterable[Session | NewSession],
        catalogs: Mapping[str, tuple[Tool, ...]],
        *,
        on_conflict: OnConflict = "error",
        received: Mapping[str, str] | None = None,
        atomic: bool = False,
        inside: Connection | None = None,
        skip: SkipBad | None = None,
        on_batch: Callable[[AddReport], None] | None = None,
    ) -> AddReport:
        """Add sessions in batches, a transaction each; with ``atomic`` all of them or none; or ``inside`` a
        ``transaction()`` that the caller holds.

        ``catalogs`` holds the tool lists that the sessions name, by ``catalog_id_of``; it and ``received`` may grow
        while ``sessions`` is read. ``received`` holds the wire text of a list as it came, kept beside it.
        ``on_batch`` hears the report so far. Raises ``DataError`` (with the origin) for a session that fails
        ``check_session``, names an unknown catalog, or clashes with a stored one under ``on_conflict="error"``,
        unless ``skip`` takes it; the batch (with ``atomic``: everything) is rolled back.
        """
        writer = _Writer(catalogs, {} if received is None else received, on_conflict, skip or SkipBad())
        # Rows are made as sessions arrive: a batch of texts is light, a batch of messages keeps the collector busy.
        rows = (row for new in sessions if (row := writer.rows(new)) is not None)
        alone = atomic and inside is None
        outer: AbstractContextManager[Connection | None] = writing(self._engine) if alone else nullcontext(inside)
        with outer as shared:
            for batch in _batches(rows):
                if shared is not None:
                    writer.write(shared, batch)
                else:
                    with writing(self._engine) as connection:
                        writer.write(connection, batch)
                if on_batch is not None:
                    on_batch(writer.report())
        return writer.report()

    def delete(self, **filters: Unpack[Filters]) -> int:
        """Delete the sessions that match (all of them without filters) and catalogs left unused; the count."""
        where = conditions(filters)
        with writing(self._engine) as connection:
            # Side rows go along by their foreign keys; deleting them first would take away what filters look at.
            count = connection.execute(delete(schema.sessions).where(*where)).rowcount
            used = select(schema.sessions.c.catalog_id).where(schema.sessions.c.catalog_id.is_not(None))
            connection.execute(delete(schema.catalogs).where(schema.catalogs.c.catalog_id.not_in(used)))
        return count

    # Reading

    def sessions(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> Iterator[Session]:
        """Stream the sessions that match, in order of arrival."""
        where = conditions(filters)
        for row in self._pages(_BODY_COLUMNS, limit, where):
            yield session_of(row)

    def listing(self, *, limit: int | None = None, **filters: Unpack[Filters]) -> Iterator[SessionRow]:
        """Stream one row a session, without reading bodies."""
        for row in self._pages(_LIST_COLUMNS, limit, conditions(filters)):
            yield SessionRow._make("" if row[name] is None else row[name] for name in _LIST_COLUMNS)

    def newest(self, limit: int, *, skip: int = 0, **filters: Unpack[Filters]) -> list[SessionRow]:
        """One row a session, the last to arrive first, after ``skip`` of them; without reading bodies."""
        table = schema.sessions
        query = select(*(table.c[name] for name in _LIST_COLUMNS)).where(*conditions(filters))
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(table.c.seq.desc()).limit(limit).offset(skip)).all()
        return [SessionRow._make("" if value is None else value for value in row) for row in rows]

    def _pages(
        self, columns: tuple[str, ...], limit: int | None, where: list[ColumnElement[bool]]
    ) -> Iterator[Mapping[str, Any]]:
        table = schema.sessions
        sizes = select(table.c.seq, table.c.num_chars).where(*where).order_by(table.c.seq)
        query = select(*(table.c[name] for name in columns)).where(*where).order_by(table.c.seq)
        last, left = -1, limit
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            with reading(self._engine) as connection:
                ahead = connection.execute(sizes.where(table.c.seq > last).limit(size)).all()
                page = _fitting([seq for seq, _ in ahead], [chars for _, chars in ahead])
                if not page:
                    return
                inside = table.c.seq.between(page[0], page[-1])
                rows = connection.execute(query.where(inside)).mappings().all()
            for row in rows:
                yield {str(name): value for name, value in row.items()}
            last = page[-1]
            left = None if left is None else left - len(page)

    def get(self, session_id: str) -> Session:
        """One session. Raises ``ConfigError`` when it is not here."""
        table = schema.sessions
        query = select(*(table.c[name] for name in _BODY_COLUMNS)).where(table.c.session_id == id_text(session_id))
        with reading(self._engine) as connection:
            row = connection.execute(query).mappings().first()
        if row is None:
            raise ConfigError(f"session {session_id!r}: not in {self.url}; `firstchair traces ls` lists what is")
        return session_of({str(name): value for name, value in row.items()})

    def origin(self, session_id: str) -> str:
        """Where a session was read (``file:line``); empty when it was not imported or is not here."""
        table = schema.sessions
        with reading(self._engine) as connection:
            found = connection.execute(
                select(table.c.origin).where(table.c.session_id == id_text(session_id))
            ).scalar()
        return found or ""

    def count(self, **filters: Unpack[Filters]) -> int:
        """How many sessions match."""
        query = select(func.count()).select_from(schema.sessions).where(*conditions(filters))
        with reading(self._engine) as connection:
            return int(connection.execute(query).scalar_one())

    def tools(self, catalog_id: str) -> tuple[Tool, ...]:
        """The tool list under ``catalog_id`` (none for the empty id). Raises ``ConfigError`` when unknown."""
        if not catalog_id:
            return ()
        return tools_of(self._catalog(catalog_id)[0])

    def received(self, catalog_id: str) -> str | None:
        """The wire text of a tool list, byte for byte, where the importer had it."""
        return self._catalog(catalog_id)[1]

    def _catalog(self, catalog_id: str) -> tuple[str, str | None]:
        table = schema.catalogs
        query = select(table.c.tools, table.c.received).where(table.c.catalog_id == catalog_id)
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        if row is None:
            raise ConfigError(f"catalog {catalog_id[:12]}: not in {self.url}")
        return row[0], row[1]

    def catalog_ids(self) -> tuple[str, ...]:
        """Ids of all stored tool lists."""
        with reading(self._engine) as connection:
            return tuple(connection.execute(select(schema.catalogs.c.catalog_id).order_by("catalog_id")).scalars())

    def catalogs(self) -> dict[str, tuple[Tool, ...]]:
        """All stored tool lists by id."""
        return {catalog_id: self.tools(catalog_id) for catalog_id in self.catalog_ids()}

    def catalogs_in_use(self, **filters: Unpack[Filters]) -> dict[str, tuple[Tool, ...]]:
        """The tool lists of the sessions that match, in order of their first session."""
        column, seq = schema.sessions.c.catalog_id, schema.sessions.c.seq
        query = (
            select(column).where(column.is_not(None), *conditions(filters)).group_by(column).order_by(func.min(seq))
        )
        with reading(self._engine) as connection:
            ids = connection.execute(query).scalars().all()
        return {catalog_id: self.tools(catalog_id) for catalog_id in ids}

    def stats(self, **filters: Unpack[Filters]) -> StoreStats:
        """Counts over the sessions that match."""
        with reading(self._engine) as connection:
            return read_stats(connection, conditions(filters))


class StoredTools(Mapping[str, tuple[Tool, ...]]):
    """The tool lists of a store as a mapping that reads each when it is asked for, and holds a few."""

    _HELD = 64

    def __init__(self, store: TraceStore):
        self._store = store
        self._held: dict[str, tuple[Tool, ...]] = {}

    def __getitem__(self, catalog_id: str) -> tuple[Tool, ...]:
        if catalog_id not in self._held:
            try:
                tools = self._store.tools(catalog_id)
            except ConfigError:
                raise KeyError(catalog_id) from None
            if len(self._held) >= self._HELD:
                self._held.clear()
            self._held[catalog_id] = tools
        return self._held[catalog_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.catalog_ids())

    def __len__(self) -> int:
        return len(self._store.catalog_ids())


def _fitting(seqs: list[int], chars: list[int]) -> list[int]:
    """As many of ``seqs`` as fit one page, at least one."""
    total = 0
    for index, count in enumerate(chars):
        total += count
        if index and total > MAX_CHARS:
            return seqs[:index]
    return seqs


def _batches(rows: Iterable[SessionRows]) -> Iterator[list[SessionRows]]:
    """Rows in batches of bounded count and size."""
    batch: list[SessionRows] = []
    chars = 0
    for row in rows:
        batch.append(row)
        chars += row.session["num_chars"]
        if len(batch) >= BATCH or chars >= MAX_CHARS:
            yield batch
            batch, chars = [], 0
    if batch:
        yield batch


_BODY_COLUMNS = (
    "session_id",
    "schema_version",
    "source",
    "created_at",
    "catalog_id",
    "context_end",
    "messages",
    "turns",
    "calls",
    "labels",
    "meta",
)
_LIST_COLUMNS = SessionRow._fields


def _layout(connection: Connection) -> str | None:
    """The layout version of the store, ``None`` when it has no tables yet."""
    info = schema.store_info
    if not inspect(connection).has_table(info.name):
        return None
    return connection.execute(select(info.c.value).where(info.c.name == "version")).scalar()


class _Writer:
    """One ``add``: what is known over its batches, and the writing of one batch."""

    def __init__(
        self,
        catalogs: Mapping[str, tuple[Tool, ...]],
        received: Mapping[str, str],
        on_conflict: OnConflict,
        skip: SkipBad,
    ):
        self.catalogs, self.received, self.on_conflict, self.skip = catalogs, received, on_conflict, skip
        self.stored_at = utc_now()
        self.known_catalogs: set[str] = set()
        self.counts = {"added": 0, "duplicates": 0, "replaced": 0, "kept": 0, "messages": 0}

    def report(self) -> AddReport:
        return AddReport(**self.counts)

    def rows(self, new: Session | NewSession) -> SessionRows | None:
        """A session's rows; ``None`` when it is bad and may be passed over."""
        if isinstance(new, Session):
            new = NewSession(new)
        try:
            if not new.checked:
                check_session(new.session)
            return rows_of(new.session, origin=new.origin, stored_at=self.stored_at)
        except DataError as error:
            self.skip.take(error.at(new.origin or f"session {new.session.session_id[:60]!r}"))
            return None

    def write(self, connection: Connection, batch: list[SessionRows]) -> None:
        """Write one batch inside the caller's transaction."""
        self._write_catalogs(connection, {entry.session["catalog_id"] for entry in batch} - {None})
        fresh = self._sift(connection, batch)
        next_seq = connection.execute(select(func.coalesce(func.max(schema.sessions.c.seq), 0))).scalar_one() + 1
        for entry in fresh:
            entry.session.setdefault("seq", next_seq)
            next_seq = max(next_seq, entry.session["seq"] + 1)
        _insert(connection, schema.sessions, [entry.session for entry in fresh])
        _insert(connection, schema.session_labels, _with_seq(fresh, "labels"))
        _insert(connection, schema.session_tools, _with_seq(fresh, "tools"))
        self.counts["messages"] += sum(entry.session["num_messages"] for entry in fresh)

    def _write_catalogs(self, connection: Connection, wanted: set[str]) -> None:
        missing = wanted - self.known_catalogs
        if not missing:
            return
        table = schema.catalogs
        present = connection.execute(select(table.c.catalog_id).where(table.c.catalog_id.in_(missing))).scalars()
        rows = []
        for catalog_id in sorted(missing - set(present)):
            tools = self.catalogs.get(catalog_id)
            if tools is None or catalog_id_of(tools) != catalog_id:
                found = "no tool list" if tools is None else "a tool list with another hash"
                raise DataError(f"found {found} under {catalog_id[:12]}; expected the tools", field="catalog_id")
            rows.append(
                {"catalog_id": catalog_id, "tools": tools_text(tools), "received": self.received.get(catalog_id)}
            )
        _insert(connection, table, rows)
        self.known_catalogs |= missing

    def _sift(self, connection: Connection, rows: list[SessionRows]) -> list[SessionRows]:
        """The rows to insert: those not here yet, and those that replace one (with its ``seq``)."""
        table = schema.sessions
        ids = [entry.session["session_id"] for entry in rows]
        query = select(table.c.session_id, table.c.content_sha256, table.c.origin, table.c.seq)
        here = {row[0]: row for row in connection.execute(query.where(table.c.session_id.in_(ids)))}
        fresh: dict[str, SessionRows] = {}
        for entry in rows:
            session_id, content = entry.session["session_id"], entry.session["content_sha256"]
            old = fresh[session_id].session if session_id in fresh else None
            stored = here.get(session_id)
            old_content = old["content_sha256"] if old else stored[1] if stored else None
            if old_content is None:
                self.counts["added"] += 1
                fresh[session_id] = entry
            elif old_content == content:
                self.counts["duplicates"] += 1
            elif self.on_conflict == "keep":
                self.counts["kept"] += 1
            elif self.on_conflict == "replace":
                self.counts["replaced"] += 1
                if stored:
                    entry.session["seq"] = stored[3]
                fresh[session_id] = entry
            else:
                old_origin = old["origin"] if old else stored[2] if stored else ""
                self.skip.take(_conflict(entry, old_origin, old_content))
        gone = [here[session_id][3] for session_id in fresh if session_id in here]
        if gone:
            for side in (schema.session_labels, schema.session_tools, schema.sessions):
                connection.execute(delete(side).where(side.c.seq.in_(gone)))
        return list(fresh.values())


def _conflict(entry: SessionRows, old_origin: str, old_content: str) -> DataError:
    row = entry.session
    return DataError(
        f"session {row['session_id']!r} (content {row['content_sha256'][:12]}) is there already with other content "
        f"({old_content[:12]}, from {old_origin or 'a program'}); rename one, or pass --on-conflict keep|replace",
        path=row["origin"] or None,
        field="session_id",
    )


def _with_seq(entries: list[SessionRows], which: Literal["labels", "tools"]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for entry in entries:
        seq = entry.session["seq"]
        found.extend({"seq": seq, **side} for side in (entry.labels if which == "labels" else entry.tools))
    return found


def _insert(connection: Connection, table: Any, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(insert(table), rows)
