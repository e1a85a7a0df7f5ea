"""The six gates: whether a candidate may take a slot. Pure: runs, episodes and calls in, verdicts out.

    candidate run ──► routing, argument_quality, stop          (shares, against bounds)
    + baseline run ─► routing (no strong tool regresses), recovery            (paired by decision)
    episodes of both ─► completion, recovery                                  (paired by task and trial)
    calls of both ────► cost_latency                                          (by session)

Every figure has a 95% interval, and passes when all of that keeps to the bound. Sessions, or tasks, are what varies.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from firstchair.core.errors import ConfigError
from firstchair.evals.gate_checks import (
    Sides,
    answered_check,
    failed_share,
    gate_of,
    left_out,
    metric_rate,
    metric_sides,
    points_check,
    rate_check,
    row_pairs,
    rows_left_out,
    usd_check,
)
from firstchair.evals.gate_record import COMMANDS, GATES, Check, Gate, GateVerdict, Kind
from firstchair.evals.gate_thresholds import RoutingBounds, Thresholds
from firstchair.evals.played import Played, paired
from firstchair.evals.routing import gold_routes, made_routes
from firstchair.evals.run_record import DecisionRow
from firstchair.evals.spending import Call, Spending
from firstchair.evals.stats import FEW_CLUSTERS, NO_RATE, Columns, Difference, careful_rate, paired_difference

SLOW = 0.05
"""The share of calls that may be slower than the 95th percentile that is asked for."""


@dataclass(frozen=True)
class Evidence:
    """What the six gates look at. ``None``: not given."""

    candidate: Sequence[DecisionRow]
    kinds: Mapping[str, str]
    """Tool → ``universal`` or ``convention``."""
    baseline: Sequence[DecisionRow] | None = None
    """Of the same decisions."""
    episodes: Sequence[Played] | None = None
    baseline_episodes: Sequence[Played] | None = None
    spending: Spending | None = None
    baseline_spending: Spending | None = None


@dataclass(frozen=True)
class Need:
    """An input, and how one comes by it."""

    name: str
    """Field of the evidence."""
    words: str
    option: str
    command: str


RUN = Need(
    "baseline", "the baseline's run", "--baseline RUN", "firstchair eval replay GOLDEN --model MODEL --out RUN"
)
_PLAY = "firstchair desk play --model MODEL --n 200 --out DIR"
_EPISODES = (
    Need("episodes", "the candidate's episodes", "--episodes FILE", _PLAY),
    Need("baseline_episodes", "the baseline's episodes", "--baseline-episodes FILE", _PLAY),
)
_SPENDING = tuple(
    Need(
        name,
        "what calls cost",
        "--ledger DATABASE (or --prices FILE, for the tokens of the runs)",
        "firstchair gateway serve, with the candidate as canary or shadow",
    )
    for name in ("spending", "baseline_spending")
)

NEEDS: Mapping[str, tuple[Need, ...]] = MappingProxyType(
    {
        "routing": (RUN,),
        "argument_quality": (),
        "completion": _EPISODES,
        "recovery": (RUN, *_EPISODES),
        "stop": (),
        "cost_latency": _SPENDING,
    }
)
"""What each gate looks at beside the candidate's run."""


def six_gates(
    evidence: Evidence, thresholds: Thresholds, *, seed: int = 0, allow_missing: Collection[str] = ()
) -> tuple[Gate, ...]:
    """All six, in the order of ``GATES``.

    Raises ``ConfigError`` that names every missing input, the gate that needs it and the command that makes it,
    unless that gate is in ``allow_missing``: then it is ``not_run``, which does not pass.
    """
    not_run = missing(evidence, NEEDS, "promotion", allow_missing)
    run = {
        "routing": _routing,
        "argument_quality": _argument_quality,
        "completion": _completion,
        "recovery": _recovery,
        "stop": _stop,
        "cost_latency": _cost_latency,
    }
    return tuple(not_run.get(name) or run[name](evidence, thresholds, seed) for name in GATES["promotion"])


def missing(
    evidence: object, needs: Mapping[str, Sequence[Need]], kind: Kind, allow_missing: Collection[str]
) -> dict[str, Gate]:
    """The gates that lack an input and may. Raises ``ConfigError`` for those that may not, and for unknown names."""
    unknown = sorted(set(allow_missing) - set(GATES[kind]))
    if unknown:
        raise ConfigError(f"--allow-missing {unknown[0]}: expected one of {', '.join(GATES[kind])}")
    lacking = {
        name: absent for name in needs if (absent := [need for need in needs[name] if _is_absent(evidence, need)])
    }
    refused = {name: absent for name, absent in lacking.items() if name not in allow_missing}
    if refused:
        lines = [f"{COMMANDS[kind].removeprefix('firstchair ')}: inputs are missing:"]
        for name, absent in refused.items():
            for need in {need.option: need for need in absent}.values():
                lines.append(f"  {name} needs {need.words}: {need.option}; made by: {need.command}")
        lines.append(
            f"  or leave a gate out with --allow-missing {next(iter(refused))}; the record then does not pass"
        )
        raise ConfigError("\n".join(lines))
    return {
        name: Gate(
            name=name,
            verdict=GateVerdict.NOT_RUN,
            why="without " + " and ".join(dict.fromkeys(need.words for need in absent)),
        )
        for name, absent in lacking.items()
    }


def _is_absent(evidence: object, need: Need) -> bool:
    return getattr(evidence, need.name) is None


# --- on decisions -----------------------------------------------------------------------------------------------


def _routing(evidence: Evidence, thresholds: Thresholds, seed: int) -> Gate:
    rows, before, bounds = evidence.candidate, evidence.baseline or (), thresholds.routing
    pairs = row_pairs(before, rows)
    checks = [
        rate_check("tool_name", metric_rate(rows, "tool_name", seed), ">=", bounds.tool_name),
        *_convention_checks(rows, evidence.kinds, bounds, seed),
        *_regression_checks(pairs, bounds, seed),
        answered_check("candidate", rows, thresholds.max_failed),
        answered_check("baseline", before, thresholds.max_failed),
    ]
    return gate_of("routing", checks, [*rows_left_out("candidate", rows), *rows_left_out("baseline", before)])


def _convention_checks(
    rows: Sequence[DecisionRow], kinds: Mapping[str, str], bounds: RoutingBounds, seed: int
) -> list[Check]:
    """One for each convention tool of the catalog, also where the golden set never asks for it."""
    answered = [row for row in rows if row.obtained]
    sessions = [row.session_id for row in answered]
    tools = sorted(tool for tool, kind in kinds.items() if kind == "convention")
    return [
        rate_check(
            "convention_tool",
            careful_rate(*_recall(answered, tool), sessions, seed=seed),
            ">=",
            bounds.convention_tool,
            of=tool,
        )
        for tool in tools
    ]


def _recall(rows: Sequence[DecisionRow], tool: str) -> Columns:
    """Whether ``tool`` is taken, where gold takes it."""
    wanted = [float(tool in gold_routes(row)) for row in rows]
    return [float(bool(want) and tool in made_routes(row)) for row, want in zip(rows, wanted, strict=True)], wanted


def _regression_checks(
    pairs: Sequence[tuple[DecisionRow, DecisionRow]], bounds: RoutingBounds, seed: int
) -> list[Check]:
    """One for each tool that the baseline took often enough where gold takes it."""
    before, after = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    checks: list[Check] = []
    for tool in sorted({tool for row in after for tool in row.gold_tools}):
        sides = Sides(_recall(before, tool), _recall(after, tool), [row.session_id for row in after])
        was = sum(sides.before[0]) / sum(sides.before[1])
        if was < bounds.strong_tool:
            continue
        note = f"baseline {100 * was:.1f}%"
        checks.append(
            points_check("no_regression", sides, ">=", -bounds.regression_margin, seed=seed, of=tool, note=note)
        )
    return checks


def _argument_quality(evidence: Evidence, thresholds: Thresholds, seed: int) -> Gate:
    found = metric_rate(evidence.candidate, "argument_quality", seed)
    return gate_of(
        "argument_quality", [rate_check("argument_quality", found, ">=", thresholds.argument_quality.quality)]
    )


def _stop(evidence: Evidence, thresholds: Thresholds, seed: int) -> Gate:
    rows, bounds = evidence.candidate, thresholds.stop
    return gate_of(
        "stop",
        [
            rate_check("stop_precision", metric_rate(rows, "stop_precision", seed), ">=", bounds.precision),
            rate_check("malformed", metric_rate(rows, "malformed", seed), "<=", bounds.malformed),
        ],
    )


# --- on episodes ------------------------------------------------------------------------------------------------


def _completion(evidence: Evidence, thresholds: Thresholds, seed: int) -> Gate:
    found = paired(evidence.baseline_episodes or (), evidence.episodes or ())
    always = [1.0] * len(found.pairs)
    hits = [[float(bool(pair[side].completed)) for pair in found.pairs] for side in (0, 1)]
    sides = Sides((hits[0], always), (hits[1], always), [one.task_id for _, one in found.pairs])
    unpaired = found.total - len(found.pairs)
    return gate_of(
        "completion",
        [
            points_check("completed", sides, ">=", -thresholds.completion.margin, seed=seed, note=_both(sides)),
            failed_share("unpaired", unpaired, found.total, thresholds.max_failed),
        ],
        left_out("episodes", found.left_out),
    )


def _recovery(evidence: Evidence, thresholds: Thresholds, seed: int) -> Gate:
    """On the decisions right after a failed call, and on the episodes in which one failed."""
    margin = thresholds.recovery.margin
    decisions = metric_sides(row_pairs(evidence.baseline or (), evidence.candidate), "recovery")
    found = paired(evidence.baseline_episodes or (), evidence.episodes or ())
    alive = Sides(
        _recovered([was for was, _ in found.pairs]),
        _recovered([now for _, now in found.pairs]),
        [one.task_id for _, one in found.pairs],
    )
    checks = [
        points_check("recovery", decisions, ">", margin, seed=seed, note=_both(decisions)),
        points_check("recovered_episodes", alive, ">", margin, seed=seed, note=_both(alive)),
    ]
    return gate_of("recovery", checks, left_out("episodes", found.left_out))


def _recovered(episodes: Sequence[Played]) -> Columns:
    """Whether the task was completed, where a call failed."""
    failed = [float(episode.call_failed) for episode in episodes]
    return [float(bool(episode.completed) and episode.call_failed) for episode in episodes], failed


def _both(sides: Sides) -> str:
    (was, of), (now, out_of) = ([sum(column) for column in side] for side in (sides.before, sides.after))
    return f"{was:.0f} of {of:.0f} before, {now:.0f} of {out_of:.0f} now"


# --- on calls ---------------------------------------------------------------------------------------------------


def _cost_latency(evidence: Evidence, thresholds: Thresholds, seed: int) -> Gate:
    after, before = evidence.spending, evidence.baseline_spending
    assert after is not None
    assert before is not None
    checks = [
        _cheaper("usd_per_call", before.calls, after.calls, seed, per_session=False),
        _cheaper("usd_per_session", before.calls, after.calls, seed, per_session=True),
        _not_slower(before.calls, after.calls, thresholds.cost_latency.p95_ms, seed),
    ]
    excluded = []
    for who, found in (("candidate", after), ("baseline", before)):
        unpriced = sum(call.usd is None for call in found.calls)
        checks.append(failed_share(f"{who}_unpriced", unpriced, len(found.calls), thresholds.max_failed))
        excluded += left_out(f"{who}'s calls", {**found.excluded, "no price": unpriced})
    return gate_of("cost_latency", checks, excluded)


def _cheaper(metric: str, before: Sequence[Call], after: Sequence[Call], seed: int, *, per_session: bool) -> Check:
    """Mean cost, candidate less baseline. With fewer than ten sessions on a side nothing is said."""
    sides = [_by_session(calls) for calls in (before, after)]
    sessions = sorted({*sides[0], *sides[1]})
    columns: list[Columns] = []
    for side in sides:
        found = [side.get(session, []) for session in sessions]
        columns.append(([sum(costs) for costs in found], [_trials(costs, per_session) for costs in found]))
    difference = paired_difference(columns[0], columns[1], sessions, seed=seed)
    fewest, n = min(len(side) for side in sides), round(sum(columns[1][1]))
    notes = []
    if difference.value is not None:
        notes.append("${:.6f} before, ${:.6f} now".format(*(sum(usd) / sum(trials) for usd, trials in columns)))
    low, high, method = difference.low, difference.high, difference.method
    if fewest < FEW_CLUSTERS:
        low, high, method = None, None, "none"
        notes.append(f"{fewest} sessions of one of the two; at least {FEW_CLUSTERS} are needed")
    known = Difference(value=difference.value, n=n, low=low, high=high, method=method)
    return usd_check(metric, known, "<", 0.0, note="; ".join(notes))


def _by_session(calls: Sequence[Call]) -> dict[str, list[float]]:
    """Session → costs of its priced calls."""
    found: dict[str, list[float]] = {}
    for call in calls:
        if call.usd is not None:
            found.setdefault(call.session, []).append(call.usd)
    return found


def _trials(costs: Sequence[float], per_session: bool) -> float:
    return float(bool(costs)) if per_session else float(len(costs))


def _not_slower(before: Sequence[Call], after: Sequence[Call], p95_ms: float | None, seed: int) -> Check:
    """That the 95th percentile is at most a limit is that at most 5% of the calls are slower: a share, so it has an
    interval like any other."""
    asked = "as asked" if p95_ms is not None else "the baseline's own"
    if p95_ms is None and before:
        p95_ms = 1000 * _p95(before)
    if p95_ms is None:
        return rate_check("slow_calls", NO_RATE, "<=", SLOW)
    slow = [float(1000 * call.latency_s > p95_ms) for call in after]
    found = careful_rate(slow, [1.0] * len(slow), [call.session for call in after], seed=seed)
    note = f"slower than {p95_ms:,.0f} ms ({asked})" + (f"; p95 {1000 * _p95(after):,.0f} ms" if after else "")
    return rate_check("slow_calls", found, "<=", SLOW, note=note)


def _p95(calls: Sequence[Call]) -> float:
    return float(np.quantile([call.latency_s for call in calls], 0.95))
