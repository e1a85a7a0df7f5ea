"""One import: files of recordings into the store, all of it or nothing, with what was passed over listed beside."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy import Connection

from firstchair.chat.messages import Tool
from firstchair.core.atomic import refuse_existing
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad, write_jsonl
from firstchair.core.progress import progress
from firstchair.traces.importers import ImportOptions, importer
from firstchair.traces.session_file import sessions_path
from firstchair.traces.store import AddReport, NewSession, OnConflict, TraceStore


class ImportReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a file."""

    path: str
    format: str
    added: int
    duplicates: int
    replaced: int
    kept: int
    messages: int
    skipped: int
    skipped_file: str | None = None
    """Where the bad records are listed, when there are any."""

    @classmethod
    def of(cls, path: Path, format_name: str, report: AddReport, skip: SkipBad, side: Path) -> ImportReport:
        """The report of one file from what the store and the reader counted."""
        return cls(
            path=str(path),
            format=format_name,
            **msgspec.structs.asdict(report),
            skipped=len(skip.skipped),
            skipped_file=str(side) if skip.skipped else None,
        )


@dataclass(frozen=True)
class ImportJob:
    """One file to import."""

    path: Path
    options: ImportOptions
    side: Path
    """Where its bad records are listed, when there are any; several files may share one list."""


def import_files(
    store: TraceStore,
    jobs: Sequence[ImportJob],
    format_name: str,
    *,
    on_conflict: OnConflict = "error",
    as_it_goes: bool = False,
    force: bool = False,
) -> Iterator[ImportReport]:
    """Import all files or none, and yield what became of each; with ``as_it_goes`` every file as soon as it is in.

    Bad records are listed before the sessions beside them are kept, so that a list that cannot be written leaves
    nothing behind; with ``as_it_goes`` after each file, whole or broken off. Raises like ``import_file``.
    """
    reports: list[ImportReport] = []
    outer: AbstractContextManager[Connection | None] = nullcontext() if as_it_goes else store.transaction()
    with outer as shared:
        for number, job in enumerate(jobs):
            path, options = job.path, job.options
            try:
                report = import_file(
                    store, path, format_name, options, on_conflict=on_conflict, as_it_goes=as_it_goes, inside=shared
                )
            finally:
                if as_it_goes:
                    done = [job for job in jobs[: number + 1] if job.side == jobs[number].side]
                    list_skipped(((job.side, job.options.skip) for job in done), force=force or len(done) > 1)
            reports.append(ImportReport.of(path, format_name, report, options.skip, job.side))
            if as_it_goes:
                yield reports.pop()
        if not as_it_goes:
            list_skipped(((job.side, job.options.skip) for job in jobs), force=force)
    yield from reports  # none are left when they went in as they were read


def list_skipped(taken: Iterable[tuple[Path, SkipBad]], *, force: bool) -> dict[Path, int]:
    """List what was passed over, each in the file it is given with; files without any are not written."""
    lists: dict[Path, list[DataError]] = {}
    for side, skip in taken:
        if skip.skipped:
            lists.setdefault(side, []).extend(skip.skipped)
    return {side: write_skipped(side, skipped, force=force) for side, skipped in lists.items()}


def import_file(
    store: TraceStore,
    path: Path,
    format_name: str,
    options: ImportOptions,
    *,
    on_conflict: OnConflict = "error",
    as_it_goes: bool = False,
    inside: Connection | None = None,
) -> AddReport:
    """Import ``path`` into ``store``, with a progress bar over the file's bytes.

    Everything is one transaction, so that a bad record, Ctrl-C, a kill or a full disk leaves nothing behind; with
    ``as_it_goes`` every batch is committed, which lets other writers in between. ``inside`` is the transaction of
    several files. What ``options.skip`` takes is
    left out. Raises ``DataError`` at the first record beyond that.
    """
    read = importer(format_name)
    catalogs: dict[str, tuple[Tool, ...]] = {}
    received: dict[str, str] = {}

    def sessions() -> Iterator[NewSession]:
        for imported in read(path, options):
            session = imported.session
            if session.catalog_id:
                catalogs[session.catalog_id] = imported.tools
                if imported.received is not None:
                    received[session.catalog_id] = imported.received
            yield NewSession(session, imported.origin, checked=True)

    with progress(path.name or "import", _size(path, format_name), unit="B") as bar:
        options.on_bytes = bar.advance

        def written(report: AddReport) -> None:
            # The batch is in the database; its tool lists need not be held any longer.
            catalogs.clear()
            received.clear()
            bar.advance(0, note=f"{report.messages:,} messages")

        return store.add(
            sessions(),
            catalogs,
            received=received,
            on_conflict=on_conflict,
            atomic=not as_it_goes,
            inside=inside,
            skip=options.skip,
            on_batch=written,
        )


def _size(path: Path, format_name: str) -> int:
    file = sessions_path(path) if format_name == "firstchair" else path
    return file.stat().st_size if file.is_file() else 0


def check_readable(path: Path, format_name: str) -> None:
    """Raise ``DataError`` when there is no file to import, before a store is made for it."""
    file = sessions_path(path) if format_name == "firstchair" else path
    if file.is_dir():
        raise DataError("a directory; expected a file (only --format firstchair reads directories)", path=str(file))
    if not file.is_file():
        raise DataError("no such file; check the path", path=str(file))


def side_file(file: Path) -> Path:
    """Where the bad records of ``file`` are listed, unless told otherwise."""
    return Path(f"{file.name}.skipped.jsonl")


def check_side_files(sides: Iterable[Path], inputs: Iterable[Path], *, force: bool) -> None:
    """Raise ``ConfigError`` when a list of bad records would replace something without ``force``, or an input."""
    read = {path.resolve() for path in inputs}
    for side in sides:
        if side.resolve() in read:
            raise ConfigError(f"{side} is to list bad records and is in use itself; rename one of the two")
        refuse_existing(side, force=force)


def write_skipped(path: Path, skipped: list[DataError], *, force: bool) -> int:
    """List bad records, one JSON object a line: where, which field, why; never their content."""
    rows = (
        {"path": error.path, "line": error.line, "field": error.field, "reason": error.reason} for error in skipped
    )
    return write_jsonl(path, rows, force=force)
