"""``firstchair catalog``: tools, skills, matchers and routing policy; recordings checked against them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstchair.cli.session_options import AsJson, Force, Labels, Limit, SourceKind, UsedTool, parse_pairs

if TYPE_CHECKING:
    from firstchair.catalog.validate import CallProblem

app = typer.Typer(
    no_args_is_help=True,
    help="Tools, skills, matchers and routing policy; validate recordings.\n\n"
    "A catalog is one YAML file: what a session can use, and how its arguments are compared.",
)

CatalogFile = Annotated[Path, typer.Argument(metavar="CATALOG", help="Catalog YAML file.")]
Store = Annotated[
    str,
    typer.Option("--store", envvar="FIRSTCHAIR_STORE", help="SQLite file, or a URL such as postgresql://me@host/db."),
]


@app.command()
def show(catalog: CatalogFile, as_json: AsJson = False) -> None:
    """Show a catalog: tools with their fields and matchers, skills, policy."""
    from firstchair.catalog.catalog import load_catalog
    from firstchair.cli.catalog_view import print_catalog

    print_catalog(load_catalog(catalog), as_json=as_json)


@app.command()
def infer(
    out: Annotated[Path, typer.Argument(metavar="CATALOG", help="YAML file to write.")],
    store: Store = "traces.db",
    name: Annotated[str, typer.Option(help="Name of the catalog; the file's name unless given.")] = "",
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    force: Force = False,
) -> None:
    """Write a catalog of the tools that stored sessions were offered, for a person to complete and verify.

    Where one tool was offered with several schemas, the newest is taken and the others are named.
    """
    from firstchair.catalog.catalog import catalog_yaml
    from firstchair.catalog.infer import infer_catalog
    from firstchair.cli.traces_view import make_filters
    from firstchair.core.atomic import refuse_existing, write_text
    from firstchair.core.errors import DataError
    from firstchair.traces.store import TraceStore

    refuse_existing(out, force=force)
    filters = make_filters(parse_pairs(labels, "--label"), source_kind, tool, "", "")
    with TraceStore.open(store, must_exist=True) as opened:
        lists = opened.catalogs_in_use(**filters)
        where = opened.url
    inferred = infer_catalog(name or out.stem, lists)
    if not inferred.catalog.tools:
        raise DataError("no session that was offered a tool; check the store and the filters", path=where)
    write_text(out, catalog_yaml(inferred.catalog), force=force)
    typer.echo(f"{len(inferred.catalog.tools):,} tools written to {out} (tool lists seen: {len(lists):,})")
    for note in inferred.notes:
        typer.echo(f"note: {note}")
    typer.echo("Read it, add matchers and kinds, then set `verified: true`.")


@app.command()
def validate(
    catalog: Annotated[
        Path | None, typer.Argument(metavar="[CATALOG]", help="Catalog YAML; each session's own tools unless given.")
    ] = None,
    store: Store = "traces.db",
    labels: Labels = None,
    source_kind: SourceKind = "",
    tool: UsedTool = "",
    limit: Limit = None,
    shown: Annotated[int, typer.Option("--show", min=0, help="How many problems to print; the count is whole.")] = 50,
    as_json: AsJson = False,
) -> None:
    """Check every recorded call: unknown tool, missing field, wrong type, no JSON. Exit 1 when any is wrong."""
    from firstchair.catalog.catalog import load_catalog
    from firstchair.catalog.validate import ProblemCount, validate_session
    from firstchair.cli.catalog_view import print_problems
    from firstchair.cli.traces_view import make_filters
    from firstchair.core.errors import DataError
    from firstchair.core.progress import progress
    from firstchair.traces.store import StoredTools, TraceStore

    tools = None if catalog is None else load_catalog(catalog).tool_schemas()
    filters = make_filters(parse_pairs(labels, "--label"), source_kind, tool, "", "")
    count = ProblemCount()
    with TraceStore.open(store, must_exist=True) as opened:
        total = opened.count(**filters)
        if not total:
            raise DataError("0 sessions, nothing validated; check the store and the filters", path=opened.url)
        stored = StoredTools(opened)
        with progress("validate", total if limit is None else min(limit, total), unit="sessions") as bar:

            def problems() -> Iterator[CallProblem]:
                for session in opened.sessions(limit=limit, **filters):
                    bar.advance()
                    offered = stored[session.catalog_id] if tools is None else tools
                    yield from count.of(session, validate_session(session, offered))

            kept = [problem for number, problem in enumerate(problems()) if number < shown or as_json]
    print_problems(kept, count, as_json=as_json)
    if count.problems:
        raise typer.Exit(1)


@app.command()
def lint(
    catalog: CatalogFile,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find contradictions in a catalog and its routing policy. Exit code 1 when there are errors."""
    from firstchair.catalog.catalog import load_catalog
    from firstchair.catalog.lint import lint_catalog
    from firstchair.cli.catalog_view import print_findings

    findings = lint_catalog(load_catalog(catalog))
    print_findings(findings, as_json=as_json)
    if any(strict or finding.severity == "error" for finding in findings):
        raise typer.Exit(1)
