"""JSON Lines of a provider's API: whole conversations (``messages``) or single exchanges (``request``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from firstchair.core.errors import DataError
from firstchair.core.jsonl import read_lines
from firstchair.traces.importers.base import (
    Imported,
    ImportOptions,
    OfferedTools,
    ToolLists,
    default_tools,
    empty_file,
    make_session,
    mark_errors,
    read_head,
    tools_text,
)
from firstchair.traces.importers.exchanges import Dialect, ExchangeReader
from firstchair.traces.importers.spool import CallSpool


def import_api_log(path: Path, options: ImportOptions, dialect: Dialect) -> Iterator[Imported]:
    """Stream conversations as they come; exchanges are put together once the file is read."""
    lists = ToolLists(dialect.read_tools)
    fallback = default_tools(options, lists)
    seen = False
    with CallSpool() as spool:
        exchanges = ExchangeReader(dialect, lists, options, spool)
        for number, raw in read_lines(path, on_bytes=options.on_bytes):
            seen = True
            origin = f"{path}:{number}"
            try:
                if isinstance(raw, DataError):
                    raise raw
                imported = _read_line(raw, origin, dialect, lists, fallback, options, exchanges)
            except DataError as error:
                options.skip.take(error.at(str(path), number))
                continue
            if imported is not None:
                yield imported
        if not seen:
            raise empty_file(path)
        yield from exchanges.sessions()


def _read_line(
    raw: bytes,
    origin: str,
    dialect: Dialect,
    lists: ToolLists,
    fallback: OfferedTools,
    options: ImportOptions,
    exchanges: ExchangeReader,
) -> Imported | None:
    row, tools, catalog_id, received = lists.read_line(raw)
    if "request" in row:
        exchanges.take(row, origin, tools_text(raw, of_request=True))
        return None
    messages = mark_errors(dialect.read_prompt(row), options.error_prefixes or ())
    if not tools:
        tools, catalog_id, received = fallback
    head = read_head(row, options, used=dialect.used, default="production")
    session = make_session(head, messages, tools, catalog_id=catalog_id, prefix=f"{dialect.provider}-")
    return Imported(session, tools, origin, received)
