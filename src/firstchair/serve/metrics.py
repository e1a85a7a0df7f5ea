"""Numbers of one server for Prometheus. Labels are names of the catalog and words of ours: there are few of them."""

from __future__ import annotations

from collections import Counter

from firstchair.catalog.token_counts import NANO
from firstchair.serve.orchestrator import Routed

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Counted in memory, since the start."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()
        self._ends: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._cost_nano: Counter[str] = Counter()
        self._unpriced: Counter[str] = Counter()
        self._seconds = 0.0

    def observe(self, status: int, took_s: float, routed: Routed | None) -> None:
        """Count a request that is over."""
        self._requests[str(status)] += 1
        self._seconds += took_s
        if routed is None:
            return
        self._ends[routed.end] += 1
        for one in routed.found.dispatches:
            self._calls[one.name] += 1
            self._failed[one.name] += one.error_kind is not None
            self._cost_nano[one.name] += one.cost_nano or 0
            self._unpriced[one.name] += one.cost_nano is None

    def text(self, running: int) -> str:
        """All of it, as Prometheus reads it; ``running`` requests are under way."""
        cost = {name: nano / NANO for name, nano in self._cost_nano.items()}
        seconds, total = self._seconds, self._requests.total()
        return "".join(
            (
                _family("requests_total", "counter", "Requests that are over.", "status", self._requests),
                _family("ends_total", "counter", "How orchestrations ended.", "end", self._ends),
                _family("calls_total", "counter", "Calls of experts and tools.", "name", self._calls),
                _family("failed_calls_total", "counter", "Calls without an answer.", "name", self._failed),
                _family("cost_usd_total", "counter", "What experts cost.", "name", cost),
                _family("unpriced_calls_total", "counter", "Calls of unknown cost.", "name", self._unpriced),
                _family("running_requests", "gauge", "Requests under way.", "", {"": running}),
                _family("request_seconds_sum", "counter", "Time of all requests.", "", {"": seconds}),
                _family("request_seconds_count", "counter", "Requests that are over.", "", {"": total}),
            )
        )


def _family(name: str, kind: str, told: str, label: str, values: Counter[str] | dict[str, float]) -> str:
    full = f"firstchair_serve_{name}"
    lines = [f"# HELP {full} {told}", f"# TYPE {full} {kind}"]
    for value, number in sorted(values.items()):
        lines.append(f'{full}{{{label}="{value}"}} {number}' if label else f"{full} {number}")
    return "\n".join(lines) + "\n"
