"""What one worker process holds between calls: providers, breakers, limits, prices, the spool, the control state."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from firstchair.core.errors import FirstchairError
from firstchair.gateway.breaker import Breaker, BreakerRules
from firstchair.gateway.config import GatewayConfig
from firstchair.gateway.context import PromptCounter
from firstchair.gateway.control.prices import PriceTable
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.control.snapshot import EMPTY, Snapshot
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.dialects.base import Dialect, DialectName
from firstchair.gateway.dialects.known import known_dialects
from firstchair.gateway.limits import Budgets, RateLimits
from firstchair.gateway.recorder import Recorder
from firstchair.gateway.records import CallRecord
from firstchair.gateway.redaction import Redactor, load_hook
from firstchair.gateway.spool import SpoolWriter
from firstchair.gateway.upstream import Upstream

_logger = logging.getLogger("firstchair.gateway")

POLL_S = 0.05
"""How often the revision is read; a change of a slot holds within this time, plus one read."""
HEARTBEAT_S = 0.5

Observer = Callable[[CallRecord, "SlotConfig | None"], None]
"""Told every finished call as it was kept, on the event loop; must not block or raise."""


class Worker:
    """One worker. ``open`` on its event loop, ``close`` at the end."""

    def __init__(self, config: GatewayConfig, name: str, store: ControlStore):
        self.config, self.name, self.store = config, name, store
        self.snapshot: Snapshot = EMPTY
        self.counters: Counter[str] = Counter()
        """What happened besides calls, for the metrics."""
        self.observers: list[Observer] = []
        self.rng = random.Random()
        self.ready: Callable[[], None] = lambda: None
        """Called when the worker may be asked."""
        self.draining = False
        self.running = 0
        """Calls under way."""
        self.dialects: Mapping[DialectName, Dialect] = known_dialects()
        self.prices = PriceTable.load(config.prices)
        self.rates = RateLimits(config.workers)
        self.budgets = Budgets(
            _Book(store, name), config.auth.on_unreadable_budget, lambda: self.count("budget_unreadable")
        )
        rules = BreakerRules(**config.breaker.model_dump())
        self.breakers = {provider: Breaker(rules) for provider in config.providers}
        self.counting = {
            provider: PromptCounter(settings.tokenizer)
            for provider, settings in config.providers.items()
            if settings.tokenizer is not None
        }
        self.upstreams: dict[str, Upstream] = {}
        self.recorder = self._recorder()
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None

    def _recorder(self) -> Recorder:
        recording = self.config.recording
        hook = load_hook(recording.redact_hook) if recording.redact_hook else None
        return Recorder(
            SpoolWriter(
                self.config.spool,
                self.name,
                fsync=recording.fsync,
                fsync_interval_s=recording.fsync_interval_s,
                max_bytes=int(recording.max_spool_gb * 1e9),
            ),
            Redactor(patterns=recording.patterns, hook=hook) if recording.redact else None,
            keep_content=recording.on,
        )

    async def open(self) -> None:
        """Connect, and read the control state once: the first request finds it."""
        self.upstreams = {name: Upstream(name, provider) for name, provider in self.config.providers.items()}
        self.snapshot = self.store.snapshot()
        try:
            self.store.heartbeat(self.name, self.snapshot.revision)
        except FirstchairError:  # a full disk: calls go on, and the poller goes on trying
            self.count("control_unreadable")
        self._poller = threading.Thread(target=self._poll, name="control", daemon=True)
        self._poller.start()
        self.ready()

    async def close(self) -> None:
        """After the last call."""
        await self.budgets.close()
        self._stop.set()
        if self._poller is not None:
            await asyncio.to_thread(self._poller.join)
        for upstream in self.upstreams.values():
            await upstream.close()
        self.recorder.close()
        try:
            await asyncio.to_thread(self.store.end_worker, self.name)
        except FirstchairError:
            self.count("control_unreadable")

    def count(self, what: str) -> None:
        self.counters[what] += 1

    def fault(self, error: Exception) -> None:
        """A bug of ours: counted, and told without what the call held."""
        self.count("faults")
        frames = traceback.extract_tb(error.__traceback__)[-3:]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        _logger.error("a call failed inside the gateway: %s at %s", type(error).__name__, where)

    def finished(self, record: CallRecord, slot: SlotConfig | None) -> None:
        for observer in self.observers:
            observer(record, slot)

    def _poll(self) -> None:
        """In a thread: the database may be slow or gone, and calls go on with what was read last."""
        beat = 0.0
        while not self._stop.wait(POLL_S):
            try:
                if self.store.revision() != self.snapshot.revision:
                    self._refresh()
                    beat = 0.0
                if time.monotonic() - beat >= HEARTBEAT_S:
                    self.store.heartbeat(self.name, self.snapshot.revision)
                    beat = time.monotonic()
            except FirstchairError:
                self.count("control_unreadable")

    def _refresh(self) -> None:
        self.snapshot = self.store.snapshot()
        self.store.heartbeat(self.name, self.snapshot.revision)


class _Book:
    """The budgets of the control store, under this worker's name."""

    def __init__(self, store: ControlStore, worker: str):
        self._store, self._worker = store, worker

    def reserve(self, key_id: str, nano: int) -> bool:
        return self._store.reserve(key_id, nano, worker=self._worker)

    def settle(self, key_id: str, reserved: int, actual: int) -> None:
        self._store.settle(key_id, reserved, actual, worker=self._worker)
