"""What ``firstchair orchestrate`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import typer

from firstchair.catalog.token_counts import NANO
from firstchair.cli.tables import counted, print_json
from firstchair.data.orchestration.rejection import Sampled
from firstchair.data.orchestration.views import money
from firstchair.rollout.orchestration.run import Tally


def print_run(out: Path, sampled: Sampled, tally: Tally, *, as_json: bool) -> None:
    """What was played, and what became of it."""
    if as_json:
        print_json({"out": str(out), **vars(sampled), "tally": vars(tally)})
        return
    before = f" ({counted(sampled.finished_before, 'task')} were there before)" if sampled.finished_before else ""
    typer.echo(
        f"{counted(sampled.tasks, 'task')}, {counted(tally.trajectories, 'trajectory').replace('ys', 'ies')} → "
        f"{out}{before}"
    )
    if sampled.fewer_before:
        typer.echo(
            f"with fewer samples than asked for: {counted(sampled.fewer_before, 'task')} of those that were there; "
            "choose another --out to sample them anew"
        )
    _line("graded", tally.grades)
    _line("ended", tally.ends)
    _line("called", tally.dispatches)
    _line("without an answer", tally.faults)
    _line("nudged", tally.nudges)
    _line("broke", tally.errors)
    if tally.first_error is not None:
        typer.echo(f"the first that broke: {tally.first_error}")
    cost = f"experts: {money(tally.cost_nano / NANO)}"
    typer.echo(f"{cost}, {counted(tally.unpriced, 'call')} without a known price" if tally.unpriced else cost)


def _line(title: str, counts: Mapping[str, int]) -> None:
    if counts:
        shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        typer.echo(f"{title}: {', '.join(f'{name} {count:,}' for name, count in shown)}")
