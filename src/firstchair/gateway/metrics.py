"""Metrics for Prometheus: counted in each worker's memory, written to a small file, summed by whoever is asked.

    finished call ──→ Metrics.observe (µs) ──→ every second: spool/metrics/<worker>.json
    GET /metrics ──→ metrics_text: the files of all workers, added up, and the spool's own state

A worker that starts again goes on counting from its file, so that no counter runs backwards. Labels are names of the
configuration and words of our own: their number is bounded, and no key, session or client name is among them.
"""

from __future__ import annotations

import bisect
import re
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from firstchair.catalog.token_counts import NANO
from firstchair.core.atomic import write_bytes
from firstchair.core.errors import FirstchairError
from firstchair.gateway.records import CallRecord

if TYPE_CHECKING:
    from firstchair.gateway.shadow import Shadows
    from firstchair.gateway.worker import Worker

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FOLDER = "metrics"
MAX_SERIES = 5000
"""Of one worker; what comes after that is counted as ``firstchair_series_refused_total`` only."""
FRESH_S = 5.0
"""Gauges of a worker that has written nothing for longer are gone with it."""
BUCKETS_S = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)

_LABEL = re.compile(r'(\w+)="([^"\\]*)"')
"""Of families whose labels are names and words of ours: nothing in them is escaped."""

Key = tuple[str, ...]
"""Family, then the values of its labels."""


class _Family(NamedTuple):
    kind: str
    help: str
    labels: tuple[str, ...] = ()


FAMILIES: Mapping[str, _Family] = {
    "firstchair_calls_total": _Family("counter", "Calls that ended.", ("slot", "provider", "variant", "outcome")),
    "firstchair_fallbacks_total": _Family("counter", "Calls that a fallback answered.", ("slot", "provider")),
    "firstchair_attempt_failures_total": _Family("counter", "Tries without an answer.", ("provider", "failure")),
    "firstchair_latency_seconds": _Family("histogram", "Whole call, as the client saw it.", ("slot", "variant")),
    "firstchair_ttft_seconds": _Family("histogram", "Until the first content.", ("slot", "variant")),
    "firstchair_tokens_total": _Family("counter", "Tokens.", ("slot", "provider", "variant", "kind")),
    "firstchair_cost_usd_total": _Family("counter", "What providers charge.", ("slot", "provider", "variant")),
    "firstchair_unpriced_calls_total": _Family("counter", "Calls of a model without a price.", ("slot", "provider")),
    "firstchair_malformed_calls_total": _Family("counter", "Tool calls that no tool can take.", ("slot", "variant")),
    "firstchair_shadow_agreement_total": _Family("counter", "Shadow calls by agreement.", ("slot", "agreement")),
    "firstchair_shadow_dropped_total": _Family("counter", "Shadow copies never asked.", ("reason",)),
    "firstchair_events_total": _Family("counter", "What happened besides calls.", ("event",)),
    "firstchair_budget_unreadable_total": _Family("counter", "Budgets that could not be read or written."),
    "firstchair_series_refused_total": _Family("counter", "Counts left out for want of room for their labels."),
    "firstchair_running_calls": _Family("gauge", "Calls under way."),
    "firstchair_breaker_workers": _Family("gauge", "Workers whose breaker is in a state.", ("provider", "state")),
    "firstchair_shadow_queue": _Family("gauge", "Shadow copies that wait."),
    "firstchair_shadow_running": _Family("gauge", "Shadow calls under way."),
    "firstchair_workers": _Family("gauge", "Workers that report."),
    "firstchair_spool_waiting_bytes": _Family("gauge", "In the spool and not yet in the ledger."),
    "firstchair_spool_lag_seconds": _Family("gauge", "Since the sink last said how it is; -1: never."),
    "firstchair_spool_unsaved_calls": _Family("gauge", "In the ledger and not yet in the trace store."),
    "firstchair_spool_lost_total": _Family("counter", "Records lost.", ("worker", "reason")),
}


class _File(msgspec.Struct):
    """One worker's numbers by series."""

    at_s: float
    counts: dict[str, float]
    gauges: dict[str, float]


class Histogram:
    """Counts of one series; cumulative only when written."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect.bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds


class Metrics:
    """The numbers of one worker. ``observe`` is an observer of the worker."""

    def __init__(self, worker: Worker, shadows: Shadows | None = None):
        self._worker, self._shadows = worker, shadows
        self._path = worker.config.spool / FOLDER / f"{worker.name}.json"
        self._counts: dict[Key, int] = {}
        self._histograms: dict[Key, Histogram] = {}
        self._refused = 0
        old = _read(self._path)
        self._before = old.counts if old else {}

    def observe(self, record: CallRecord, _slot: object = None) -> None:
        """Count a finished call."""
        slot, provider, variant = record.slot, record.provider, record.variant
        self._count(("firstchair_calls_total", slot, provider, variant, record.outcome.value))
        self._time(("firstchair_latency_seconds", slot, variant), record.latency_ms)
        if record.ttft_ms is not None:
            self._time(("firstchair_ttft_seconds", slot, variant), record.ttft_ms)
        if variant == "fallback":
            self._count(("firstchair_fallbacks_total", slot, provider))
        elif variant == "shadow":
            self._count(("firstchair_shadow_agreement_total", slot, record.agreement))
        for attempt in record.attempts:
            if attempt.failure is not None:
                self._count(("firstchair_attempt_failures_total", attempt.provider, attempt.failure.value))
        if record.malformed_calls:
            self._count(("firstchair_malformed_calls_total", slot, variant), record.malformed_calls)
        if record.cost_nano is None:
            self._count(("firstchair_unpriced_calls_total", slot, provider))
        elif record.cost_nano:
            self._count(("firstchair_cost_usd_total", slot, provider, variant), record.cost_nano)
        usage = record.usage
        if usage is not None:
            for kind, tokens in (
                ("input", usage.input),
                ("cache_read", usage.cache_read),
                ("cache_write", usage.cache_write_5m + usage.cache_write_1h),
                ("output", usage.output),
            ):
                if tokens > 0:
                    self._count(("firstchair_tokens_total", slot, provider, variant, kind), tokens)

    def _count(self, key: Key, amount: int = 1) -> None:
        counts = self._counts
        if key in counts:
            counts[key] += amount
        elif len(counts) < MAX_SERIES:
            counts[key] = amount
        else:
            self._refused += 1

    def _time(self, key: Key, ms: float) -> None:
        found = self._histograms.get(key)
        if found is None:
            if len(self._histograms) >= MAX_SERIES:
                self._refused += 1
                return
            found = self._histograms[key] = Histogram()
        found.add(ms / 1000)

    def write(self) -> None:
        """Bring the file up to date. Safe beside ``observe`` in another thread; a full disk is no reason to stop."""
        data = msgspec.json.encode(_File(at_s=time.time(), counts=self._series(), gauges=self._gauges()))
        try:
            write_bytes(self._path, data, force=True)
        except (FirstchairError, OSError):
            self._worker.count("metrics_unwritten")

    def _series(self) -> dict[str, float]:
        found: Counter[str] = Counter(self._before)
        counts: dict[Key, int] = dict(self._counts)
        for event, number in dict(self._worker.counters).items():
            counts["firstchair_events_total", event] = number
        if number := self._worker.counters["budget_unreadable"]:
            counts["firstchair_budget_unreadable_total",] = number
        if self._shadows is not None:
            for reason, number in dict(self._shadows.dropped).items():
                counts["firstchair_shadow_dropped_total", reason] = number
        if self._refused:
            counts["firstchair_series_refused_total",] = self._refused
        for key, number in counts.items():
            found[_series(key[0], key[1:])] += number
        for key, histogram in dict(self._histograms).items():
            total = 0
            for bound, number in zip((*BUCKETS_S, None), list(histogram.counts), strict=True):
                total += number
                edge = "+Inf" if bound is None else f"{bound:g}"
                found[_series(key[0], (*key[1:], edge), "_bucket")] += total
            found[_series(key[0], key[1:], "_count")] += total
            found[_series(key[0], key[1:], "_sum")] += histogram.sum_s  # type: ignore[assignment]
        return dict(found)

    def _gauges(self) -> dict[str, float]:
        worker, now = self._worker, time.monotonic()
        found: dict[str, float] = {
            "firstchair_running_calls": worker.running,
            "firstchair_workers": 1,
        }
        for provider, breaker in worker.setup.breakers.items():
            found[_series("firstchair_breaker_workers", (provider, breaker.state(now).value))] = 1
        if self._shadows is not None:
            found["firstchair_shadow_queue"] = self._shadows.waiting
            found["firstchair_shadow_running"] = self._shadows.running
        return found


def metrics_text(spool: Path, *, now_s: float | None = None) -> str:
    """What ``GET /metrics`` answers, for the gateway whose spool this is."""
    return _rendered(metrics_sums(spool, now_s=now_s))


def metrics_sums(spool: Path, *, now_s: float | None = None) -> Counter[str]:
    """The numbers of all workers and of the spool by series, money in nano-USD; see ``sums_by_label``."""
    now_s = time.time() if now_s is None else now_s
    total: Counter[str] = Counter()
    for path in sorted((spool / FOLDER).glob("*.json")):
        found = _read(path)
        if found is None:
            continue
        total.update(found.counts)
        if now_s - found.at_s <= FRESH_S:
            total.update(found.gauges)
    total.update(_spool_series(spool, now_s))
    return total


def sums_by_label(total: Mapping[str, float], family: str, *labels: str) -> dict[Key, int]:
    """One family of ``metrics_sums`` by the values of these labels, summed over all others; zeros are left out."""
    found: Counter[Key] = Counter()
    for series, value in total.items():
        name, _, rest = series.partition("{")
        if name == family and value:
            values = dict(_LABEL.findall(rest))
            found[tuple(values[label] for label in labels)] += int(value)
    return dict(sorted(found.items()))


def _spool_series(spool: Path, now_s: float) -> dict[str, float]:
    from firstchair.gateway.sink import read_status
    from firstchair.gateway.spool import losses_of

    status = read_status(spool)
    found: dict[str, float] = {
        "firstchair_spool_lag_seconds": -1 if status is None else max(0.0, round(now_s - status.at_us / 1e6, 3))
    }
    if status is not None:
        found["firstchair_spool_waiting_bytes"] = status.waiting_bytes
        found["firstchair_spool_unsaved_calls"] = status.unsaved_calls
        for worker, reasons in status.lost.items():
            for reason, number in reasons.items():
                found[_series("firstchair_spool_lost_total", (worker, reason))] = number
    for losses in losses_of(spool):
        for reason, number in losses.lost.items():
            found[_series("firstchair_spool_lost_total", (losses.worker, reason))] = number
    return found


def _rendered(total: Mapping[str, float]) -> str:
    by_family: dict[str, list[str]] = {name: [] for name in FAMILIES}
    for series, value in total.items():
        name = series.partition("{")[0]
        family = name if name in FAMILIES else name.rpartition("_")[0]
        if family in by_family:
            if family == "firstchair_cost_usd_total":
                value = value / NANO
            by_family[family].append(f"{series} {value!r}")
    lines: list[str] = []
    for name, series_lines in by_family.items():
        if series_lines:
            lines += [f"# HELP {name} {FAMILIES[name].help}", f"# TYPE {name} {FAMILIES[name].kind}", *series_lines]
    return "\n".join(lines) + "\n"


def _series(family: str, values: tuple[str, ...], suffix: str = "") -> str:
    names = FAMILIES[family].labels + (("le",) if suffix == "_bucket" else ())
    if not names:
        return family + suffix
    labels = ",".join(f'{name}="{_escaped(value)}"' for name, value in zip(names, values, strict=True))
    return f"{family}{suffix}{{{labels}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _read(path: Path) -> _File | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=_File)
    except (OSError, msgspec.MsgspecError):
        return None
