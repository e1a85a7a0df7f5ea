"""``firstchair demo``: the whole loop on the embedded desk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for everything that the demo writes.")] = Path("demo-run"),
    sessions: Annotated[int, typer.Option(min=8, help="Recorded sessions to train on.")] = 2000,
    golden: Annotated[int, typer.Option(min=4, help="Recorded sessions of the golden set.")] = 66,
    episodes: Annotated[int, typer.Option(min=1, help="Live episodes, before and after.")] = 60,
    mistake_rate: Annotated[float, typer.Option(min=0.0, max=0.5, help="How often the teacher errs.")] = 0.04,
    epochs: Annotated[float, typer.Option(min=0.01, help="Passes over the training sessions.")] = 1.5,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the tasks, the recordings and the training.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier demo wrote in --out.")] = False,
) -> None:
    """Record a teacher, freeze a golden set, train a tiny model, show what changed: five minutes on two cores."""
    from firstchair.cli.demo_run import DemoOptions, run_demo

    run_demo(
        DemoOptions(
            out=out,
            sessions=sessions,
            golden=golden,
            episodes=episodes,
            mistake_rate=mistake_rate,
            epochs=epochs,
            seed=seed,
        ),
        force=force,
    )
