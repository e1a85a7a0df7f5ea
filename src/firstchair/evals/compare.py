"""Two runs side by side, decision by decision. Only what is comparable is compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from firstchair.catalog.verdict import Verdict
from firstchair.core.errors import ConfigError
from firstchair.evals.metrics import METRICS, Level, Metric
from firstchair.evals.routing import gold_routes, made_routes, routing_table
from firstchair.evals.run_record import DecisionRow, Run, RunRecord
from firstchair.evals.stats import Difference, Rate, mcnemar_p, paired_difference, rate

SERVING = ("engine", "template_hash", "tool_format", "dtype", "context_window")
"""Fields of a candidate that say how it was served; which weights it has is what may differ."""


class Flip(msgspec.Struct, frozen=True):
    """A decision that passed in one run alone."""

    dp_id: str
    before: str
    after: str


class Flips(msgspec.Struct, frozen=True):
    """What changed at one level."""

    fixed: tuple[Flip, ...]
    broken: tuple[Flip, ...]
    p: float
    """Exact McNemar."""


class Change(msgspec.Struct, frozen=True):
    """One rate before and after, and the paired difference."""

    before: Rate
    after: Rate
    difference: Difference


class ToolChange(msgspec.Struct, frozen=True):
    """One route before and after: how often it is taken where gold takes it, and how often that passes leniently."""

    tool: str
    kind: str
    support: int
    recall: Change
    lenient: Change


class Comparison(msgspec.Struct, frozen=True):
    """``after`` against ``before`` on the decisions that both answered."""

    before: str
    after: str
    paired: int
    left_out: int
    """Decisions without an action in at least one run."""
    metrics: dict[str, Change]
    tools: tuple[ToolChange, ...]
    strict: Flips
    lenient: Flips
    serving_differs: tuple[str, ...]
    """Only when the caller allowed it."""


def differences(before: RunRecord, after: RunRecord) -> dict[str, list[str]]:
    """What speaks against comparing: ``golden hash``, ``decisions``, ``serving config``, ``scorer`` → details."""
    found: dict[str, list[str]] = {}
    if before.golden.set_sha256 != after.golden.set_sha256:
        found["golden hash"] = [_pair("set_sha256", before.golden.set_sha256[:12], after.golden.set_sha256[:12])]
    elif before.decisions_sha256 != after.decisions_sha256:
        found["decisions"] = [_pair("number of decisions", before.golden.decisions, after.golden.decisions)]
    if serving := serving_differences(before, after):
        found["serving config"] = serving
    if before.scorer_version != after.scorer_version:
        found["scorer"] = [_pair("scorer_version", before.scorer_version, after.scorer_version)]
    return found


def serving_differences(before: RunRecord, after: RunRecord) -> list[str]:
    """Fields of the serving config in which two runs differ."""
    left, right = _serving(before), _serving(after)
    return [_pair(name, left[name], right[name]) for name in left if left[name] != right[name]]


def _serving(record: RunRecord) -> dict[str, Any]:
    candidate = {name: getattr(record.candidate, name) for name in SERVING}
    sampling = {f"sampling.{name}": value for name, value in msgspec.to_builtins(record.sampling).items()}
    return {**candidate, **sampling, "constrain": record.constrain, "salvage": record.salvage}


def _pair(name: str, before: Any, after: Any) -> str:
    return f"{name}: {before!r} before, {after!r} after"


def refuse_unlike(before: Run, after: Run, *, allow_serving: bool = False) -> None:
    """Raise ``ConfigError`` naming what differs when two runs cannot be compared."""
    found = differences(before.record, after.record)
    if allow_serving:
        found.pop("serving config", None)
    if found:
        lines = [f"{before.path} and {after.path} cannot be compared; they differ in:"]
        lines += [f"  {name}: {'; '.join(details)}" for name, details in found.items()]
        lines.append(f"  fix: {_fix(found)}")
        raise ConfigError("\n".join(lines))


def _fix(found: Mapping[str, object]) -> str:
    """What makes the two comparable; a replay mends everything, so where one is needed it is named once."""
    if "decisions" in found:
        also = (
            ", and with the same engine and sampling (or pass --across-serving)" if "serving config" in found else ""
        )
        return f"replay both candidates on the same decisions (without --limit){also}"
    fixes = []
    if "golden hash" in found or "scorer" in found:
        fixes.append(
            "score both again with `firstchair eval score RUN --golden SET --out NEW`, or replay both on one set"
        )
    if "serving config" in found:
        fixes.append("replay with the same engine and sampling, or pass --across-serving to compare anyway")
    return "; ".join(fixes)


def compare(
    before: Run,
    after: Run,
    kinds: Mapping[str, str] | None = None,
    *,
    seed: int = 0,
    allow_serving: bool = False,
) -> Comparison:
    """Compare two finished runs. Raises ``ConfigError`` when they are not comparable (``refuse_unlike``)."""
    refuse_unlike(before, after, allow_serving=allow_serving)
    earlier = {row.dp_id: row for row in before.rows}
    pairs = [(earlier[row.dp_id], row) for row in after.rows]
    both = [(left, right) for left, right in pairs if left.obtained and right.obtained]
    left, right = [pair[0] for pair in both], [pair[1] for pair in both]
    kinds = kinds or {}
    return Comparison(
        before=before.record.candidate.name,
        after=after.record.candidate.name,
        paired=len(both),
        left_out=len(pairs) - len(both),
        metrics={metric.name: _change(metric, left, right, seed) for metric in _PAIRED},
        tools=tuple(_tool_changes(left, right, kinds, seed)),
        strict=_flips(both, "strict"),
        lenient=_flips(both, "lenient"),
        serving_differs=tuple(serving_differences(before.record, after.record)),
    )


_PAIRED = tuple(metric for metric in METRICS if metric.name not in ("coverage", "errors"))


def _change(metric: Metric, left: Sequence[DecisionRow], right: Sequence[DecisionRow], seed: int) -> Change:
    return _change_of(metric.columns(left), metric.columns(right), [row.session_id for row in left], seed)


Columns = tuple[list[float], list[float]]


def _change_of(before: Columns, after: Columns, sessions: Sequence[str], seed: int) -> Change:
    return Change(
        rate(*before, sessions, seed=seed),
        rate(*after, sessions, seed=seed),
        paired_difference(before, after, sessions, seed=seed),
    )


def _tool_changes(
    left: Sequence[DecisionRow], right: Sequence[DecisionRow], kinds: Mapping[str, str], seed: int
) -> list[ToolChange]:
    sessions = [row.session_id for row in left]
    changes: list[ToolChange] = []
    for tool in (row.tool for row in routing_table(right, kinds, seed=seed) if row.support):
        wanted = [float(tool in gold_routes(row)) for row in left]
        recall, lenient = (
            [
                ([float(want and hit(row, tool)) for row, want in zip(rows, wanted, strict=True)], wanted)
                for rows in (left, right)
            ]
            for hit in (_takes, _passes)
        )
        changes.append(
            ToolChange(
                tool=tool,
                kind=kinds.get(tool, ""),
                support=round(sum(wanted)),
                recall=_change_of(recall[0], recall[1], sessions, seed),
                lenient=_change_of(lenient[0], lenient[1], sessions, seed),
            )
        )
    return changes


def _takes(row: DecisionRow, tool: str) -> bool:
    return tool in made_routes(row)


def _passes(row: DecisionRow, tool: str) -> bool:
    return row.scored.lenient is Verdict.PASS


def _flips(pairs: Sequence[tuple[DecisionRow, DecisionRow]], level: Level) -> Flips:
    fixed: list[Flip] = []
    broken: list[Flip] = []
    for left, right in pairs:
        before, after = getattr(left.scored, level), getattr(right.scored, level)
        if (before is Verdict.PASS) != (after is Verdict.PASS):
            (fixed if after is Verdict.PASS else broken).append(Flip(right.dp_id, str(before), str(after)))
    return Flips(tuple(fixed), tuple(broken), mcnemar_p(len(fixed), len(broken)))
