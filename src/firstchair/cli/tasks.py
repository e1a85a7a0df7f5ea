"""``firstchair tasks``: problems with known answers, for an orchestrator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from firstchair.cli.session_options import AsJson, BadLines, Force, Limit, SkipBad, Split, Wide, split_ids

app = typer.Typer(no_args_is_help=True, help="Problems with known answers, for an orchestrator of models and tools.")

Tasks = Annotated[Path, typer.Argument(help="File of tasks, JSON Lines or Parquet.")]
Domains = Annotated[
    list[str] | None,
    typer.Option("--domain", help="Only tasks of this domain (see `tasks stats`); may be given several times."),
]


@app.command("import")
def import_command(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="general_thought, open_thoughts3 or tool_scale from the Hugging Face hub; NAME=PATH for local files "
            "with the same fields; PATH for tasks of your own.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="JSONL file of tasks to write.")],
    domains: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            help="Only tasks of this domain: math, code, science, medical, chat, misc or tool_use of the named "
            "sources, any of tasks of your own; may be given several times.",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most this many tasks.")] = None,
    balance: Annotated[
        bool, typer.Option("--balance", help="An equal share of --limit for each domain; nothing fills a gap.")
    ] = False,
    shard: Annotated[
        str, typer.Option(metavar="K/N", help="Every N-th task of each domain, from the K-th on.")
    ] = "1/1",
    avoid: Annotated[
        str,
        typer.Option(
            metavar="SET", help="Leave out tasks that resemble one of this file of tasks, golden set or export."
        ),
    ] = "",
    threshold: Annotated[float, typer.Option(help="Similarity from which --avoid leaves a task out.")] = 0.6,
    skip_bad: SkipBad = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Import tasks: problems with a reference answer, without duplicates. Says what was left out and why."""
    from firstchair.cli.tasks_view import print_import
    from firstchair.data.orchestration.rejection import Shard
    from firstchair.data.task_sources.importing import import_tasks
    from firstchair.data.task_sources.pull import PullOptions

    bad = BadLines(skip_bad, force=force)
    options = PullOptions(tuple(domains or ()), limit, balance, Shard.parse(shard))
    report = import_tasks(sources, out, options, skip=bad.of(out), avoid=avoid, threshold=threshold, force=force)
    bad.write()
    print_import(out, report, as_json=as_json)


@app.command("split")
def split_command(
    tasks: Tasks,
    out: Annotated[Path, typer.Option("--out", help="Directory to write; it must not exist.")],
    holdout: Annotated[float, typer.Option(help="The share that no training may see.")] = 0.15,
    overfit: Annotated[int, typer.Option(min=1, help="Tasks of train that also make the part `overfit`.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Equal seeds give equal splits.")] = 42,
    threshold: Annotated[float, typer.Option(help="Similarity from which problems stay in one part.")] = 0.6,
    as_json: AsJson = False,
) -> None:
    """Split tasks into train and holdout, each domain alike; problems that resemble each other stay together."""
    from firstchair.cli.tasks_view import print_split
    from firstchair.data.task_sources.splitting import write_task_split

    manifest = write_task_split(tasks, out, seed=seed, holdout=holdout, overfit=overfit, threshold=threshold)
    print_split(out, manifest, as_json=as_json)


@app.command()
def show(
    tasks: Tasks,
    task_id: Annotated[str, typer.Option("--id", help="Show this task in full.")] = "",
    domains: Domains = None,
    split: Split = None,
    limit: Limit = 20,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List tasks, or show one in full."""
    from firstchair.cli.tasks_view import print_task, print_tasks
    from firstchair.data.task_sources.task_file import chosen_tasks

    ids = frozenset({task_id}) if task_id else split_ids(split)
    found = chosen_tasks(tasks, ids, domains or (), limit)
    if task_id:
        print_task(found[0], as_json=as_json)
    else:
        print_tasks(found, wide=wide, as_json=as_json)


@app.command()
def stats(
    tasks: Tasks,
    domains: Domains = None,
    split: Split = None,
    as_json: AsJson = False,
) -> None:
    """Count tasks by data set and domain, and by who can grade them."""
    from firstchair.cli.tasks_view import print_stats
    from firstchair.data.task_sources.task_file import chosen_tasks, count_tasks

    print_stats(count_tasks(chosen_tasks(tasks, split_ids(split), domains or ())), as_json=as_json)
