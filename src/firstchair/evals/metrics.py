"""The metrics of a replay run, each a rate over rows with its interval, all recomputable from ``decisions.jsonl``.

A metric is two questions about a row: does it count, and is it a hit? Rows without an action (engine errors, prompts
beyond the window, contexts that no template can say) count in none but ``coverage`` and ``errors``, and are listed
with their reasons.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from firstchair.catalog.verdict import Verdict
from firstchair.engines.base import Stop
from firstchair.evals.run_record import DecisionRow
from firstchair.evals.stats import Rate, rate

Level = Literal["strict", "lenient"]
Question = Callable[[DecisionRow], bool]


@dataclass(frozen=True)
class Metric:
    """One rate: ``hit`` among the rows for which ``counts`` holds."""

    name: str
    title: str
    meaning: str
    counts: Question
    hit: Question
    better: Literal["higher", "lower"] = "higher"

    def columns(self, rows: Sequence[DecisionRow]) -> tuple[list[float], list[float]]:
        """Hits and trials, one of each a row."""
        trials = [float(self.counts(row)) for row in rows]
        return [float(bool(trial) and self.hit(row)) for row, trial in zip(rows, trials, strict=True)], trials


def _obtained(row: DecisionRow) -> bool:
    return row.obtained


def _calls(row: DecisionRow) -> bool:
    return row.obtained and row.gold_kind == "tool_call"


def _right_tool(row: DecisionRow) -> bool:
    if not _calls(row) or row.made_kind != "tool_call":
        return False
    made, gold = Counter(row.made_tools), Counter(row.gold_tools)
    return made == gold or (row.scored.extra_calls > 0 and gold <= made)  # extra calls are counted when harmless


def _passed(level: Level) -> Question:
    def question(row: DecisionRow) -> bool:
        return getattr(row.scored, level) is Verdict.PASS

    return question


_STRICT, _LENIENT = _passed("strict"), _passed("lenient")

METRICS: tuple[Metric, ...] = (
    Metric("strict_pass", "Pass, strict", "gold's tool and byte-equal arguments", _obtained, _STRICT),
    Metric("lenient_pass", "Pass, lenient", "equal by schema, matchers or an alternative", _obtained, _LENIENT),
    Metric(
        "action_type",
        "Action type",
        "called where gold calls, replied where gold replies",
        _obtained,
        lambda row: row.made_kind == row.gold_kind,
    ),
    Metric("tool_name", "Tool name", "gold's tool, of decisions where gold calls one", _calls, _right_tool),
    Metric(
        "argument_quality",
        "Argument quality",
        "arguments right leniently, given that the tool is right",
        _right_tool,
        _LENIENT,
    ),
    Metric(
        "argument_exact",
        "Argument exact match",
        "tool and arguments exactly gold's, of decisions where gold calls one",
        _calls,
        _STRICT,
    ),
    Metric(
        "recovery",
        "Recovery",
        "lenient pass right after a tool failed",
        lambda row: row.obtained and "recovery" in row.tags,
        _LENIENT,
    ),
    Metric(
        "stop_precision",
        "Stop precision",
        "of the times it stopped, gold stopped too",
        lambda row: row.obtained and row.made_kind == "final_reply",
        lambda row: row.gold_kind == "final_reply",
    ),
    Metric(
        "stop_recall",
        "Stop recall",
        "of the times gold stopped, it stopped too",
        lambda row: row.obtained and row.gold_kind == "final_reply",
        lambda row: row.made_kind == "final_reply",
    ),
    Metric(
        "format_validity",
        "Format validity",
        "readable in the declared syntax and valid for the tool's schema",
        _obtained,
        lambda row: row.scored.lenient is not Verdict.MALFORMED,
    ),
    Metric(
        "malformed",
        "Malformed",
        "not readable in the declared syntax, or not valid for the tool's schema",
        _obtained,
        lambda row: row.scored.lenient is Verdict.MALFORMED,
        "lower",
    ),
    Metric(
        "omit_compliance",
        "Known mistake avoided",
        "of decisions where a wrong call is recorded, it was not repeated",
        lambda row: row.obtained and row.known_bad_call,
        lambda row: row.scored.lenient is not Verdict.KNOWN_BAD_REPEATED,
    ),
    Metric(
        "undecided",
        "Undecided",
        "neither right nor wrong by code alone; a judge or a person must say",
        _obtained,
        lambda row: undecided(row),
        "lower",
    ),
    Metric(
        "coverage",
        "Coverage",
        "there is a prompt, and it and the reply fit the context window",
        lambda row: True,
        lambda row: row.covered,
    ),
    Metric(
        "errors",
        "Errors",
        "no action obtained though it was asked; never counted as the model's failure",
        lambda row: row.covered,
        lambda row: not row.obtained,
        "lower",
    ),
)
"""In the order of the report."""

SHOWN = tuple(metric for metric in METRICS if metric.name != "format_validity")
"""What people are shown. Format validity is 1 − malformed, so it stays in JSON."""

_SETTLED = frozenset({Verdict.MALFORMED, Verdict.KNOWN_BAD_REPEATED, Verdict.ERROR, Verdict.PASS})


def undecided(row: DecisionRow) -> bool:
    """Whether code cannot say if the row is right.

    A mismatch is wrong only against gold that somebody verified; against a mere recording it may be a valid
    alternative. A field left to a judge is open either way. Malformed replies and repeated known mistakes are wrong.
    """
    if row.scored.lenient in _SETTLED:
        return False
    return row.scored.undecided or not row.verified


def measure(rows: Sequence[DecisionRow], *, seed: int = 0) -> dict[str, Rate]:
    """Every metric of ``METRICS`` by name."""
    sessions = [row.session_id for row in rows]
    return {metric.name: rate(*metric.columns(rows), sessions, seed=seed) for metric in METRICS}


def pass_rate(rows: Sequence[DecisionRow], level: Level, *, seed: int = 0) -> Rate:
    """The pass rate of some rows at one level."""
    kept = [row for row in rows if row.obtained]
    hits = [float(_passed(level)(row)) for row in kept]
    return rate(hits, [1.0] * len(kept), [row.session_id for row in kept], seed=seed)


def verdict_counts(rows: Iterable[DecisionRow], level: Level) -> dict[Verdict, int]:
    """Rows by verdict, every verdict present, in the order of the table of verdicts."""
    counts = Counter(getattr(row.scored, level) for row in rows)
    return {verdict: counts.get(verdict, 0) for verdict in Verdict}


class Slice(msgspec.Struct, frozen=True):
    """Pass rates of the rows that share something."""

    name: str
    strict: Rate
    lenient: Rate


def slices(
    rows: Sequence[DecisionRow], names_of: Callable[[DecisionRow], Iterable[str]], *, seed: int = 0
) -> list[Slice]:
    """Pass rates by what ``names_of`` gives; a row may be in several slices. Largest slice first."""
    groups: dict[str, list[DecisionRow]] = {}
    for row in rows:
        for name in names_of(row):
            groups.setdefault(name, []).append(row)
    made = [
        Slice(name, pass_rate(group, "strict", seed=seed), pass_rate(group, "lenient", seed=seed))
        for name, group in groups.items()
    ]
    return sorted(made, key=lambda part: (-part.lenient.n, part.name))


LENGTH_BOUNDS = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)


def length_bucket(row: DecisionRow) -> str:
    """The context length of a row as a bucket; the server may not have told."""
    if not row.prompt_tokens:
        return "length unknown"
    for low, high in zip((0, *LENGTH_BOUNDS), LENGTH_BOUNDS, strict=False):
        if row.prompt_tokens <= high:
            return f"{low + 1:,} to {high:,} tokens"
    return f"over {LENGTH_BOUNDS[-1]:,} tokens"


def standard_slices(
    rows: Sequence[DecisionRow], kinds: Mapping[str, str] | None = None, *, seed: int = 0
) -> dict[str, list[Slice]]:
    """By tool kind, tag, provenance and context length. ``kinds``: tool → ``universal`` or ``convention``."""
    kinds = kinds or {}

    def kind(row: DecisionRow) -> list[str]:
        if row.gold_kind == "final_reply":
            return ["final reply"]
        found = {kinds.get(tool, "") for tool in row.gold_tools}
        return [f"{name} tools" for name in sorted(found - {""})]

    by_length = slices(rows, lambda row: [length_bucket(row)], seed=seed)
    order = {
        length_bucket(row): row.prompt_tokens for row in sorted(rows, key=lambda r: r.prompt_tokens, reverse=True)
    }
    return {
        "tool kind": slices(rows, kind, seed=seed),
        "tag": slices(rows, lambda row: row.tags, seed=seed),
        "provenance": slices(rows, lambda row: [row.provenance or "unknown"], seed=seed),
        "context length": sorted(by_length, key=lambda part: order[part.name]),
    }


class Excluded(msgspec.Struct, frozen=True):
    """Rows that count in no rate, for one reason."""

    reason: str
    count: int
    dp_ids: tuple[str, ...]
    first: str = ""
    """What was said about the first of them; empty when nothing was."""


def excluded(rows: Iterable[DecisionRow]) -> list[Excluded]:
    """Every row without an action, by reason, most frequent first; nothing is left out silently."""
    by_reason: dict[str, list[DecisionRow]] = {}
    for row in rows:
        if not row.obtained:
            by_reason.setdefault(row.scored.rule, []).append(row)
    found = [
        Excluded(
            reason, len(same), tuple(row.dp_id for row in same), (same[0].error or "").removeprefix(f"{reason}: ")
        )
        for reason, same in by_reason.items()
    ]
    return sorted(found, key=lambda part: (-part.count, part.reason))


def unanswered(rows: Iterable[DecisionRow]) -> list[Excluded]:
    """The part of ``excluded`` that asking again may mend: decisions that the engine was asked and failed at."""
    return excluded(row for row in rows if row.covered and row.stop == Stop.ERROR)


class Prices(msgspec.Struct, frozen=True):
    """US dollars per million tokens."""

    input: float
    output: float
    cached: float | None = None
    """Of prompt tokens read from the server's cache; ``input`` when not given."""

    def usd(self, prompt: int, cached: int, output: int) -> float:
        """What so many tokens cost; ``cached`` are part of ``prompt``."""
        read = self.input if self.cached is None else self.cached
        return ((prompt - cached) * self.input + cached * read + output * self.output) / 1e6


class Cost(msgspec.Struct, frozen=True):
    """Tokens, seconds and money of a run."""

    decisions: int
    sessions: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    latency_mean_s: float | None
    latency_p50_s: float | None
    latency_p95_s: float | None
    usd: float | None = None
    usd_per_session: float | None = None


def cost(rows: Sequence[DecisionRow], prices: Prices | None = None) -> Cost:
    """Totals over the rows that were asked. Latency in a batch is the time until that reply was ready."""
    asked = [row for row in rows if row.stop]
    sessions = len({row.session_id for row in asked})
    prompt, cached = sum(row.prompt_tokens for row in asked), sum(row.cached_tokens for row in asked)
    output = sum(row.output_tokens or 0 for row in asked)
    latency = np.array([row.latency_s for row in asked if row.obtained and row.latency_s > 0])
    usd = None
    if prices is not None:
        usd = prices.usd(prompt, cached, output)
    p50, p95 = (float(value) for value in np.quantile(latency, (0.5, 0.95))) if len(latency) else (None, None)
    return Cost(
        decisions=len(asked),
        sessions=sessions,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        latency_mean_s=float(latency.mean()) if len(latency) else None,
        latency_p50_s=p50,
        latency_p95_s=p95,
        usd=usd,
        usd_per_session=usd / sessions if usd is not None and sessions else None,
    )
