"""``firstchair synth``: synthetic domains and their tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstchair.cli.session_options import AsJson, Wide
from firstchair.core.errors import ConfigError

if TYPE_CHECKING:
    from firstchair.rollout.synthetic.checking import DomainCheck
    from firstchair.rollout.synthetic.domain import Domain
    from firstchair.rollout.synthetic.filters import Solver, TaskVerdict
    from firstchair.rollout.synthetic.making import MakeReport

app = typer.Typer(no_args_is_help=True, help="Synthetic domains: list, check, let a model write new ones.")


class Writer(StrEnum):
    """Who writes a domain."""

    openai = "openai"
    anthropic = "anthropic"
    scripted = "scripted"


class Dialect(StrEnum):
    """What a model's server speaks."""

    openai = "openai"
    anthropic = "anthropic"


Names = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="DOMAIN", help="Shipped ones by name, others by the path of their .json; all shipped unless given."
    ),
]
SolverUrl = Annotated[
    str, typer.Option("--solver-base-url", help="Server of a model that must fail and solve; OpenAI's with /v1.")
]
SolverModel = Annotated[str, typer.Option("--solver-model", help="Its name on that server.")]
SolverDialect = Annotated[Dialect, typer.Option("--solver-dialect", help="What that server speaks.")]
SolverKey = Annotated[str, typer.Option("--solver-api-key-env", help="Environment variable that holds its key.")]
Trials = Annotated[
    int, typer.Option(min=2, max=1000, help="Episodes of the solver a task: one must fail, one must not.")
]


@app.command("ls")
def ls(names: Names = None, wide: Wide = False, as_json: AsJson = False) -> None:
    """List domains: tables, rows, tools, and tasks by depth."""
    from firstchair.cli.tables import Column, number, print_json, print_list
    from firstchair.rollout.synthetic.shipped import load_domains

    domains = load_domains(names or ())
    counts = [
        {
            "tables": len(domain.tables),
            "rows": sum(map(len, domain.rows.values())),
            "tools": len(domain.tools),
            "tasks": len(domain.tasks),
            **{depth: sum(task.depth == depth for task in domain.tasks) for depth in _DEPTHS},
        }
        for domain in domains
    ]
    if as_json:
        pairs = zip(domains, counts, strict=True)
        print_json([{"domain": domain.name, "title": domain.title, **count} for domain, count in pairs])
        return
    columns = [Column("domain"), Column("title", cut="end"), *map(number, counts[0])]
    lines = [
        [domain.name, domain.title, *map(str, count.values())] for domain, count in zip(domains, counts, strict=True)
    ]
    print_list(columns, lines, wide=wide)


@app.command()
def check(
    names: Names = None,
    solver_base_url: SolverUrl = "",
    solver_model: SolverModel = "",
    solver_dialect: SolverDialect = Dialect.openai,
    solver_api_key_env: SolverKey = "",
    trials: Trials = 8,
    as_json: AsJson = False,
) -> None:
    """Put domains through every check and filter; with a solver, a model must fail and solve each task too."""
    import msgspec

    from firstchair.cli.tables import print_json
    from firstchair.rollout.synthetic.checking import check_domain
    from firstchair.rollout.synthetic.shipped import load_domains

    flags = _SolverFlags(solver_base_url, solver_model, solver_dialect, solver_api_key_env, trials)
    domains = load_domains(names or ())

    async def whole(domains: list[Domain]) -> list[DomainCheck]:
        async with _solver(flags) as solver:
            return [await check_domain(domain, solver=solver) for domain in domains]

    found = asyncio.run(whole(domains))
    if as_json:
        print_json(msgspec.to_builtins(found))
    else:
        _print_checks(found)
    if any(one.problems or one.kept < one.tasks for one in found):
        raise typer.Exit(1)


@app.command()
def make(
    name: Annotated[str, typer.Argument(help="Of the domain: lower case, digits and underscores.")],
    description: Annotated[str, typer.Option(help="What the business is and does, in a sentence or two.")],
    out: Annotated[Path, typer.Option(help="Directory; a run that broke goes on in it.")],
    model: Annotated[str, typer.Option(help="The author's served name; for scripted, an author.jsonl.")],
    engine: Annotated[
        Writer, typer.Option(help="What the author's server speaks; scripted reads a file.")
    ] = Writer.openai,
    base_url: Annotated[str, typer.Option(help="The author's server; OpenAI's with /v1.")] = "",
    api_key_env: Annotated[str, typer.Option(help="Environment variable that holds the author's key.")] = "",
    tasks: Annotated[int, typer.Option(min=1, max=10_000, help="Tasks to be written, before the filters.")] = 24,
    batch: Annotated[int, typer.Option(min=1, max=100, help="Tasks of one request.")] = 6,
    max_tokens: Annotated[int, typer.Option(min=256, max=1_000_000, help="Longest reply of the author.")] = 16_384,
    temperature: Annotated[float, typer.Option(min=0, max=100, help="Of the author; 0 is greedy.")] = 0.0,
    solver_base_url: SolverUrl = "",
    solver_model: SolverModel = "",
    solver_dialect: SolverDialect = Dialect.openai,
    solver_api_key_env: SolverKey = "",
    trials: Trials = 8,
    as_json: AsJson = False,
) -> None:
    """Let a model write a domain (tables, rows, tools, tasks) and keep the tasks that pass the filters."""
    import msgspec

    from firstchair.cli.tables import print_json
    from firstchair.engines.base import Sampling
    from firstchair.rollout.synthetic.making import DOMAIN, make_domain
    from firstchair.rollout.synthetic.opening import ModelChoice, open_model
    from firstchair.rollout.synthetic.stages import brief_of

    brief = brief_of(name, description, tasks=tasks, batch=batch)
    flags = _SolverFlags(solver_base_url, solver_model, solver_dialect, solver_api_key_env, trials)
    author = open_model(ModelChoice(engine.value, model, base_url, api_key_env))
    sampling = Sampling(max_new_tokens=max_tokens, temperature=temperature)

    async def whole() -> MakeReport:
        try:
            async with _solver(flags) as solver:
                return await make_domain(
                    brief,
                    author,
                    out,
                    solver=solver,
                    sampling=sampling,
                    progress=lambda stage: typer.echo(stage, err=True),
                )
        finally:
            await author.close()

    report = asyncio.run(whole())
    if as_json:
        print_json(msgspec.to_builtins(report))
        return
    _print_verdicts(report.verdicts)
    for stage, why in report.failed_batches.items():
        typer.echo(f"{stage}: not used: {why}")
    typer.echo(f"{out / DOMAIN}: {report.kept} of {report.written} tasks kept")


# What the commands share

_DEPTHS = ("read", "write", "multi", "refusal")


@dataclass(frozen=True)
class _SolverFlags:
    base_url: str
    model: str
    dialect: Dialect
    api_key_env: str
    trials: int


@asynccontextmanager
async def _solver(flags: _SolverFlags) -> AsyncIterator[Solver | None]:
    """The solver for the length of the block; ``None`` when no flag names one."""
    from firstchair.engines.base import Sampling
    from firstchair.rollout.engine_policy import EnginePolicy
    from firstchair.rollout.synthetic.filters import Solver
    from firstchair.rollout.synthetic.opening import ModelChoice, open_model

    if not flags.base_url and not flags.model:
        yield None
        return
    if not flags.model:
        raise ConfigError("--solver-base-url needs --solver-model, the model's name on that server")
    choice = ModelChoice(flags.dialect.value, flags.model, flags.base_url, flags.api_key_env, flag="--solver-")
    engine = open_model(choice)
    try:
        # At temperature 1: trials that are all alike would say nothing.
        sampling = Sampling(max_new_tokens=2048, temperature=1.0)
        yield Solver(EnginePolicy(engine, sampling=sampling, record_tokens=False), trials=flags.trials)
    finally:
        await engine.close()


def _print_checks(found: list[DomainCheck]) -> None:
    from firstchair.cli.tables import Column, number, print_list

    rows = [
        [
            one.domain,
            str(one.tasks),
            str(one.kept),
            str(len(one.problems)),
            ", ".join(f"{k} {v}" for k, v in one.drops.items()),
        ]
        for one in found
    ]
    print_list([Column("domain"), *map(number, ("tasks", "kept", "problems")), Column("dropped", cut="end")], rows)
    for one in found:
        for problem in one.problems:
            typer.echo(f"{one.domain}: {problem}")
        _print_verdicts(one.verdicts)


def _print_verdicts(verdicts: tuple[TaskVerdict, ...]) -> None:
    """One line for each task that was dropped."""
    for verdict in verdicts:
        if not verdict.kept:
            counts = f" ({verdict.solved} of {verdict.trials} solved)" if verdict.solved is not None else ""
            typer.echo(f"{verdict.task_id}: {verdict.drop}{counts}{': ' if verdict.detail else ''}{verdict.detail}")
