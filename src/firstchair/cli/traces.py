"""``firstchair traces``: import, list, show, export, count and delete recorded sessions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstchair.cli.session_options import AsJson, Force, Labels, Limit, SourceKind, UsedTool, Wide, parse_pairs

if TYPE_CHECKING:
    from firstchair.traces.importing import ImportJob
    from firstchair.traces.session import Session

app = typer.Typer(
    no_args_is_help=True,
    help="Import, list, show, export and delete recorded sessions.\n\n"
    "Sessions live in a store: a SQLite file (traces.db unless --store or FIRSTCHAIR_STORE says otherwise) or a "
    "PostgreSQL database (postgresql://user@host/name).",
)

Store = Annotated[
    str,
    typer.Option("--store", envvar="FIRSTCHAIR_STORE", help="SQLite file, or a URL such as postgresql://me@host/db."),
]
Since = Annotated[str, typer.Option(help="Only sessions recorded at or after this ISO 8601 time.")]
Until = Annotated[str, typer.Option(help="Only sessions recorded before this ISO 8601 time.")]
Ids = Annotated[
    list[str] | None, typer.Option("--session", metavar="ID", help="Only this session; may be given several times.")
]


@app.command("import")
def import_(
    files: Annotated[list[Path], typer.Argument(help="Files of recordings (.gz too), or an export directory.")],
    format_name: Annotated[
        Literal["openai", "anthropic", "conversations", "tau", "otel", "firstchair"],
        typer.Option("--format", help="What the files hold; see `docs/traces.md`."),
    ],
    store: Store = "traces.db",
    tools: Annotated[
        Path | None, typer.Option(help="JSON list of tools for sessions that bring none (τ-bench keeps it apart).")
    ] = None,
    source: Annotated[
        Literal["production", "scripted", "synthetic", "rollout"] | None,
        typer.Option(help="Where the recordings come from, when the format's default is not it."),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME=VALUE", help="Put a label on every session.")
    ] = None,
    error_prefix: Annotated[
        list[str] | None,
        typer.Option(help="How a failed tool result begins; may be given several times; '' for none."),
    ] = None,
    skip_bad: Annotated[int, typer.Option(min=0, help="Pass over up to this many bad records and list them.")] = 0,
    skipped_file: Annotated[
        Path | None, typer.Option(help="Where to list them all; NAME.skipped.jsonl in this directory unless given.")
    ] = None,
    on_conflict: Annotated[
        Literal["error", "keep", "replace"],
        typer.Option(help="What to do when an id is in the store with other content."),
    ] = "error",
    as_it_goes: Annotated[
        bool,
        typer.Option("--as-it-goes", help="Commit batch by batch, not all or nothing; other writers get turns."),
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Import recordings. All files go in whole or none does; importing them again adds nothing."""
    from firstchair.cli.traces_view import print_imports
    from firstchair.core.jsonl import SkipBad
    from firstchair.traces.importers import ImportOptions
    from firstchair.traces.importing import ImportJob, ImportReport, check_readable, import_files, side_file
    from firstchair.traces.store import TraceStore

    labels = parse_pairs(label, "--label")
    jobs: list[ImportJob] = []
    for file in files:
        check_readable(file, format_name)
        options = ImportOptions(
            source=source,
            labels=labels,
            tools_path=tools,
            error_prefixes=None if error_prefix is None else tuple(text for text in error_prefix if text),
            skip=SkipBad(allowed=skip_bad),
        )
        jobs.append(ImportJob(file, options, skipped_file or side_file(file)))
    if skip_bad:
        _check_side_files(jobs, [*files, *([tools] if tools else [])], store, force=force)
    reports: list[ImportReport] = []
    with TraceStore.open(store) as opened:
        try:
            for report in import_files(
                opened, jobs, format_name, on_conflict=on_conflict, as_it_goes=as_it_goes, force=force
            ):
                reports.append(report)
        finally:
            # After an error too: with --as-it-goes the files before it are in.
            if reports:
                print_imports(reports, opened.url, as_json=as_json)


def _check_side_files(jobs: Sequence[ImportJob], read: Sequence[Path], store: str, *, force: bool) -> None:
    """Refuse to list bad records in a file that the command reads or writes otherwise."""
    from firstchair.traces.database import store_url
    from firstchair.traces.importing import check_side_files
    from firstchair.traces.session_file import sessions_path

    others = (*read, *map(sessions_path, read), Path(store_url(store).database or ""))
    check_side_files((job.side for job in jobs), others, force=force)


@app.command("ls")
def list_sessions(
    store: Store = "traces.db",
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 50,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List sessions, in order of arrival."""
    from firstchair.cli.traces_view import make_filters, print_listing
    from firstchair.traces.store import TraceStore

    filters = make_filters(parse_pairs(labels, "--label"), source_kind, tool, since, until)
    with TraceStore.open(store, must_exist=True) as opened:
        print_listing(opened.listing(limit=limit, **filters), opened.count(**filters), wide=wide, as_json=as_json)


@app.command()
def show(
    session: Annotated[str, typer.Argument(help="The session's id.")],
    store: Store = "traces.db",
    full: Annotated[bool, typer.Option("--full", help="Do not shorten long texts.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one conversation."""
    from firstchair.cli.traces_view import print_session
    from firstchair.traces.store import TraceStore

    with TraceStore.open(store, must_exist=True) as opened:
        found = opened.get(session)
        print_session(found, opened.tools(found.catalog_id), opened.origin(session), full=full, as_json=as_json)


@app.command()
def export(
    out: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to write: sessions.jsonl, catalogs.jsonl.")],
    store: Store = "traces.db",
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    since: Since = "",
    until: Until = "",
    session: Ids = None,
    limit: Limit = None,
    force: Force = False,
) -> None:
    """Export sessions and their tools as JSON Lines; `traces import --format firstchair` reads them back."""
    from firstchair.cli.tables import counted
    from firstchair.cli.traces_view import make_filters
    from firstchair.core.errors import DataError
    from firstchair.core.progress import progress
    from firstchair.traces.session_file import write_sessions
    from firstchair.traces.store import StoredTools, TraceStore

    filters = make_filters(parse_pairs(labels, "--label"), source_kind, tool, since, until, session)
    with TraceStore.open(store, must_exist=True) as opened:
        total = opened.count(**filters)
        if not total:
            raise DataError("no session to export; check the store and the filters", path=opened.url)
        with progress("export", total if limit is None else min(limit, total), unit="sessions") as bar:

            def reported() -> Iterator[Session]:
                for found in opened.sessions(limit=limit, **filters):
                    yield found
                    bar.advance()

            count = write_sessions(out, reported(), StoredTools(opened), received=opened.received, force=force)
    typer.echo(f"{counted(count, 'session')} written to {out}")


@app.command()
def stats(
    store: Store = "traces.db",
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    since: Since = "",
    until: Until = "",
    as_json: AsJson = False,
) -> None:
    """Count sessions, turns, messages, calls, errors and tokens."""
    from firstchair.cli.traces_view import make_filters, print_stats
    from firstchair.traces.store import TraceStore

    filters = make_filters(parse_pairs(labels, "--label"), source_kind, tool, since, until)
    with TraceStore.open(store, must_exist=True) as opened:
        print_stats(opened.stats(**filters), opened.url, as_json=as_json)


@app.command()
def delete(
    store: Store = "traces.db",
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    since: Since = "",
    until: Until = "",
    session: Ids = None,
    everything: Annotated[bool, typer.Option("--all", help="Every session of the store.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete sessions for good."""
    import json
    import sys

    from firstchair.cli.tables import counted
    from firstchair.cli.traces_view import make_filters
    from firstchair.core.errors import ConfigError
    from firstchair.traces.store import TraceStore

    filters = make_filters(parse_pairs(labels, "--label"), source_kind, tool, since, until, session)
    if bool(filters) == everything:
        raise ConfigError("say which sessions: give --session or other filters, or --all alone for every one")
    with TraceStore.open(store, must_exist=True) as opened:
        count = opened.count(**filters)
        if count and not yes:
            question = f"Delete {counted(count, 'session')} from {opened.url}?"
            if sys.stdin is None or sys.stdin.closed:
                raise ConfigError(f"{question} Nobody can be asked here; pass --yes, or use a terminal")
            if not typer.confirm(question):
                raise typer.Exit(1)
        count = opened.delete(**filters)
    typer.echo(json.dumps({"deleted": count}) if as_json else f"{counted(count, 'session')} deleted")
