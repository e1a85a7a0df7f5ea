"""How tasks, recordings and episodes of the desk are printed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from firstchair.cli.tables import Column, number, print_list, table
from firstchair.core.jsontext import dumps
from firstchair.evals.completion import completion
from firstchair.evals.stats import Rate
from firstchair.rollout.desk.review import ReviewCounts
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.episodes import Episode


def print_tasks(tasks: Sequence[DeskTask], *, wide: bool) -> None:
    """One line a task."""
    columns = [
        Column("task"),
        Column("policy rows", "end", least=24),
        number("turns"),
        Column("the user begins with", "end", least=24),
    ]
    rows = [(task.task_id, ", ".join(task.rows), str(len(task.turns)), task.turns[0].user) for task in tasks]
    print_list(columns, rows, wide=wide)


def print_recorded(counts: Mapping[str, int], where: str) -> None:
    """What a recording brought."""
    made = table(*(f"#{name}" for name in counts))
    made.add_row(*(f"{count:,}" for count in counts.values()))
    Console().print(made)
    typer.echo(f"recorded to {where}")


def print_review(out: Path, counts: ReviewCounts, *, as_json: bool) -> None:
    """What a review found."""
    found = dict(sorted(counts.dimensions.items(), key=lambda item: -item[1]))
    if as_json:
        typer.echo(dumps({"path": str(out), "sessions": counts.sessions, "corrections": found}))
        return
    words = ", ".join(f"{name} {count:,}" for name, count in found.items())
    typer.echo(
        f"{out}: {sum(found.values()):,} corrections of {counts.sessions:,} sessions" + f" ({words})" * bool(found)
    )


def print_completion(tasks: Sequence[DeskTask], episodes: Sequence[Episode], where: str, *, as_json: bool) -> None:
    """How many tasks were completed, over all and by row of the policy."""
    found = completion(episodes, {task.task_id: task.rows for task in tasks})
    if as_json:
        typer.echo(msgspec.json.encode({**msgspec.structs.asdict(found), "where": where}).decode())
        return
    made = table("policy row", "#completed", "#95% interval", "#episodes")
    for row, share in {"all": found.completed, **found.by_row}.items():
        made.add_row(Text(row), *_cells(share))
    Console().print(made)
    typer.echo(f"malformed actions {_cells(found.malformed)[0]}")
    ends = ", ".join(f"{end} {count}" for end, count in sorted(found.ends.items()))
    typer.echo(f"ended by: {ends}" + (f"\nsessions: {where}" if where else ""))


def _cells(share: Rate) -> list[str]:
    if share.value is None or share.low is None or share.high is None:
        return ["-", "-", "0"]
    return [f"{share.value:.1%}", f"{share.low:.1%} to {share.high:.1%}", f"{share.n:,}"]


def print_episode(episode: Episode, rows: Sequence[str]) -> None:
    """One episode, message by message, and how it ended."""
    typer.echo(f"{episode.session.session_id}  rows: {', '.join(rows)}")
    for message in episode.session.messages:
        if message.thinking:
            typer.echo(f"{message.role} thinks: {message.thinking}")
        if message.text or not message.tool_calls:
            typer.echo(f"{message.role}{' (error)' if message.is_error else ''}: {message.text}")
        for call in message.tool_calls:
            typer.echo(f"{message.role} calls: {call.name} {call.arguments}")
    if episode.outcome is not None:
        failed = [check.name for check in episode.outcome.checks if not check.ok]
        broken = ", ".join(episode.outcome.violations) or "none"
        typer.echo(f"completed: {episode.completed}; failed checks: {failed or 'none'}; policy rows broken: {broken}")
