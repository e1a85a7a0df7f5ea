"""How the outcomes of ``firstchair tasks`` are printed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from firstchair.cli.tables import Column, counted, print_json, print_list, table
from firstchair.data.splits import SplitManifest
from firstchair.data.task_sources.pull import PullReport
from firstchair.data.task_sources.task_file import TaskCounts
from firstchair.rollout.orchestration.task import OrchestrationTask


def print_import(out: Path, report: PullReport, *, as_json: bool) -> None:
    """What was written, and what was left out."""
    total = sum(report.tasks.values())
    if as_json:
        print_json(
            {
                "path": str(out),
                "tasks": total,
                "by": [
                    {"dataset": dataset, "domain": domain, "tasks": count}
                    for (dataset, domain), count in sorted(report.tasks.items())
                ],
                "left_out": [
                    {"reason": reason, "rows": count, "first": report.first[reason]}
                    for reason, count in report.left_out.most_common()
                ],
                "short": report.short,
                "avoided": [msgspec.to_builtins(pair) for pair in report.avoided],
            }
        )
        return
    made = table("data set", "domain", "#tasks")
    for (dataset, domain), count in sorted(report.tasks.items()):
        made.add_row(Text(dataset), Text(domain), f"{count:,}")
    Console().print(made)
    for reason, count in report.left_out.most_common():
        typer.echo(f"left out, {reason}: {count:,} (first {report.first[reason]})")
    for domain, count in report.short.items():
        typer.echo(f"short of {domain}: {counted(count, 'task')}")
    typer.echo(f"{out}: {counted(total, 'task')}")


def print_split(out: Path, manifest: SplitManifest, *, as_json: bool) -> None:
    """The parts of a split."""
    if as_json:
        print_json({**msgspec.to_builtins(manifest), "path": str(out)})
        return
    made = table("part", "#tasks", "domains")
    for part, counts in manifest.counts.items():
        domains = ", ".join(f"{name}: {count:,}" for name, count in counts["strata"].items())
        made.add_row(Text(part), f"{counts['sessions']:,}", Text(domains))
    Console().print(made)
    typer.echo(f"{out}: use a part as --split {out}/{next(iter(manifest.counts))}")


def print_tasks(tasks: Sequence[OrchestrationTask], *, wide: bool, as_json: bool) -> None:
    """One line a task."""
    if as_json:
        print_json([msgspec.to_builtins(task) for task in tasks])
        return
    columns = [
        Column("task", "middle", least=16),
        Column("domain"),
        Column("gold answer", "end", least=12),
        Column("problem", "end", least=20),
    ]
    rows = [(task.task_id, task.domain, task.gold_answer or "–", task.problem) for task in tasks]
    print_list(columns, rows, wide=wide)


def print_task(task: OrchestrationTask, *, as_json: bool) -> None:
    """Everything of one task."""
    if as_json:
        print_json(msgspec.to_builtins(task))
        return
    for name, value in msgspec.to_builtins(task).items():
        if isinstance(value, list):
            typer.echo(f"{name}:")
            for item in value:
                typer.echo(f"  - {item}")
        else:
            typer.echo(f"{name}: {value}")


def print_stats(counts: TaskCounts, *, as_json: bool) -> None:
    """Tasks by data set and domain, and who grades them."""
    if as_json:
        print_json(msgspec.to_builtins(counts))
        return
    made = table("data set", "domain", "graded by", "#tasks")
    for row in counts.rows:
        made.add_row(Text(row.dataset), Text(row.domain), row.way, f"{row.tasks:,}")
    Console().print(made)
    typer.echo(counted(counts.tasks, "task"))
