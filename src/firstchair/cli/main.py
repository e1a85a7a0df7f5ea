"""The ``firstchair`` command: errors to exit codes, and sub-commands that are imported only when they run."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from firstchair import __version__
from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.core.extras import advice, extra_of

COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "demo": (
            "firstchair.cli.demo",
            "Run the whole loop on the embedded desk: minutes, no key, no network.",
        ),
        "traces": ("firstchair.cli.traces", "Import, list, show, export and delete recorded sessions."),
        "catalog": (
            "firstchair.cli.catalog",
            "Tools, skills, matchers and routing policy; validate recordings.",
        ),
        "golden": ("firstchair.cli.golden", "Build, correct, freeze, verify and show golden sets."),
        "data": ("firstchair.cli.data", "SFT records, splits, near-duplicate and leakage audits."),
        "train": ("firstchair.cli.train", "Train a model (sft); copy the shipped base model (base)."),
        "eval": (
            "firstchair.cli.evals",
            "Replay a golden set against a candidate, compare runs, write reports.",
        ),
        "desk": (
            "firstchair.cli.desk",
            "The embedded harness world: tasks, recordings, HTTP teacher, episodes, reviews.",
        ),
        "parity": (
            "firstchair.cli.parity",
            "Compare trainer and server prompts, byte for byte and id for id.",
        ),
    }
)
"""Command → (module with a Typer ``app``, one line of help). Help is shown without importing any of them."""


class LazyGroup(TyperGroup):
    """A group whose commands are imported when they are called, so that ``--help`` stays quick."""

    _listing = False
    """Set while help is written: a name and a line for each command are enough then."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, summary = entry
        if self._listing:
            return TyperCommand(name=cmd_name, callback=None, help=summary)
        command = typer.main.get_command(import_module(module).app)
        command.name = cmd_name
        return command

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._listing = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._listing = False

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.secho("interrupted; what was written before is consistent", err=True, fg="yellow")
            raise typer.Exit(1) from None


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)


def _print_version(value: bool) -> None:
    if value:
        typer.echo(f"firstchair {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", is_eager=True, callback=_print_version, help="Show the version."
    ),
) -> None:
    """Put your own model into the first chair of your agent harness."""


def main() -> None:
    """Run the CLI. Exit code 0 success, 1 failed or interrupted run, 2 wrong usage or input."""
    try:
        app()
    except FirstchairError as error:
        typer.secho(f"error: {error}", err=True, fg="red")
        sys.exit(error.exit_code)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name)
        if extra is None:
            raise
        typer.secho(f"error: {advice([str(error.name)], (extra,))}", err=True, fg="red")
        sys.exit(ConfigError.exit_code)
