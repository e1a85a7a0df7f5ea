"""``firstchair eval bench``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstchair.cli.prices import PriceTableFile
from firstchair.cli.session_options import AsJson

if TYPE_CHECKING:
    from firstchair.evals.benchmarks.rows import BenchRow
    from firstchair.evals.benchmarks.run import Run


def bench(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="gaia, mmlu_pro, supergpqa, hle, frames, tau2 or bfcl.")
    ],
    model: Annotated[
        str, typer.Option("--model", help="The model as its server names it; without --base-url a name of Inspect's.")
    ],
    out: Annotated[Path, typer.Option(help="Run directory to make.")],
    base_url: Annotated[str, typer.Option("--base-url", help="An OpenAI-compatible server; ends in /v1.")] = "",
    api_key_env: Annotated[str, typer.Option("--api-key-env", help="Environment variable that holds the key.")] = "",
    n: Annotated[int | None, typer.Option("--n", min=1, help="How many samples; all of them unless given.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Ask all samples so often, under seeds 0, 1, …")] = 1,
    draw_seed: Annotated[int, typer.Option(min=0, help="Seed of which samples are drawn.")] = 0,
    subset: Annotated[
        str, typer.Option(help="Part of the benchmark: a level, a domain; see docs/benchmarks.md.")
    ] = "",
    records: Annotated[
        Path | None, typer.Option(help="JSONL of records in the data set's own shape, instead of the download.")
    ] = None,
    helper: Annotated[
        str, typer.Option("--helper", help="Model that grades (hle, frames) or plays the customer (tau2).")
    ] = "",
    helper_base_url: Annotated[str, typer.Option("--helper-base-url", help="Its server, as --base-url.")] = "",
    helper_key_env: Annotated[
        str, typer.Option("--helper-key-env", help="Environment variable that holds its key.")
    ] = "",
    sandbox: Annotated[
        Literal["docker", "k8s", "process", "local"],
        typer.Option(
            help="What runs the model's programs (gaia): process is our own sandbox, local this machine, unconfined."
        ),
    ] = "docker",
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="The endpoint's own unless given.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest reply.")] = None,
    timeout: Annotated[int, typer.Option(min=1, metavar="SECONDS", help="For one try of one call.")] = 600,
    concurrency: Annotated[int, typer.Option(min=1, help="Samples at a time.")] = 8,
    prices: PriceTableFile = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the stopped run in --out, or add seeds to it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a public benchmark against an endpoint. Exit code 1 when nothing could be graded."""
    from firstchair.catalog.prices import PriceTable
    from firstchair.core.errors import RunFailed
    from firstchair.core.progress import progress
    from firstchair.evals.benchmarks.catalogue import benchmark
    from firstchair.evals.benchmarks.run import BenchOptions, Endpoint, run_benchmark

    chosen = benchmark(name)
    options = BenchOptions(
        endpoint=Endpoint(model, base_url, api_key_env),
        helper=Endpoint(helper, helper_base_url, helper_key_env) if helper else None,
        subset=subset,
        n=n,
        seeds=seeds,
        draw_seed=draw_seed,
        records=records,
        sandbox=sandbox,
        temperature=temperature,
        max_tokens=max_tokens,
        timeout_s=timeout,
        concurrency=concurrency,
        prices=PriceTable.load(prices),
    )
    with progress(f"bench {name}", seeds, unit="seeds") as bar:

        def done(seed: int, rows: list[BenchRow]) -> None:
            bar.advance(note=f"seed {seed}: {sum(row.score is not None for row in rows)}/{len(rows)} graded")

        run = run_benchmark(chosen, options, out, resume=resume, done=done)
    _print(run, out, as_json=as_json)
    if not run.summary.graded:
        raise RunFailed(f"{name}: none of {run.summary.rows} could be graded; see {out / 'summary.json'}")


def _print(run: Run, out: Path, *, as_json: bool) -> None:
    import msgspec
    from rich.console import Console

    from firstchair.cli.tables import counted, print_json, table
    from firstchair.data.orchestration.views import money
    from firstchair.evals.report import interval, percent

    if as_json:
        print_json({"path": str(out), **msgspec.to_builtins(run)})
        return
    found = run.summary
    shown = table("", "#mean", "#95% interval", "#n", title=f"{run.benchmark} ({run.subset}), {run.model}")
    for one in found.by_seed:
        shown.add_row(f"seed {one.seed}", percent(one.mean), "", f"{one.graded:,}")
    shown.add_row(
        "over samples", percent(found.over_samples.value), interval(found.over_samples), f"{found.graded:,}"
    )
    spread = found.over_seeds
    between = "–" if spread.low is None else f"{percent(spread.low)} to {percent(spread.high)}"
    shown.add_row("over seeds", percent(spread.mean), between, f"{spread.seeds:,}")
    console = Console()
    console.print(shown)
    cost, late = found.cost, found.latency
    lines = [
        f"served by {', '.join(found.served_models) or 'nobody'}",
        f"cost {money(cost.endpoint_usd)}, {money(cost.per_sample_usd)} a sample; helper {money(cost.helper_usd)}",
        f"latency p50 {_seconds(late.p50_s)}, p95 {_seconds(late.p95_s)} a sample",
        *(f"left out: {counted(times, 'sample')}: {error}" for error, times in found.errors.items()),
        f"{counted(found.rows, 'row')} in {out}; read them: firstchair trajectories view {out / 'sessions.jsonl'} "
        f"--out {out / 'sessions.html'}",
    ]
    for line in lines:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _seconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds:,.2f} s"
