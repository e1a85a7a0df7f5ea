"""``firstchair parity``: the trainer's prompts against a server's, or against ``apply_chat_template``."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from firstchair.cli.session_options import BadLines, SkipBad
from firstchair.core.errors import ConfigError, UpstreamError
from firstchair.core.progress import progress

if TYPE_CHECKING:
    from firstchair.chat.parity import Case, Comparison, ParityReport, Rendered
    from firstchair.chat.renderer import Renderer
    from firstchair.engines.prompt_endpoint import PromptEndpoint

app = typer.Typer(add_completion=False)

OTHER = "transformers apply_chat_template"
"""The other side without a server."""
SHOWN = 20
"""Differences printed in full; all of them are in ``--json``."""


@app.command()
def parity(
    model: Annotated[Path, typer.Option(help="Model directory with the tokenizer.")],
    base_url: Annotated[
        str | None, typer.Option(help="Server to ask (vLLM's /tokenize); without it: transformers, in process.")
    ] = None,
    sessions: Annotated[
        Path | None, typer.Option(help="Sessions file or export directory; without it: built-in cases.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Sessions to read at most.")] = 20,
    skip_bad: SkipBad = 0,
    model_name: Annotated[str | None, typer.Option(help="Name that the server gives the model.")] = None,
    template: Annotated[str | None, typer.Option(help="Pinned template name or .jinja file, for local mode.")] = None,
    variables: Annotated[
        str, typer.Option(help="Template variables as JSON, for example '{\"enable_thinking\": false}'.")
    ] = "{}",
    arguments: Annotated[
        str, typer.Option(help="How call arguments are written: verbatim or respaced (docs/conversations.md).")
    ] = "verbatim",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare trainer and server prompts, byte for byte and id for id.

    Exit code 1 when a prompt differs for any reason but special-token text quoted in a message.
    """
    from firstchair.chat.parity import decisions
    from firstchair.chat.parity_fixtures import fixture_cases
    from firstchair.chat.renderer import Renderer

    chosen = _variables(variables)
    if arguments not in ("verbatim", "respaced"):
        raise ConfigError(f"--arguments {arguments}: expected verbatim or respaced")
    if base_url is not None and template is not None:
        raise ConfigError("--template is for local mode; a server renders with its own template")
    renderer = Renderer.from_pretrained(
        model,
        template,
        variables=chosen,
        arguments="verbatim" if arguments == "verbatim" else "respaced",
    )
    cases = list(decisions(_session_cases(sessions, limit, skip_bad) if sessions else fixture_cases()))
    if not cases:
        raise ConfigError(f"{sessions}: no session with a decision; nothing to compare")
    report = compared(renderer, cases, base_url, model_name, chosen)
    _show(report, base_url or OTHER, as_json)
    raise typer.Exit(0 if report.holds else 1)


def compared(
    renderer: Renderer,
    cases: Sequence[Case],
    base_url: str | None,
    model_name: str | None = None,
    variables: dict[str, Any] | None = None,
) -> ParityReport:
    """Compare the prompts of ``cases`` with those of a server, or of transformers in this process without one."""
    from firstchair.chat.parity_fixtures import fixture_cases
    from firstchair.engines.prompt_endpoint import PromptEndpoint, local_prompt

    if base_url is None:
        return _run(renderer, cases, lambda case: local_prompt(renderer, case))
    with PromptEndpoint(base_url, model_name, template_kwargs=variables or {}) as server:
        report = _run(renderer, cases, server.prompt)
        # A short one: recordings may be longer than the server's context window.
        _check_echo(server, renderer, fixture_cases()[0])
    return report


def _variables(text: str) -> dict[str, Any]:
    from firstchair.core.jsontext import JsonProblem, loads

    try:
        value = loads(text)
    except JsonProblem as error:
        raise ConfigError(f"--variables: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("--variables: expected a JSON object")
    return value


def _session_cases(path: Path, limit: int, skip_bad: int) -> Sequence[Case]:
    from itertools import islice

    from firstchair.chat.parity import Case
    from firstchair.traces.session_file import read_catalogs, read_sessions

    catalogs = read_catalogs(path)
    bad = BadLines(skip_bad)
    cases = [
        Case(session.session_id, session.messages, catalogs.get(session.catalog_id, ()))
        for session in islice(read_sessions(path, skip=bad.of(path)), limit)
    ]
    bad.write()
    return cases


def _run(renderer: Renderer, cases: Sequence[Case], ask: Callable[[Case], Rendered]) -> ParityReport:
    from firstchair.chat.parity import Comparison, Match, ParityReport, compare

    respaced = renderer.with_arguments("respaced")
    found: list[Comparison] = []
    with progress("parity", len(cases), unit="prompts") as bar:
        for case in cases:
            try:
                found.append(compare(case, renderer, respaced, ask(case)))
            except UpstreamError as error:
                if error.retryable:  # the server is not there; every other case would say the same
                    raise
                found.append(Comparison(case.name, Match.ERROR, detail=str(error)))
            bar.advance()
    return ParityReport(renderer.template_hash, tuple(found))


def _check_echo(server: PromptEndpoint, renderer: Renderer, case: Case) -> None:
    """One prompt sent as ids must be the prompt that the server runs."""
    ids = tuple(renderer.prompt_ids(case.messages, case.tools))
    ran = server.echo(ids)
    if ran != ids:
        raise UpstreamError(f"the server changes a prompt sent as token ids: {len(ids)} sent, {len(ran)} run")


def _show(report: ParityReport, other: str, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "template_hash": report.template_hash,
                    "other": other,
                    "holds": report.holds,
                    "counts": report.counts,
                    "comparisons": [_row(one) for one in report.comparisons],
                },
                ensure_ascii=False,
            )
        )
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console()
    table = Table("found", "prompts", title=f"{len(report.comparisons)} prompts against {other}")
    for name, count in sorted(report.counts.items()):
        table.add_row(name, str(count))
    console.print(table)
    differing = [one for one in report.comparisons if one.match != "equal"]
    for one in differing[:SHOWN]:
        console.print(f"[bold]{escape(one.name)}[/] {one.match}: {escape(one.detail)}", soft_wrap=True)
        if one.position is not None:
            console.print(f"  at {one.position}: ours {escape(repr(one.ours))}", soft_wrap=True)
            console.print(f"  {' ' * len(f'at {one.position}:')} theirs {escape(repr(one.theirs))}", soft_wrap=True)
    if len(differing) > SHOWN:
        console.print(f"… and {len(differing) - SHOWN} more; --json lists all")
    console.print(f"template hash {report.template_hash}")


def _row(one: Comparison) -> dict[str, Any]:
    return {
        "name": one.name,
        "match": str(one.match),
        "tokens": one.tokens,
        "position": one.position,
        "ours": one.ours,
        "theirs": one.theirs,
        "detail": one.detail,
    }
