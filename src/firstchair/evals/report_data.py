"""What a report says, as data: everything in the page and in ``report.json`` is computed here from the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from firstchair.core.clock import utc_now
from firstchair.data.golden.golden_set import GoldenSet
from firstchair.evals.compare import Comparison, compare
from firstchair.evals.failures import Cluster, failure_map
from firstchair.evals.judge import read_judged
from firstchair.evals.labels import labels_of
from firstchair.evals.metrics import (
    METRICS,
    Cost,
    Excluded,
    Prices,
    Slice,
    cost,
    excluded,
    measure,
    standard_slices,
    undecided,
    verdict_counts,
)
from firstchair.evals.routing import Confusion, ToolRow, confusion, routing_table
from firstchair.evals.run_record import DecisionRow, Run, RunRecord
from firstchair.evals.stats import Rate
from firstchair.evals.true_level import TrueLevel, true_level


class MetricRow(msgspec.Struct, frozen=True):
    """A metric with its words."""

    name: str
    title: str
    meaning: str
    better: str
    rate: Rate


class Completion(msgspec.Struct, frozen=True):
    """End-task completion of live episodes, measured elsewhere and shown beside the replay."""

    before: Rate | None
    after: Rate
    errors: dict[str, int] = {}
    """Reason → episodes that failed by no fault of the model, and are in no rate."""
    errors_before: dict[str, int] = {}


class ReportData(msgspec.Struct, frozen=True, kw_only=True):
    """``report.json``."""

    schema_version: str = "1.0"
    generated_at: str
    run: RunRecord
    baseline: RunRecord | None
    sessions: int
    strict: Rate
    lenient: Rate
    true: TrueLevel
    true_before: TrueLevel | None
    verdicts: dict[str, dict[str, int]]
    """Level → verdict → count."""
    verdicts_before: dict[str, dict[str, int]] | None
    undecided: dict[str, dict[str, int]]
    """Level → verdict → how many of them code cannot call wrong."""
    undecided_before: dict[str, dict[str, int]] | None
    metrics: tuple[MetricRow, ...]
    comparison: Comparison | None
    tools: tuple[ToolRow, ...]
    confusion: Confusion
    confusion_before: Confusion | None
    failures: dict[str, tuple[Cluster, ...]]
    """Level → clusters, largest first."""
    slices: dict[str, tuple[Slice, ...]]
    excluded: tuple[Excluded, ...]
    cost: Cost
    cost_before: Cost | None
    completion: Completion | None
    caveats: tuple[str, ...]
    """What the numbers do not mean."""


def report_data(
    run: Run,
    golden: GoldenSet,
    baseline: Run | None = None,
    *,
    allow_serving: bool = False,
    prices: Prices | None = None,
    completion: Completion | None = None,
    generated_at: str | None = None,
) -> ReportData:
    """Compute a report. Raises ``ConfigError`` when ``baseline`` cannot be compared with ``run``."""
    seed, rows, kinds = run.record.seed, run.rows, golden.kinds
    rates = measure(rows, seed=seed)
    comparison = compare(baseline, run, kinds, seed=seed, allow_serving=allow_serving) if baseline else None
    truth = truth_of(run)
    return ReportData(
        generated_at=generated_at or utc_now(),
        run=run.record,
        baseline=baseline.record if baseline else None,
        sessions=len({row.session_id for row in rows}),
        strict=rates["strict_pass"],
        lenient=rates["lenient_pass"],
        true=truth,
        true_before=truth_of(baseline) if baseline else None,
        verdicts=_verdicts(rows),
        verdicts_before=_verdicts(baseline.rows) if baseline else None,
        undecided=_undecided(run),
        undecided_before=_undecided(baseline) if baseline else None,
        metrics=_metric_rows(rates),
        comparison=comparison,
        tools=tuple(routing_table(rows, kinds, seed=seed)),
        confusion=confusion(rows),
        confusion_before=confusion(baseline.rows) if baseline else None,
        failures={"strict": tuple(failure_map(rows, "strict")), "lenient": tuple(failure_map(rows, "lenient"))},
        slices={name: tuple(parts) for name, parts in standard_slices(rows, kinds, seed=seed).items()},
        excluded=tuple(excluded(rows)),
        cost=cost(rows, prices),
        cost_before=cost(baseline.rows, prices) if baseline else None,
        completion=completion,
        caveats=tuple(_caveats(run, rates, truth, comparison, completion)),
    )


def _metric_rows(rates: Mapping[str, Rate]) -> tuple[MetricRow, ...]:
    return tuple(MetricRow(row.name, row.title, row.meaning, row.better, rates[row.name]) for row in METRICS)


def truth_of(run: Run) -> TrueLevel:
    """The true level of a run from the labels and judgements in its directory."""
    judged = {dp_id: word for dp_id, (_, word) in read_judged(run.path).items()}
    return true_level(run.rows, labels_of(run), judged, seed=run.record.seed)


def _verdicts(rows: Sequence[DecisionRow]) -> dict[str, dict[str, int]]:
    return {
        "strict": {str(verdict): count for verdict, count in verdict_counts(rows, "strict").items()},
        "lenient": {str(verdict): count for verdict, count in verdict_counts(rows, "lenient").items()},
    }


def _undecided(run: Run) -> dict[str, dict[str, int]]:
    return _verdicts([row for row in run.rows if undecided(row)])


def _caveats(
    run: Run,
    rates: Mapping[str, Rate],
    truth: TrueLevel,
    comparison: Comparison | None,
    completion: Completion | None,
) -> list[str]:
    """The limits that apply to this run, the general ones first."""
    warmth = run.record.sampling.temperature
    said = [
        "Each decision is scored on the recorded history, so one mistake never spoils the next decision. Whole tasks "
        "succeed less often than single steps"
        + (": see the live episodes." if completion else ", and this report does not measure them."),
        "A final reply counts as right when the candidate stops where gold stops. What it says is not graded.",
        f"Each decision was sampled once, {f'at temperature {warmth}' if warmth else 'greedily'}. Intervals are 95% "
        "and resample sessions: they say how much these sessions vary, and nothing about traffic that the golden set "
        "does not hold.",
    ]
    unverified = sum(1 for row in run.rows if not row.verified)
    if unverified:
        said.append(
            f"The gold action of {unverified:,} decisions is what was recorded; nobody verified it. A mismatch there "
            "may be a valid alternative, and a pass is imitation, not proof of being right."
        )
    if truth.undecided:
        said.append(
            f"Code alone cannot call {truth.undecided:,} of the mismatches wrong. The lenient rate counts them as "
            f"failures. True level: {truth.why}."
        )
    if truth.handpicked:
        said.append(f"{truth.handpicked:,} labels were picked by hand, not at random; they enter no estimate.")
    coverage, errors = rates["coverage"], rates["errors"]
    if coverage.value is not None and coverage.value < 1:
        said.append(
            "Decisions whose prompt does not fit the context window were not asked; they are listed, not scored."
        )
    if errors.value:
        said.append("Decisions where the engine failed enter no rate; if they are the hard ones, the rates flatter.")
    small = [tool for tool in routing_table(run.rows) if 0 < tool.support < 10]
    if small:
        names = ", ".join(tool.tool for tool in small[:6]) + (" and others" if len(small) > 6 else "")
        said.append(f"Fewer than 10 decisions: {names}. Read their intervals, not their rates.")
    if comparison and comparison.serving_differs:
        said.append("The two runs were served differently: " + "; ".join(comparison.serving_differs) + ".")
    return said


def to_json(data: ReportData) -> dict[str, Any]:
    """The report as plain JSON values."""
    plain: dict[str, Any] = msgspec.to_builtins(data)
    return plain
