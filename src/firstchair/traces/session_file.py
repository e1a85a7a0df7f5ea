"""The export form: a directory of ``sessions.jsonl`` (one session a line) and ``catalogs.jsonl`` (tool lists).

Both are streamed. A session names its tools by content id, and reading checks that the id is that of the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from firstchair.chat.messages import Tool
from firstchair.core.atomic import atomic_dir
from firstchair.core.errors import DataError
from firstchair.core.jsonl import SkipBad, read_jsonl
from firstchair.traces.checks import check_session
from firstchair.traces.rows import tools_text
from firstchair.traces.session import SCHEMA_VERSION, Session, catalog_id_of
from firstchair.traces.times import microseconds

SESSIONS_FILE = "sessions.jsonl"
CATALOGS_FILE = "catalogs.jsonl"


class CatalogLine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, forbid_unknown_fields=True):
    """One line of ``catalogs.jsonl``."""

    catalog_id: str
    tools: tuple[Tool, ...]
    received: str | None = None
    """The wire text as it came, byte for byte, where an importer had it."""


def sessions_path(path: Path) -> Path:
    """The sessions file of an export: ``path`` itself, or ``sessions.jsonl`` in it."""
    return path / SESSIONS_FILE if path.is_dir() else path


def read_sessions(path: Path, *, skip: SkipBad | None = None) -> Iterator[Session]:
    """Stream the sessions of an export directory or of one sessions file.

    Raises ``DataError`` with file:line and field at a bad record, or hands it to ``skip`` while it has room.
    """
    for _, session in read_numbered_sessions(path, skip=skip):
        yield session


def read_numbered_sessions(path: Path, *, skip: SkipBad | None = None) -> Iterator[tuple[int, Session]]:
    """``read_sessions`` with line numbers."""
    skip = skip or SkipBad()
    file = sessions_path(path)
    for line, row in read_jsonl(file, skip=skip):
        try:
            yield line, session_from_row(row)
        except DataError as error:
            skip.take(error.at(str(file), line))


def session_from_row(row: dict[str, Any]) -> Session:
    """A parsed line as a checked session. Raises ``DataError`` with ``field``."""
    unknown = set(row) - set(Session.__struct_fields__)
    if unknown:
        raise DataError(f"unknown field; known: {', '.join(Session.__struct_fields__)}", field=sorted(unknown)[0])
    if row.get("schema_version", SCHEMA_VERSION) != SCHEMA_VERSION:
        raise DataError(
            f"found {row['schema_version']!r}; this program reads {SCHEMA_VERSION}", field="schema_version"
        )
    try:
        session = msgspec.convert(row, Session)
    except msgspec.ValidationError as error:
        raise validation_error(error) from None
    check_session(session)
    microseconds(session.created_at)
    return session


def validation_error(error: msgspec.ValidationError) -> DataError:
    """msgspec's error with its path as our field: ``messages[3].role``."""
    reason, _, path = str(error).partition(" - at `")
    return DataError(reason, field=path.rstrip("`").removeprefix("$").removeprefix(".") or None)


def read_catalogs(path: Path) -> dict[str, tuple[Tool, ...]]:
    """The tool lists of an export directory, or of the directory of a sessions file; none when it has no such file.

    Raises ``DataError`` when an id is not that of its list.
    """
    return {line.catalog_id: line.tools for line in read_catalog_lines(path)}


def read_catalog_lines(path: Path) -> Iterator[CatalogLine]:
    """Stream ``catalogs.jsonl`` with the wire texts."""
    file = (path if path.is_dir() else path.parent) / CATALOGS_FILE
    if not file.is_file():
        return
    for number, row in read_jsonl(file):
        try:
            line = msgspec.convert(row, CatalogLine)
        except msgspec.ValidationError as error:
            raise validation_error(error).at(str(file), number) from None
        if catalog_id_of(line.tools) != line.catalog_id:
            raise DataError(
                f"found {line.catalog_id[:12]}; the tools hash to {catalog_id_of(line.tools)[:12]}; export again",
                path=str(file),
                line=number,
                field="catalog_id",
            )
        yield line


def write_sessions(
    directory: Path,
    sessions: Iterable[Session],
    catalogs: Mapping[str, tuple[Tool, ...]],
    *,
    received: Callable[[str], str | None] | None = None,
    force: bool = False,
) -> int:
    """Write an export directory, atomically; only catalogs that a session names are written. Returns the count.

    ``received`` gives the wire text of a tool list, where there is one. Raises ``ConfigError`` when ``directory``
    exists without ``force``, ``DataError`` for a session whose catalog
    is not given.
    """
    used: dict[str, None] = {}
    count = 0
    with atomic_dir(directory, force=force) as temporary:
        with (temporary / SESSIONS_FILE).open("wb") as out:
            for session in sessions:
                if session.catalog_id and session.catalog_id not in catalogs:
                    raise DataError(
                        f"session {session.session_id!r} names catalog {session.catalog_id[:12]}, which is not given",
                        field="catalog_id",
                    )
                check_session(session)
                used.setdefault(session.catalog_id)
                out.write(msgspec.json.encode(session))
                out.write(b"\n")
                count += 1
        with (temporary / CATALOGS_FILE).open("wb") as out:
            for catalog_id in used:
                if catalog_id:
                    tools = msgspec.Raw(tools_text(catalogs[catalog_id]).encode())
                    row: dict[str, Any] = {"catalog_id": catalog_id, "tools": tools}
                    wire = received(catalog_id) if received is not None else None
                    if wire is not None:
                        row["received"] = wire
                    out.write(msgspec.json.encode(row))
                    out.write(b"\n")
    return count
