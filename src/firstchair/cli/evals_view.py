"""How runs and comparisons are printed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from firstchair.cli.tables import Column, number, print_json, print_list, table
from firstchair.core.errors import RunFailed
from firstchair.evals.compare import Change, Comparison, Flips
from firstchair.evals.metrics import SHOWN, excluded, measure, unanswered, verdict_counts
from firstchair.evals.report import interval, percent, points
from firstchair.evals.report_data import truth_of
from firstchair.evals.run_record import Run, RunRecord
from firstchair.evals.stats import Rate


def print_run(run: Run, *, as_json: bool) -> None:
    """The metrics of one run."""
    rates, truth = measure(run.rows, seed=run.record.seed), truth_of(run)
    if as_json:
        print_json(
            {
                "path": str(run.path),
                "run": msgspec.to_builtins(run.record),
                "metrics": _plain(rates),
                "true": msgspec.to_builtins(truth),
                "verdicts": {
                    "strict": {str(key): count for key, count in verdict_counts(run.rows, "strict").items()},
                    "lenient": {str(key): count for key, count in verdict_counts(run.rows, "lenient").items()},
                },
                "excluded": [{"reason": part.reason, "count": part.count} for part in excluded(run.rows)],
            }
        )
        return
    record = run.record
    made = table("metric", "#rate", "#95%", "#n", title=f"{record.candidate.name} on {record.golden.name}")
    for metric in SHOWN:
        rate = rates[metric.name]
        made.add_row(metric.title, percent(rate.value), interval(rate), f"{rate.n:,}")
        if metric.name == "lenient_pass":
            shown = truth.rate
            cells = (percent(shown.value), interval(shown), f"{shown.n:,}") if shown else ("–", "", "")
            made.add_row("Pass, true", *cells)
    console = Console()
    console.print(made)
    console.print(f"True level: {truth.why}.", highlight=False)
    for part in excluded(run.rows):
        more = ", …" if part.count > 5 else ""
        first = f"; first: {part.first}" if part.first else ""
        console.print(
            f"left out: {part.count} ({part.reason}): {', '.join(part.dp_ids[:5])}{more}{first}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    for note in _notes(record):
        console.print(f"note: {note}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    console.print(f"run directory: {run.path}", highlight=False, soft_wrap=True)


def _notes(record: RunRecord) -> Iterator[str]:
    """What a reader of the rates must know about how they came about."""
    candidate = record.candidate
    if record.constrain == "requested":
        yield "calls were not constrained here: the server was asked to (`strict`), and need not obey"
    if candidate.trained_template not in ("", candidate.template_hash):
        yield (
            f"prompts were rendered with template {candidate.template_hash[:12]}…; the model was trained with "
            f"{candidate.trained_template[:12]}…"
        )


def refuse_unanswered(run: Run) -> None:
    """Raise ``RunFailed`` with the first reason of each kind when the engine failed at some decisions."""
    kinds = unanswered(run.rows)
    if not kinds:
        return
    total = sum(kind.count for kind in kinds)
    reasons = [
        (f"{kind.count} × " if len(kinds) > 1 else "") + f"{kind.reason}: {kind.first or 'no reason given'}"
        for kind in kinds
    ]
    raise RunFailed(
        f"{total:,} of {len(run.rows):,} decisions got no answer: {'; '.join(reasons)}; "
        "repeat with --retry-errors once it is fixed"
    )


def _plain(rates: Mapping[str, Rate]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(rate) for name, rate in rates.items()}


def print_comparison(found: Comparison, *, as_json: bool) -> None:
    """Before, after and the paired difference of every metric and route, and the flips."""
    if as_json:
        print_json(msgspec.to_builtins(found))
        return
    console = Console()
    titles = {metric.name: metric.title for metric in SHOWN}
    numbers = [number(name) for name in ("before", "after", "difference", "95%")]
    rows = [[titles[name], *_change(change)] for name, change in found.metrics.items() if name in titles]
    print_list([Column("metric"), *numbers], rows, title=f"{found.before} → {found.after}")
    routes = [
        [f"{tool.tool} ({tool.kind})" if tool.kind else tool.tool, f"{tool.support:,}", *_change(tool.lenient)]
        for tool in found.tools
    ]
    print_list([Column("route", "end"), number("n"), *numbers], routes, title="Pass (lenient) by gold's route")
    console.print(f"{found.paired:,} decisions paired, {found.left_out:,} left out", highlight=False)
    for name in found.serving_differs:
        console.print(f"served differently: {name}", style="yellow", highlight=False)
    _print_flips(console, "strict", found.strict)
    _print_flips(console, "lenient", found.lenient)


def _change(change: Change) -> list[str]:
    return [
        percent(change.before.value),
        percent(change.after.value),
        points(change.difference.value),
        interval(change.difference),
    ]


def _print_flips(console: Console, level: str, flips: Flips) -> None:
    console.print(
        f"{level}: {len(flips.fixed)} fixed, {len(flips.broken)} broken, McNemar p = {flips.p:.2g}", highlight=False
    )
    for flip in flips.broken[:20]:
        console.print(f"  broken {flip.dp_id}: {flip.before} → {flip.after}", highlight=False, soft_wrap=True)


def print_written(out: Path, beside: Path, size: int) -> None:
    """Where a report lies."""
    console = Console()
    console.print(f"{out} ({size / 1e6:.1f} MB) and {beside}", highlight=False, soft_wrap=True)
