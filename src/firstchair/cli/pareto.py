"""``firstchair pareto``: accuracy against cost of routing policies, as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstchair.cli.session_options import AsJson, Force

app = typer.Typer()


@app.command()
def pareto(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN…",
            help="What `orchestrate run` wrote (one policy a file), or JSONL of {policy, task_id, correct, cost_usd, "
            "latency_s, lambda_cost, kind}.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The page; its figures lie beside it as JSON.")] = Path("pareto.html"),
    title: Annotated[str, typer.Option(help="What the page is called.")] = "Routing",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")] = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Draw accuracy against the cost of a task for every policy and λ, with 95% intervals and the frontier."""
    import msgspec

    from firstchair.cli.tables import counted, print_json
    from firstchair.evals.pareto import pareto_points, read_routed
    from firstchair.evals.pareto_report import write_pareto

    points = pareto_points((one for run in runs for one in read_routed(run)), seed=seed)
    write_pareto(points, out, title=title, force=force)
    if as_json:
        print_json(msgspec.to_builtins(points))
    else:
        best = sum(point.frontier for point in points)
        typer.echo(f"{counted(len(points), 'point')}, {best} on the frontier: {out}")
    if unequal := [f"{point.policy} lacks {point.missed:,}" for point in points if point.missed]:
        typer.echo(f"not all were given the same tasks: {'; '.join(unequal)}", err=True)
