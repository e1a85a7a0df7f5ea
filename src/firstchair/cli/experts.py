"""``firstchair experts``: ls, ask, describe."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstchair.cli.prices import PriceTableFile
from firstchair.cli.session_options import AsJson, Force, Wide
from firstchair.core.errors import ConfigError
from firstchair.core.seeds import MAX_SEED

if TYPE_CHECKING:
    from firstchair.catalog.experts import ExpertCatalog
    from firstchair.engines.expert import ExpertAnswer
    from firstchair.evals.expert_description import Measurement
    from firstchair.rollout.orchestration.task import OrchestrationTask

app = typer.Typer(
    no_args_is_help=True,
    help="Models that are asked as tools: who they are, where they are reached, what they are good at.\n\n"
    "FIRSTCHAIR_EXCLUDE_EXPERTS holds parts of names, with commas in between, of experts that must not be used.",
)

CatalogFile = Annotated[
    Path | None, typer.Option("--catalog", help="YAML file; its sections take the place of the packaged ones.")
]


@app.callback()
def _group() -> None:
    """Models that are asked as tools: who they are, where they are reached, what they are good at."""


@app.command("ls")
def list_experts(
    catalog: CatalogFile = None, prices: PriceTableFile = None, wide: Wide = False, as_json: AsJson = False
) -> None:
    """List the experts, where each is asked with the keys that are set, and what it costs."""
    import os

    from firstchair.catalog.backends import VENDORS, listed_price, reachable, unreachable
    from firstchair.catalog.price_update import usd_text
    from firstchair.catalog.prices import PriceTable
    from firstchair.cli.tables import Column, counted, number, print_json, print_list

    loaded, table = _catalog(catalog), PriceTable.load(prices)
    found, missing = reachable(loaded, os.environ)
    rows = []
    for expert in loaded.experts:
        backend = found.get(expert.name)
        price = listed_price(expert, loaded, table) if backend is None else backend.price(table)
        cost = ["", ""] if price is None else [usd_text(price.input), usd_text(price.output)]
        where = "" if backend is None else f"{VENDORS[backend.provider].title}: {backend.model}"
        rows.append([expert.name, expert.category, where, *cost, missing.get(expert.name, "")])
    if as_json:
        keys = ("name", "category", "asked_at", "input_usd", "output_usd", "missing")
        print_json([{key: cell or None for key, cell in zip(keys, row, strict=True)} for row in rows])
        return
    columns = [Column("expert"), Column("category", "end", 8), Column("asked at", "middle"), number("in $/1M")]
    print_list([*columns, number("out $/1M")], [row[:5] for row in rows], wide=wide)
    typer.echo(f"{counted(len(rows), 'expert')}, {len(found)} can be asked; prices of {table.version}")
    if missing:
        typer.echo(unreachable(missing))


@app.command()
def ask(
    expert: Annotated[str, typer.Argument(help="Its name; see `experts ls`.")],
    question: Annotated[str, typer.Argument(help="What to ask it.")],
    catalog: CatalogFile = None,
    prices: PriceTableFile = None,
    as_json: AsJson = False,
) -> None:
    """Ask one expert, and say what the answer cost. Exit code 1 when there is none."""
    import msgspec

    from firstchair.cli.tables import print_json

    answer = asyncio.run(_ask(_catalog(catalog).only([expert]), prices, expert, question))
    if as_json:
        print_json(msgspec.to_builtins(answer))
    elif answer.error is None:
        typer.echo(answer.text)
        typer.echo(_account(answer), err=True)
    if answer.error is not None:
        typer.secho(f"no answer: {answer.error}", err=True, fg="red")
        raise typer.Exit(1)


@app.command()
def describe(
    expert: Annotated[str, typer.Argument(help="Whose description is written.")],
    tasks: Annotated[Path, typer.Argument(help="File of tasks, JSON Lines or Parquet; see `firstchair tasks`.")],
    out: Annotated[Path, typer.Option("--out", help="Catalog to write: the one that was read, with the new entry.")],
    catalog: CatalogFile = None,
    prices: PriceTableFile = None,
    count: Annotated[int, typer.Option("--n", min=1, help="Tasks to ask, evenly over their domains.")] = 40,
    writer: Annotated[
        str, typer.Option(help="Expert that puts the figures into words; the present words stay unless given.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, max=MAX_SEED, help="Which tasks are taken.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Questions under way at once.")] = 8,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Measure an expert on tasks and write its catalog entry: accuracy by domain with intervals, cost, latency.

    What a task has decides who grades it, as in `orchestrate run`; tests of programs run in a sandbox of processes.
    Tasks that only a judge could grade are not asked.
    """
    import msgspec

    from firstchair.cli.tables import counted, print_json
    from firstchair.core.atomic import refuse_existing, write_text
    from firstchair.data.task_sources.task_file import read_tasks
    from firstchair.evals.expert_description import sample_evenly
    from firstchair.rewards.answers.by_domain import needs_judge

    refuse_existing(out, force=force)
    loaded = _catalog(catalog)
    loaded.expert(expert)
    if writer:
        loaded.expert(writer)
    known = list(read_tasks(tasks))
    chosen = sample_evenly([task for task in known if not needs_judge(task)], count, seed)
    judged = sum(map(needs_judge, known))
    if not chosen:
        fix = "give tasks with a gold answer or tests" if judged else "see `firstchair tasks`"
        raise ConfigError(f"{tasks}: no task in it that can be graded without a judge; {fix}")
    if judged:
        typer.echo(f"not asked, only a judge could grade the answer: {counted(judged, 'task')}", err=True)
    written, measured = asyncio.run(_describe(loaded, prices, expert, writer, chosen, concurrency))
    write_text(out, written.to_yaml(), force=force)
    if as_json:
        print_json({**msgspec.to_builtins(measured), "summary": written.expert(expert).summary})
        return
    _print_measurement(measured)
    typer.echo(written.expert(expert).summary)
    typer.echo(f"catalog written to {out}", err=True)


def _catalog(path: Path | None) -> ExpertCatalog:
    import os

    from firstchair.catalog.experts import ExpertCatalog, exclusions

    return ExpertCatalog.load(path, exclusions(os.environ))


async def _ask(catalog: ExpertCatalog, prices: Path | None, expert: str, question: str) -> ExpertAnswer:
    import os

    from firstchair.catalog.prices import PriceTable
    from firstchair.engines.live_experts import LiveExperts

    pool = LiveExperts(catalog, PriceTable.load(prices), os.environ)
    try:
        return await pool.ask(expert, question)
    finally:
        await pool.close()


async def _describe(
    catalog: ExpertCatalog,
    prices: Path | None,
    expert: str,
    by: str,
    tasks: Sequence[OrchestrationTask],
    concurrency: int,
) -> tuple[ExpertCatalog, Measurement]:
    import os
    from contextlib import AsyncExitStack

    from firstchair.catalog.prices import PriceTable
    from firstchair.core.progress import progress
    from firstchair.engines.live_experts import LiveExperts
    from firstchair.evals.expert_description import describe_expert, measure_expert
    from firstchair.evals.expert_description import writer as writer_of
    from firstchair.rewards.answers.by_domain import AnswerGrading, open_answer_grader
    from firstchair.sandbox.spec import ProcessSpec, open_sandbox

    async with AsyncExitStack() as stack:
        sandbox = open_sandbox(ProcessSpec()) if any(task.tests for task in tasks) else None
        grader = open_answer_grader(AnswerGrading(), sandbox)
        stack.push_async_callback(grader.close)
        pool = LiveExperts(catalog.only({expert, by} - {""}), PriceTable.load(prices), os.environ)
        stack.push_async_callback(pool.close)
        with progress(f"ask {expert}", len(tasks), unit="tasks") as bar:
            measured = await measure_expert(pool, expert, tasks, grader.grade, concurrency=concurrency, progress=bar)
        write = writer_of(pool, by) if by else None
        entry = await describe_expert(catalog.expert(expert), measured, write)
        return catalog.with_expert(entry), measured


def _account(answer: ExpertAnswer) -> str:
    from firstchair.catalog.price_update import usd_text

    usage = answer.usage
    cost = "no known price" if answer.cost_nano is None else f"${usd_text(answer.cost_nano)}"
    read = usage.input + usage.cache_read + usage.cache_write_5m + usage.cache_write_1h
    tries = "" if answer.tries == 1 else f", {answer.tries} tries"
    cut = ", cut at its token limit" if answer.cut else ""
    tokens = f"{read:,} tokens in, {usage.output:,} out"
    return f"{answer.served_model}: {cost}, {tokens}, {answer.latency_s:.1f} s{tries}{cut}"


def _print_measurement(measured: Measurement) -> None:
    from rich.console import Console

    from firstchair.cli.tables import table
    from firstchair.evals.expert_description import usd

    shown = table("domain", "#right", "#95% interval", "#n", "#an answer costs", "#s", "#failed", "#ungraded")
    for one in measured.domains:
        rate = one.accuracy
        known = rate.value is not None
        shown.add_row(
            one.domain,
            f"{rate.value:.1%}" if known else "–",
            f"{rate.low:.1%} to {rate.high:.1%}" if known else "–",
            str(rate.n),
            "–" if one.cost_nano is None else usd(one.cost_nano),
            "–" if one.latency_s is None else f"{one.latency_s:.1f}",
            str(one.failed),
            str(one.ungraded),
        )
    Console().print(shown)
