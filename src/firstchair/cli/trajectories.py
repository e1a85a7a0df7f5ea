"""``firstchair trajectories``: stats, serialize, select, view."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from firstchair.cli.session_options import AsJson, Force

app = typer.Typer(
    no_args_is_help=True, help="Trajectories of orchestrations: statistics, training records, a viewer."
)

Groups = Annotated[Path, typer.Argument(metavar="GROUPS", help="Groups of trajectories (JSONL): a task a line.")]
OutFile = Annotated[Path, typer.Option("--out", help="JSONL file to write.")]


@app.callback()
def _group() -> None:
    """Trajectories of orchestrations: statistics, training records, a viewer."""


@app.command()
def stats(groups: Groups, as_json: AsJson = False) -> None:
    """Count what was sampled: correct, clean and kept, why not, and what each expert cost."""
    from firstchair.cli.trajectories_view import print_stats
    from firstchair.data.orchestration.groups import read_groups
    from firstchair.data.orchestration.stats import trajectory_stats

    print_stats(trajectory_stats(read_groups(groups)), as_json=as_json)


@app.command()
def serialize(
    groups: Groups,
    out: OutFile,
    kept: Annotated[
        bool, typer.Option("--kept", help="Only the cheapest correct and clean trajectory of each task.")
    ] = False,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write SFT records, one a trajectory, right or wrong; a recipe or `select` chooses among them."""
    from firstchair.cli.trajectories_view import print_serialized
    from firstchair.data.orchestration.groups import read_groups
    from firstchair.data.orchestration.serialize import training_records
    from firstchair.data.sft import write_sft

    left_out: list[str] = []
    records = training_records(read_groups(groups), kept_only=kept, left_out=left_out)
    why = f"see why: firstchair trajectories stats {groups}"
    counts = write_sft(out, records, force=force, if_none=why)
    print_serialized(out, counts, left_out, as_json=as_json)


@app.command()
def select(
    records: Annotated[Path, typer.Argument(metavar="RECORDS", help="SFT records of `serialize` (JSONL).")],
    out: OutFile,
    which: Annotated[
        Literal["all", "correct", "correct_routed"],
        typer.Option(help="correct_routed: correct, and a model was asked at least once."),
    ] = "correct_routed",
    clean: Annotated[bool, typer.Option("--clean/--no-clean", help="Leave out what the clean gate dropped.")] = True,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write some of the records, as `data.select` of a training recipe would take them, and say what is left out."""
    from firstchair.cli.trajectories_view import print_selected
    from firstchair.data.orchestration.selection import chosen_records
    from firstchair.data.sft import read_sft, write_sft

    left_out: dict[str, int] = {}
    chosen = chosen_records(read_sft(records), which, clean_only=clean, left_out=left_out, path=str(records))
    counts = write_sft(out, chosen, force=force)
    print_selected(out, counts, left_out, as_json=as_json)


@app.command()
def view(
    source: Annotated[
        Path, typer.Argument(metavar="SOURCE", help="Groups, SFT records or sessions (JSONL, or an export).")
    ],
    out: Annotated[Path, typer.Option("--out", help="HTML file to write; NAME.json and NAME.txt come beside it.")],
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Write a page to read records in, with search and filters; the same as indented JSON and as plain text."""
    from firstchair.cli.trajectories_view import print_view
    from firstchair.data.orchestration.companions import write_companions
    from firstchair.data.orchestration.views import views_of

    print_view(write_companions(views_of(source), out, title=source.name, force=force), as_json=as_json)
