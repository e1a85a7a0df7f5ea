"""``firstchair serve``: an orchestrator behind OpenAI's Chat Completions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True)


@app.command()
def serve(
    config: Annotated[Path, typer.Option(help="YAML file: who leads, who may be asked, limits, keys.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a field of that file.")
    ] = None,
) -> None:
    """Answer Chat Completions by running a whole orchestration for each, until Ctrl-C or SIGTERM."""
    import os

    from firstchair.core.config import fields_of, load_recipe
    from firstchair.serve.config import ServeConfig
    from firstchair.serve.process import serve as serve_orchestrator

    loaded = load_recipe(ServeConfig, config, overrides or ())
    with fields_of(config):
        serve_orchestrator(loaded, os.environ, typer.echo)
