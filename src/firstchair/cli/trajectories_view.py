"""How the outcomes of ``firstchair trajectories`` are printed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

import msgspec
import typer

from firstchair.catalog.token_counts import NANO
from firstchair.cli.tables import Column, counted, number, print_json, print_list
from firstchair.data.orchestration.companions import TEXT_LIMITS, Written
from firstchair.data.orchestration.metrics import ToolUse
from firstchair.data.orchestration.stats import Tally, TrajectoryStats
from firstchair.data.orchestration.views import money
from firstchair.data.sft import SftCounts


def print_stats(stats: TrajectoryStats, *, as_json: bool) -> None:
    """Everything that was counted."""
    if as_json:
        print_json(msgspec.to_builtins(stats))
        return
    columns = [Column("domain"), *map(number, _TALLY)]
    tallies = [*stats.domains.items(), ("all", stats.total)]
    print_list(columns, [(name, *(f"{count(tally):,}" for count in _TALLY.values())) for name, tally in tallies])
    if stats.unclean:
        correct = stats.unclean_correct
        rows = [(reason, f"{count:,}", f"{correct.get(reason, 0):,}") for reason, count in stats.unclean.items()]
        print_list([Column("not clean because"), number("trajectories"), number("of them correct")], rows)
    if stats.tools:
        names = ("calls", "failed", "empty", "cost", "tokens in", "out", "s a call")
        print_list([Column("asked"), *map(number, names)], [_use(*item) for item in stats.tools.items()])
    typer.echo(f"ends: {_listed(stats.ends)}")
    if stats.nudges:
        typer.echo(f"nudges: {_listed(stats.nudges)}")
    total = stats.total
    typer.echo(
        f"kept: {total.kept:,}, for {money(stats.kept_cost_nano / NANO)}; correct and clean {total.correct_clean:,}, "
        f"correct and routed {total.correct_routed:,}; {stats.salvaged:,} answers salvaged, "
        f"{stats.parse_failures:,} calls not read, {stats.unpriced:,} of unknown cost"
    )


_TALLY: Mapping[str, Callable[[Tally], int]] = MappingProxyType(
    {
        "tasks": lambda tally: tally.tasks,
        "solved": lambda tally: tally.solved,
        "kept": lambda tally: tally.kept,
        "all": lambda tally: tally.trajectories,
        "correct": lambda tally: tally.correct,
        "wrong": lambda tally: tally.wrong,
        "no grade": lambda tally: tally.ungraded,
        "broken": lambda tally: tally.broken,
        "routed": lambda tally: tally.routed,
        "clean": lambda tally: tally.clean,
    }
)
"""Columns of the table of domains: the first three count tasks, the others trajectories."""


def _use(name: str, use: ToolUse) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (use.calls, use.failed, use.empty))
    tokens = (f"{count:,}" for count in (use.input_tokens, use.output_tokens))
    cost = money(None if use.unpriced else use.cost_nano / NANO)
    return (name, *counts, cost, *tokens, f"{use.latency_s / use.calls:,.2f}")


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def print_serialized(out: Path, counts: SftCounts, left_out: list[str], *, as_json: bool) -> None:
    """What was written, and which trajectories hold nothing to learn."""
    if as_json:
        print_json({**msgspec.to_builtins(counts), "left_out": left_out, "path": str(out)})
        return
    typer.echo(_written(out, counts))
    if left_out:
        named = ", ".join(left_out[:5]) + (" …" if len(left_out) > 5 else "")
        typer.echo(f"left out, nothing to train in them: {len(left_out):,} ({named})")


def print_selected(out: Path, counts: SftCounts, left_out: Mapping[str, int], *, as_json: bool) -> None:
    """What was written, and why the others were not."""
    if as_json:
        print_json({**msgspec.to_builtins(counts), "left_out": dict(left_out), "path": str(out)})
        return
    typer.echo(_written(out, counts))
    for why, count in sorted(left_out.items(), key=lambda item: -item[1]):
        typer.echo(f"left out, {why}: {count:,}")


def _written(out: Path, counts: SftCounts) -> str:
    return (
        f"{out}: {counted(counts.records, 'record')}, {counts.trained_spans:,} of {counts.assistant_spans:,} "
        f"assistant messages trained, {counts.tool_calls:,} tool calls"
    )


def print_view(written: Written, *, as_json: bool) -> None:
    """Where the files are."""
    if as_json:
        paths = {"html": str(written.html), "json": str(written.json), "text": str(written.text)}
        print_json({**paths, "records": written.records, "cut": written.cut})
        return
    typer.echo(f"{written.html}: {counted(written.records, 'record')}; {written.json} and {written.text} beside it")
    if written.cut < TEXT_LIMITS[0]:
        typer.echo(f"texts on the page are cut at {written.cut:,} characters; the other two files are whole")
