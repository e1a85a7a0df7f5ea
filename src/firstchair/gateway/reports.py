"""What a worker tells of its calls beside records: metrics, log lines and spans. Told by the worker's observers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from firstchair.gateway.call import Call
from firstchair.gateway.config import Provider
from firstchair.gateway.logs import CallLog, Ticker
from firstchair.gateway.metrics import Metrics
from firstchair.gateway.shadow import Shadows
from firstchair.gateway.telemetry import Telemetry
from firstchair.gateway.worker import Worker

METRICS_EVERY = 4
"""Ticks."""


class Reports:
    """The reports of one worker. ``open`` in the worker's own process: it starts threads."""

    def __init__(self, worker: Worker, shadows: Shadows):
        self._worker = worker
        self.metrics = Metrics(worker, shadows)
        self.log = CallLog(content=worker.config.logs.content)
        self.telemetry = Telemetry(None, self._providers)
        self._ticker = Ticker([self._tick])
        self._ticks = 0

    def open(self) -> None:
        worker = self._worker
        self.telemetry = Telemetry.from_environment(self._providers)
        worker.observers += [self.metrics.observe, self.telemetry.observe]
        if worker.config.logs.calls:
            worker.observers.append(self.log.observe)
        self._ticker.start()

    def begin(self, call: Call) -> None:
        """A call has come."""
        call.trace = self.telemetry.begin(call.id, call.headers, call.received_us)

    async def close(self) -> None:
        """After the last call."""
        await asyncio.to_thread(self._ticker.stop)
        self.metrics.write()
        await asyncio.to_thread(self.telemetry.close)

    def _providers(self) -> Mapping[str, Provider]:
        return self._worker.config.providers

    def _tick(self) -> None:
        self.log.write()
        self._ticks += 1
        if self._ticks % METRICS_EVERY == 0:
            self._worker.counters["log_lines_dropped"] = self.log.dropped
            self.metrics.write()
