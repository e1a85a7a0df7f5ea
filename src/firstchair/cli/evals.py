"""``firstchair eval``: replay, compare, report, score, judge, labels, bench."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstchair.cli.bench import bench
from firstchair.cli.session_options import AsJson, CallArguments, Force
from firstchair.core.errors import ConfigError

if TYPE_CHECKING:
    from firstchair.data.golden import GoldenSet
    from firstchair.evals.metrics import Prices
    from firstchair.evals.run_record import Run


def _finite(value: float | None) -> float | None:
    """``min`` and ``max`` of an option let ``nan`` pass, and ``inf`` where there is no ``max``."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"found {value}; expected a finite number")
    return value


app = typer.Typer(
    no_args_is_help=True,
    help="Replay a golden set against a candidate, compare runs, write reports.\n\n"
    "At every recorded decision the candidate sees what the original saw and gives one action; code scores it.",
)
labels_app = typer.Typer(no_args_is_help=True, help="Hand labels of decisions that code cannot decide.")
app.add_typer(labels_app, name="labels")
app.command()(bench)

EngineKind = Literal["transformers", "openai", "anthropic", "scripted"]

RunDir = Annotated[Path, typer.Argument(metavar="RUN", help="Run directory made by `eval replay`.")]
Golden = Annotated[
    Path | None, typer.Option("--golden", help="The golden set, if it has moved since the run was made.")
]
EngineOption = Annotated[EngineKind, typer.Option("--engine", help="What serves the candidate.")]
ModelOption = Annotated[
    str,
    typer.Option("--model", help="Model directory, served name, or for scripted a JSONL of replies or `gold`."),
]
BaseUrl = Annotated[
    str, typer.Option("--base-url", help="Address of a server. OpenAI's ends in /v1; Anthropic's does not.")
]
Tokenizer = Annotated[
    Path | None, typer.Option(help="Directory whose tokenizer and template render prompts; openai then sends ids.")
]
ApiKeyEnv = Annotated[str, typer.Option("--api-key-env", help="Environment variable that holds the key.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Requests in flight at a server.")]


@app.command()
def replay(
    golden: Annotated[Path, typer.Argument(metavar="GOLDEN", help="Directory of a frozen golden set.")],
    out: Annotated[Path, typer.Option(help="Run directory; an unfinished run of the same command goes on.")],
    model: ModelOption,
    engine: EngineOption = "transformers",
    base_url: BaseUrl = "",
    tokenizer: Tokenizer = None,
    template: Annotated[
        str | None, typer.Option(help="Chat template: a pinned name or a .jinja file; as the model was trained.")
    ] = None,
    tool_format: Annotated[
        str | None, typer.Option(help="Tool-call syntax; as the model was trained, or found from the template.")
    ] = None,
    arguments: CallArguments = None,
    adapter: Annotated[str, typer.Option(help="PEFT adapter directory (transformers).")] = "",
    dtype: Annotated[str, typer.Option(help="float32 or bfloat16 (transformers).")] = "float32",
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 (transformers).")] = "cpu",
    constrain: Annotated[
        bool,
        typer.Option(
            "--constrain", help="Force calls to be valid for their schemas; an openai server is only asked."
        ),
    ] = False,
    salvage: Annotated[bool, typer.Option("--salvage", help="Also read wrong habits of calling; marked.")] = False,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="Longest reply.")] = 256,
    temperature: Annotated[float, typer.Option(min=0.0, callback=_finite, help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, callback=_finite)] = 1.0,
    sampling_seed: Annotated[int | None, typer.Option(min=0, help="Seed of sampling.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many decisions.")] = None,
    keep_ids: Annotated[bool, typer.Option("--keep-ids", help="Store token ids and log-probabilities.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on with an unfinished run in OUT.")] = True,
    retry_errors: Annotated[bool, typer.Option("--retry-errors", help="Ask again where the engine failed.")] = False,
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one", help="No prefix sharing: one request at a time (transformers).")
    ] = False,
    concurrency: Concurrency = 16,
    api_key_env: ApiKeyEnv = "",
    as_json: AsJson = False,
) -> None:
    """Replay a golden set against a candidate. Exit code 1 when it gave no answer to some decisions."""
    from firstchair.cli.evals_view import print_run, refuse_unanswered
    from firstchair.engines.base import Sampling
    from firstchair.evals.candidates import CandidateOptions, replay_candidate
    from firstchair.evals.replay import ReplayOptions

    who = CandidateOptions(
        engine=engine,
        model=model,
        base_url=base_url,
        tokenizer=tokenizer,
        template=template,
        tool_format=tool_format,
        arguments=arguments,
        adapter=adapter,
        dtype=dtype,
        device=device,
        prefix_sharing=not one_by_one,
        api_key_env=api_key_env,
        concurrency=concurrency,
    )
    options = ReplayOptions(
        sampling=Sampling(max_new_tokens, temperature, top_p, seed=sampling_seed),
        constrain=constrain,
        salvage=salvage,
        keep_ids=keep_ids,
        seed=seed,
        adapter=adapter,
        limit=limit,
        resume=resume,
        retry_errors=retry_errors,
    )
    run = replay_candidate(_golden(golden), who, out, options)
    print_run(run, as_json=as_json)
    refuse_unanswered(run)


@app.command()
def show(run: RunDir, as_json: AsJson = False) -> None:
    """Print the metrics of a run, finished or not."""
    from firstchair.cli.evals_view import print_run
    from firstchair.evals.run_record import load_run

    print_run(load_run(run, partial=True), as_json=as_json)


@app.command()
def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Run directory of the baseline.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Run directory of the candidate.")],
    across_serving: Annotated[
        bool, typer.Option("--across-serving", help="Compare although the two were served differently.")
    ] = False,
    golden: Golden = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the bootstrap intervals.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Compare two runs decision by decision; refuses runs that are not comparable."""
    from firstchair.cli.evals_view import print_comparison
    from firstchair.evals.compare import compare as compare_runs
    from firstchair.evals.run_record import load_run

    left, right = load_run(before), load_run(after)
    kinds = golden_of(right, golden).kinds if golden or _has_golden(right) else None
    found = compare_runs(left, right, kinds, seed=seed, allow_serving=across_serving)
    print_comparison(found, as_json=as_json)


@app.command()
def report(
    run: RunDir,
    out: Annotated[Path, typer.Option(help="HTML file; a .json of the same name is written beside it.")],
    baseline: Annotated[Path | None, typer.Option(help="Run directory to compare with.")] = None,
    golden: Golden = None,
    across_serving: Annotated[
        bool, typer.Option("--across-serving", help="Compare although the two were served differently.")
    ] = False,
    price_in: Annotated[
        float | None, typer.Option(min=0.0, callback=_finite, help="US dollars per million prompt tokens.")
    ] = None,
    price_out: Annotated[
        float | None, typer.Option(min=0.0, callback=_finite, help="US dollars per million output tokens.")
    ] = None,
    price_cached: Annotated[
        float | None,
        typer.Option(min=0.0, callback=_finite, help="US dollars per million prompt tokens from the cache."),
    ] = None,
    force: Force = False,
) -> None:
    """Write the report of a run as one HTML file and one JSON file."""
    from firstchair.cli.evals_view import print_written
    from firstchair.evals.report import write_report
    from firstchair.evals.run_record import load_run

    if out.suffix != ".html":
        raise ConfigError(f"--out {out}: expected a name that ends in .html")
    candidate = load_run(run)
    write_report(
        candidate,
        golden_of(candidate, golden),
        out,
        load_run(baseline) if baseline else None,
        force=force,
        allow_serving=across_serving,
        prices=_prices(price_in, price_out, price_cached),
    )
    print_written(out, out.with_suffix(".json"), out.stat().st_size)


@app.command()
def score(
    run: RunDir,
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    golden: Annotated[
        Path | None,
        typer.Option(
            "--golden", help="The golden set to score by: the run's own, if it moved, or a newly frozen one."
        ),
    ] = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Score a run again from its stored replies: other matchers, corrected gold. No model is asked."""
    from firstchair.cli.evals_view import print_run
    from firstchair.evals.rescore import rescore
    from firstchair.evals.run_record import load_run

    before = load_run(run)
    print_run(rescore(before, _golden_at(before, golden), out, force=force), as_json=as_json)


@app.command()
def judge(
    run: RunDir,
    model: Annotated[str, typer.Option("--model", help="The judge: a served model's name, or a model directory.")],
    engine: Annotated[EngineKind, typer.Option("--engine", help="What serves the judge.")] = "openai",
    base_url: BaseUrl = "",
    tokenizer: Annotated[
        Path | None, typer.Option(help="Directory whose tokenizer and template render the judge's prompts.")
    ] = None,
    golden: Golden = None,
    concurrency: Concurrency = 16,
    api_key_env: ApiKeyEnv = "",
    as_json: AsJson = False,
) -> None:
    """Let a model judge what code cannot decide. A judge that passes worthless probes is refused."""
    import asyncio

    from firstchair.cli.evals_view import print_run
    from firstchair.evals.candidates import CandidateOptions, open_candidate
    from firstchair.evals.judge import judge_run
    from firstchair.evals.run_record import load_run

    candidate = load_run(run)
    scoreboard = golden_of(candidate, golden)
    who = CandidateOptions(
        engine=engine,
        model=model,
        base_url=base_url,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
        concurrency=concurrency,
    )

    async def ask() -> None:
        judge_engine, _ = open_candidate(who, scoreboard)
        try:
            await judge_run(judge_engine, scoreboard, candidate, concurrency=concurrency)
        finally:
            await judge_engine.close()

    asyncio.run(ask())
    print_run(candidate, as_json=as_json)


@labels_app.command("draw")
def labels_draw(
    run: RunDir,
    out: Annotated[Path, typer.Option(help="JSONL to fill in: set `right` to true or false.")],
    n: Annotated[int, typer.Option(min=1, help="How many decisions.")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draw.")] = 0,
    decided: Annotated[bool, typer.Option("--decided", help="Draw among all decisions, to check code too.")] = False,
    force: Force = False,
) -> None:
    """Draw decisions at random for people to label."""
    from firstchair.core.jsonl import write_jsonl
    from firstchair.evals.labels import draw
    from firstchair.evals.run_record import load_run

    rows = draw(load_run(run), n, seed=seed, only_undecided=not decided)
    write_jsonl(out, rows, force=force)
    typer.echo(f"{len(rows)} decisions in {out}; fill in `right`, then: firstchair eval labels import {run} {out}")


@labels_app.command("import")
def labels_import(
    run: RunDir,
    file: Annotated[Path, typer.Argument(help="Filled-in JSONL of {dp_id, right, by, note}.")],
    random_sample: Annotated[
        bool,
        typer.Option("--random-sample", help="The decisions were chosen at random by other means than `draw`."),
    ] = False,
) -> None:
    """Take labels into a run; they enter the true level of its report."""
    from firstchair.evals.labels import import_labels
    from firstchair.evals.report_data import truth_of
    from firstchair.evals.run_record import load_run

    candidate = load_run(run)
    taken, blank = import_labels(candidate, file, random_sample=random_sample)
    typer.echo(f"{taken} labels taken, {blank} rows not filled in. True level: {truth_of(candidate).why}.")


def _golden(path: Path) -> GoldenSet:
    from firstchair.data.golden import GoldenSet

    return GoldenSet.load(path)


def _has_golden(run: Run) -> bool:
    return bool(run.record.golden.path) and Path(run.record.golden.path).is_dir()


def golden_of(run: Run, path: Path | None) -> GoldenSet:
    """The golden set that a run was scored by. Another one is refused: its gold is not what the rows answer to."""
    golden = _golden_at(run, path)
    wanted = run.record.golden.set_sha256
    if golden.set_sha256 != wanted:
        raise ConfigError(
            f"{golden.path}: found the golden set {golden.set_sha256[:12]}…; {run.path} was scored by "
            f"{wanted[:12]}…; give that one with --golden, or score the run by this one: firstchair eval score "
            f"RUN --golden {golden.path} --out NEW"
        )
    return golden


def _golden_at(run: Run, path: Path | None) -> GoldenSet:
    """The golden set at ``path``, or where the run's own was."""
    if path is None and not _has_golden(run):
        raise ConfigError(
            f"the golden set of {run.path} is no longer at {run.record.golden.path or '(unknown)'}; say where with "
            "--golden"
        )
    return _golden(path or Path(run.record.golden.path))


def _prices(price_in: float | None, price_out: float | None, cached: float | None) -> Prices | None:
    from firstchair.evals.metrics import Prices

    if price_in is None and price_out is None and cached is None:
        return None
    if price_in is None or price_out is None:
        raise ConfigError("--price-in and --price-out go together; give both")
    return Prices(input=price_in, output=price_out, cached=cached)
