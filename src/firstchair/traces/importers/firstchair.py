"""Firstchair's own export: a directory of ``sessions.jsonl`` and ``catalogs.jsonl``, or a sessions file beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from firstchair.core.errors import DataError
from firstchair.core.jsonl import parse_line
from firstchair.traces.importers.base import Imported, ImportOptions, import_lines
from firstchair.traces.session_file import read_catalog_lines, session_from_row, sessions_path


def import_firstchair(path: Path, options: ImportOptions) -> Iterator[Imported]:
    """Stream the sessions of an export as they are; ``source`` and labels of the options are laid over."""
    # Distinct tool lists are few beside sessions; these are held.
    catalogs = {line.catalog_id: line for line in read_catalog_lines(path)}

    def convert(raw: bytes, origin: str) -> Imported:
        session = session_from_row(parse_line(raw))
        if session.catalog_id and session.catalog_id not in catalogs:
            raise DataError(
                f"found {session.catalog_id[:12]}; no such tool list in catalogs.jsonl beside; export again",
                field="catalog_id",
            )
        if options.source or options.labels:
            session = msgspec.structs.replace(
                session, source=options.source or session.source, labels={**options.labels, **session.labels}
            )
        line = catalogs.get(session.catalog_id)
        return Imported(session, line.tools if line else (), origin, line.received if line else None)

    return import_lines(sessions_path(path), options, convert)
