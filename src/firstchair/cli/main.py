"""The ``firstchair`` command: errors to exit codes, and sub-commands that are imported only when they run."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any, NoReturn

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
        "tasks": ("firstchair.cli.tasks", "Problems with known answers, for an orchestrator: import, split, count."),
        "trajectories": (
            "firstchair.cli.trajectories",
            "What an orchestrator did with them: statistics, training records, a page to read them in.",
        ),
        "train": ("firstchair.cli.train", "Train a model (sft); copy the shipped base model (base)."),
        "eval": (
            "firstchair.cli.evals",
            "Replay a golden set against a candidate, compare runs, write reports.",
        ),
        "gates": ("firstchair.cli.gates", "Whether a model may be reinforced, and whether it may take a slot."),
        "pareto": ("firstchair.cli.pareto", "Accuracy against cost of routing policies, as one page."),
        "judge": ("firstchair.cli.judge", "Judges of rewards: agreement with people, position bias, consistency."),
        "orchestrate": (
            "firstchair.cli.orchestrate",
            "Let a model solve tasks by calling other models and tools; keep every graded trajectory.",
        ),
        "serve": (
            "firstchair.cli.serve",
            "An orchestrator of models and tools behind OpenAI's Chat Completions.",
        ),
        "experts": ("firstchair.cli.experts", "Models that are asked as tools: list, ask, describe by measurement."),
        "prices": ("firstchair.cli.prices", "What models cost: show the dated table, update it."),
        "tools": ("firstchair.cli.tools", "Real tools: list, call by hand, index a folder for search."),
        "desk": (
            "firstchair.cli.desk",
            "The embedded harness world: tasks, recordings, HTTP teacher, episodes, reviews.",
        ),
        "synth": ("firstchair.cli.synth", "Synthetic domains: list, check, let a model write new ones."),
        "gateway": (
            "firstchair.cli.gateway",
            "The drop-in for Claude and GPT: slots, keys, promotion, rollback, ledger.",
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

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        # Typer would end without a word and with code 130 here.
        try:
            return super().make_context(*args, **kwargs)
        except KeyboardInterrupt:
            typer.secho("interrupted; nothing was done", err=True, fg="yellow")
            raise typer.Exit(1) from None

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


NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EPIPE})
"""What a standard stream can fail with; anything else without a message of its own is our bug."""


def main() -> None:
    """Run the CLI. Exit code 0 success, 1 failed or interrupted run, 2 wrong usage or input."""
    _print_any_text()
    try:
        try:
            _refuse_text_that_is_not_utf8(sys.argv[1:])
            app()
        finally:
            # Not left to the interpreter, which reports a failed flush as an ignored exception with exit code 120.
            if sys.stdout is not None:
                sys.stdout.flush()
    except FirstchairError as error:
        _fail(str(error), error.exit_code)
    except ModuleNotFoundError as error:
        extra = extra_of(error.name)
        if extra is None:
            raise
        _fail(advice([str(error.name)], (extra,)), ConfigError.exit_code)
    except OSError as error:
        if error.errno not in NO_ROOM or error.filename is not None:
            raise
        _drop_output()
        if error.errno == errno.EPIPE:  # the reader went away, as `head` does
            sys.exit(1)
        _fail(f"cannot write the output: {error.strerror}; free space or write elsewhere", 1)


def _fail(message: str, exit_code: int) -> NoReturn:
    with contextlib.suppress(OSError):  # a stderr on a full disk leaves the exit code
        typer.secho(f"error: {message}", err=True, fg="red")
    sys.exit(exit_code)


def _print_any_text() -> None:
    """Escape what the terminal's encoding lacks (``\\u2013``), instead of failing halfway through an answer."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _refuse_text_that_is_not_utf8(arguments: list[str]) -> None:
    """Raise ``ConfigError``: names and labels go into records, and records are UTF-8."""
    for argument in arguments:
        try:
            argument.encode("utf-8")
        except UnicodeEncodeError:
            raise ConfigError(
                f"argument {argument!r}: found bytes that are not UTF-8; rename the file or write the text as UTF-8"
            ) from None


def _drop_output() -> None:
    """Send what is still in the buffer of stdout nowhere, so that the exit does not try to write it again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError):
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
