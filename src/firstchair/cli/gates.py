"""``firstchair gates``: whether a model may be reinforced, and whether it may take a slot."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from firstchair.cli.evals import Golden, RunDir
from firstchair.cli.gateway import Who
from firstchair.cli.session_options import AsJson, Force
from firstchair.core.errors import ConfigError

if TYPE_CHECKING:
    from firstchair.catalog.prices import PriceTable
    from firstchair.data.golden import GoldenSet
    from firstchair.evals.gate_record import GateRecord, Input
    from firstchair.evals.gate_thresholds import Thresholds
    from firstchair.evals.metrics import Prices
    from firstchair.evals.rl_ready import Parity
    from firstchair.evals.run_record import Run
    from firstchair.evals.spending import Spending
    from firstchair.gateway.control.slots import Route

app = typer.Typer(
    no_args_is_help=True,
    help="Whether a model may be reinforced, and whether it may take a slot.\n\n"
    "Each figure has a 95% interval and passes when all of it keeps to its bound. A record is written either way.",
)

Baseline = Annotated[Path | None, typer.Option(help="Run directory of the model to compare with.")]
AcrossServing = Annotated[
    bool, typer.Option("--across-serving", help="Compare although the two runs were served differently.")
]
ThresholdsFile = Annotated[
    Path | None, typer.Option("--thresholds", help="YAML of the bounds; the defaults are in recipes/gates.yaml.")
]
SetField = Annotated[list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a bound.")]
AllowMissing = Annotated[
    list[str] | None,
    typer.Option("--allow-missing", metavar="GATE", help="Leave this gate out; the record then does not pass."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")]


@app.command()
def check(
    run: RunDir,
    route: Annotated[str, typer.Option(metavar="PROVIDER/MODEL", help="The candidate's route at the gateway.")],
    slot: Annotated[str, typer.Option(help="The slot that it is to take.")],
    baseline: Baseline = None,
    episodes: Annotated[
        Path | None, typer.Option(help="The candidate's episodes: sessions with `task_id` and `completed`.")
    ] = None,
    baseline_episodes: Annotated[Path | None, typer.Option(help="The baseline's, of the same tasks.")] = None,
    baseline_route: Annotated[
        str, typer.Option(metavar="PROVIDER/MODEL", help="The baseline's route, for cost and latency.")
    ] = "",
    ledger: Annotated[
        str, typer.Option(metavar="DATABASE", help="The gateway's database: cost and latency of real calls.")
    ] = "",
    since: Annotated[str, typer.Option(help="Only calls received at or after this ISO 8601 time.")] = "",
    until: Annotated[str, typer.Option(help="Only calls received before this ISO 8601 time.")] = "",
    prices: Annotated[
        Path | None, typer.Option(help="Price file; cost is then that of the runs' tokens, latency the runs'.")
    ] = None,
    golden: Golden = None,
    across_serving: AcrossServing = False,
    thresholds: ThresholdsFile = None,
    set_: SetField = None,
    allow_missing: AllowMissing = None,
    seed: Seed = 0,
    who: Who = "",
    out: Annotated[Path, typer.Option(help="The record to write, for `gateway promote --gates`.")] = Path(
        "gates.json"
    ),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """The six gates of a promotion. Exit code 1 unless all pass.

    They are routing, argument_quality, completion, recovery, stop and cost_latency. What a gate needs and does not
    get is an error that names it.
    """
    from firstchair.core.atomic import refuse_existing
    from firstchair.evals.gate_files import make_record, read_episodes
    from firstchair.evals.gates import Evidence, six_gates
    from firstchair.gateway.control.slots import read_route

    refuse_existing(out, force=force)
    of = read_route(route)
    runs = _open(run, baseline, golden, across_serving, thresholds, set_)
    found: dict[str, Any] = {}
    inputs: list[Input] = []
    for name, path in (("episodes", episodes), ("baseline_episodes", baseline_episodes)):
        if path is not None:
            found[name], used = read_episodes(name, path)
            inputs.append(used)
    if ledger:
        found["baseline_spending"], found["spending"], used = _ledger_spending(
            ledger, slot, of, _baseline_route(baseline_route), since, until
        )
        inputs.append(used)
    elif prices is not None:
        before = _baseline_route(baseline_route)
        found["baseline_spending"], found["spending"], used = run_spending(
            prices, runs.candidate, runs.baseline, of, before
        )
        inputs.append(used)
    evidence = Evidence(
        candidate=runs.candidate.rows,
        kinds=runs.golden.kinds,
        baseline=runs.baseline.rows if runs.baseline else None,
        **found,
    )
    gates = six_gates(evidence, runs.thresholds, seed=seed, allow_missing=allow_missing or ())
    said = {**_signed(who, seed), "route": str(of), "slot": slot}
    record = make_record(
        "promotion", gates, (runs.candidate, runs.baseline), runs.golden, inputs, runs.thresholds, **said
    )
    _write(record, out, force=force, as_json=as_json)


@app.command("rl-ready")
def rl_ready(
    run: RunDir,
    baseline: Baseline = None,
    catalog: Annotated[
        Path | None, typer.Option(help="The catalog (YAML) that the golden set was frozen under, with its policy.")
    ] = None,
    parity: Annotated[Path | None, typer.Option(help="What `firstchair parity --json` printed.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="Without --parity: compare the prompts of this model directory here.")
    ] = None,
    base_url: Annotated[
        str | None, typer.Option("--base-url", help="With --model: compare them with this server's.")
    ] = None,
    golden: Golden = None,
    across_serving: AcrossServing = False,
    thresholds: ThresholdsFile = None,
    set_: SetField = None,
    allow_missing: AllowMissing = None,
    seed: Seed = 0,
    who: Who = "",
    out: Annotated[Path, typer.Option(help="The record to write.")] = Path("rl-ready.json"),
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Whether RL may begin: labels, golden set, routing and parity. Exit code 1 unless all pass."""
    from firstchair.catalog.catalog import load_catalog
    from firstchair.catalog.verdict import score
    from firstchair.core.atomic import refuse_existing
    from firstchair.data.golden import verify
    from firstchair.evals.gate_files import input_of, make_record, read_parity
    from firstchair.evals.rl_ready import Readiness, rl_ready_gates

    refuse_existing(out, force=force)
    if parity is not None and model is not None:
        raise ConfigError("--parity and --model: one of the two; the first is a comparison that was made before")
    if base_url is not None and model is None:
        raise ConfigError("--base-url is for --model DIR, whose prompts are compared with that server's")
    runs = _open(run, baseline, golden, across_serving, thresholds, set_)
    assert runs.golden.path is not None
    inputs = [input_of(name, path) for name, path in (("catalog", catalog), ("parity", parity)) if path is not None]
    compared = (
        read_parity(parity) if parity is not None else compared_here(model, base_url) if model is not None else None
    )
    readiness = Readiness(
        candidate=runs.candidate.rows,
        template_hash=runs.candidate.record.candidate.template_hash,
        golden=runs.golden,
        checked=verify(runs.golden.path, score)[1],
        baseline=runs.baseline.rows if runs.baseline else None,
        catalog=load_catalog(catalog) if catalog is not None else None,
        parity=compared,
    )
    gates = rl_ready_gates(readiness, runs.thresholds, seed=seed, allow_missing=allow_missing or ())
    record = make_record(
        "rl_readiness",
        gates,
        (runs.candidate, runs.baseline),
        runs.golden,
        inputs,
        runs.thresholds,
        **_signed(who, seed),
    )
    _write(record, out, force=force, as_json=as_json)


# --- what both read and write -----------------------------------------------------------------------------------


class _Runs(NamedTuple):
    candidate: Run
    baseline: Run | None
    golden: GoldenSet
    thresholds: Thresholds


def _open(
    run: Path,
    baseline: Path | None,
    golden: Path | None,
    across_serving: bool,
    thresholds: Path | None,
    overrides: list[str] | None,
) -> _Runs:
    """Read the runs, their golden set and the bounds; what gates cannot be asked of is refused."""
    from firstchair.cli.evals import golden_of
    from firstchair.core.config import load_recipe
    from firstchair.evals.gate_files import refuse_unfit
    from firstchair.evals.gate_thresholds import Thresholds
    from firstchair.evals.run_record import load_run

    asked = load_recipe(Thresholds, thresholds, overrides or ())
    candidate, before = load_run(run), load_run(baseline) if baseline is not None else None
    scoreboard = golden_of(candidate, golden)
    refuse_unfit(candidate, before, scoreboard, allow_serving=across_serving)
    return _Runs(candidate, before, scoreboard, asked)


def _signed(who: str, seed: int) -> dict[str, Any]:
    from firstchair.cli.gateway import login_name
    from firstchair.core.clock import utc_now

    return {"who": login_name(who), "created_at": utc_now(), "seed": seed}


def _write(record: GateRecord, out: Path, *, force: bool, as_json: bool) -> None:
    from firstchair.cli.gates_view import print_gates
    from firstchair.evals.gate_files import write_gates

    print_gates(record, write_gates(record, out, force=force), out, as_json=as_json)
    raise typer.Exit(0 if record.passed else 1)


# --- what is compared -------------------------------------------------------------------------------------------


def _baseline_route(text: str) -> Route:
    from firstchair.gateway.control.slots import read_route

    if not text:
        raise ConfigError(
            "--baseline-route PROVIDER/MODEL is needed with --ledger and --prices: whose cost to compare"
        )
    return read_route(text)


def _ledger_spending(
    database: str, slot: str, of: Route, baseline: Route, since: str, until: str
) -> tuple[Spending, Spending, Input]:
    from firstchair.evals.gate_record import Input
    from firstchair.gateway.control.spending import compare_spending
    from firstchair.gateway.control.store import ControlStore
    from firstchair.traces.times import microseconds

    bounds = (microseconds(since, field="--since"), microseconds(until, field="--until"))
    with ControlStore.open(database, must_exist=True) as store, store.reading() as connection:
        found = compare_spending(connection, slot, of, baseline, since_us=bounds[0], until_us=bounds[1])
        url = store.url
    details = {"baseline_route": str(baseline), "since": since, "until": until, "how": found.how}
    return found.baseline, found.candidate, Input(name="ledger", path=url, sha256=found.sha256, details=details)


def run_spending(
    file: Path, run: Run, before: Run | None, of: Route, baseline: Route
) -> tuple[Spending | None, Spending, Input]:
    """What the tokens of the runs would cost, and how long their decisions took: the baseline's, then the run's."""
    from firstchair.catalog.prices import PriceTable
    from firstchair.evals.gate_files import input_of
    from firstchair.evals.spending import spending_of_run

    table = PriceTable.load(file)
    spending = spending_of_run(run.rows, _prices(table, file, of))
    compared = spending_of_run(before.rows, _prices(table, file, baseline)) if before else None
    used = input_of("prices", file, version=table.version, baseline_route=str(baseline), how="runs")
    return compared, spending, used


def _prices(table: PriceTable, file: Path, route: Route) -> Prices:
    from firstchair.catalog.token_counts import NANO
    from firstchair.evals.metrics import Prices

    price = table.price(route.model, route.provider)
    if price is None:
        raise ConfigError(f"--prices {file}: no price for {route}; add `{route}` under `models`")
    cached = price.input if price.cache_read is None else price.cache_read
    return Prices(price.input / NANO, price.output / NANO, cached / NANO)


def compared_here(model: Path, base_url: str | None) -> Parity:
    """Compare the model's prompts on the built-in cases: with that server's, or with its template's in process."""
    from firstchair.chat.parity import HOLDS, decisions
    from firstchair.chat.parity_fixtures import fixture_cases
    from firstchair.chat.trained import trained_renderer
    from firstchair.cli.parity import OTHER, compared
    from firstchair.evals.rl_ready import Parity

    report = compared(trained_renderer(model), list(decisions(fixture_cases())), base_url)
    differing = sum(one.match not in HOLDS for one in report.comparisons)
    return Parity(report.template_hash, base_url or OTHER, len(report.comparisons), differing)
