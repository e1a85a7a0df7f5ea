"""``firstchair tools``: list, call by hand, index a folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstchair.cli.session_options import AsJson, Force

if TYPE_CHECKING:
    from firstchair.tools.toolbox import ToolBox

app = typer.Typer(no_args_is_help=True, help="Real tools: what a YAML file offers; a call by hand; a search index.")

SpecFile = Annotated[Path, typer.Argument(metavar="SPEC", help="YAML file of the tools.")]


@app.callback()
def _group() -> None:
    """Real tools: what a YAML file offers; a call by hand; a search index."""


@app.command()
def ls(spec: SpecFile, as_json: AsJson = False) -> None:
    """List the tools that a file offers, with their arguments; --json gives their schemas."""
    import asyncio

    from firstchair.cli.tools_view import print_tools

    box = _opened(spec)
    print_tools(box.tools, as_json=as_json)
    asyncio.run(box.close())


@app.command()
def call(
    spec: SpecFile,
    name: Annotated[str, typer.Argument(help="Name of the tool.")],
    arguments: Annotated[str, typer.Argument(help='Arguments as a JSON object, such as {"query": "tides"}.')] = "{}",
) -> None:
    """Call one tool and print what a model would read; exit code 1 when the result is an error."""
    import asyncio

    from firstchair.chat.messages import Message, ToolCall

    async def called() -> Message:
        async with _opened(spec) as box:
            return await box.call(ToolCall(id="call", name=name, arguments=arguments))

    result = asyncio.run(called())
    typer.echo(result.text, err=result.is_error)
    if result.is_error:
        raise typer.Exit(1)


def _opened(path: Path) -> ToolBox:
    from firstchair.core.config import fields_of, load_recipe
    from firstchair.tools.spec import ToolsSpec, open_tools

    spec = load_recipe(ToolsSpec, path)
    with fields_of(path):
        return open_tools(spec)


@app.command()
def index(
    folder: Annotated[Path, typer.Argument(help="Folder whose text files are indexed.")],
    out: Annotated[Path, typer.Argument(metavar="INDEX", help="Directory to write.")],
    include: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Only files like this; may be given several times.")
    ] = None,
    force: Force = False,
) -> None:
    """Build a BM25 index of a folder for `web_search`; with --force, update one: equal files are not read anew."""
    from firstchair.cli.tables import counted
    from firstchair.tools.search_index import build_index

    report = build_index(folder, out, include=include or (), force=force)
    files, passages = counted(report.files, "file"), counted(report.chunks, "passage")
    typer.echo(f"{passages} of {files} written to {out} ({report.files - report.read:,} taken from the old index)")
    for reason, count in report.skipped.items():
        typer.echo(f"left out, {reason}: {counted(count, 'file')}")
