"""``firstchair demo``: the whole loop on the embedded desk."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstchair.core.seeds import MAX_SEED

app = typer.Typer()


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Directory for everything that the demo writes.")] = Path("demo-run"),
    sessions: Annotated[int, typer.Option(min=8, max=1_000_000, help="Recorded sessions to train on.")] = 2000,
    golden: Annotated[int, typer.Option(min=4, max=1_000_000, help="Recorded sessions of the golden set.")] = 66,
    episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Live episodes, before and after.")] = 60,
    mistake_rate: Annotated[float, typer.Option(min=0.0, max=0.5, help="How often the teacher errs.")] = 0.04,
    epochs: Annotated[float, typer.Option(min=0.01, max=1000, help="Passes over the training sessions.")] = 1.0,
    reinforce: Annotated[
        bool, typer.Option(help="Reinforce the trained model too: RL-readiness, GRPO, one DAgger round.")
    ] = True,
    grpo_batches: Annotated[int, typer.Option(min=1, max=1_000_000, help="Batches of GRPO.")] = 4,
    grpo_prompts: Annotated[int, typer.Option(min=1, max=1_000_000, help="Decisions of a GRPO batch.")] = 128,
    dagger_episodes: Annotated[int, typer.Option(min=1, max=1_000_000, help="Episodes of the DAgger round.")] = 200,
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Seed of tasks, recordings and training.")] = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace what an earlier demo wrote in --out.")] = False,
) -> None:
    """Record a teacher, train a tiny model, reinforce it, ask the gates, promote it: minutes on two cores."""
    from firstchair.cli.demo_run import DemoOptions, run_demo

    run_demo(
        DemoOptions(
            out=out,
            sessions=sessions,
            golden=golden,
            episodes=episodes,
            mistake_rate=mistake_rate,
            epochs=epochs,
            reinforce=reinforce,
            grpo_batches=grpo_batches,
            grpo_prompts=grpo_prompts,
            dagger_episodes=dagger_episodes,
            seed=seed,
        ),
        force=force,
    )
