"""What one worker process holds between calls: the setup that they are served with, limits, spool, control state."""

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
from firstchair.gateway.config import GatewayConfig
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.control.snapshot import EMPTY, Snapshot
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.dialects.base import Dialect, DialectName
from firstchair.gateway.dialects.known import known_dialects
from firstchair.gateway.limits import Budgets, RateLimits
from firstchair.gateway.records import CallRecord
from firstchair.gateway.setup import Setup
from firstchair.gateway.spool import SpoolWriter

_logger = logging.getLogger("firstchair.gateway")

POLL_S = 0.05
"""How often the revision is read; a change of a slot holds within this time, plus one read."""
HEARTBEAT_S = 0.5

Observer = Callable[[CallRecord, "SlotConfig | None"], None]
"""Told every finished call as it was kept, on the event loop; must not block or raise."""


class Worker:
    """One worker. ``open`` on its event loop, ``close`` at the end."""

    def __init__(self, config: GatewayConfig, name: str, store: ControlStore):
        self.name, self.store = name, store
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
        self.rates = RateLimits(config.workers)
        self.budgets = Budgets(
            _Book(store, name), config.auth.on_unreadable_budget, lambda: self.count("budget_unreadable")
        )
        recording = config.recording
        self._spool = SpoolWriter(
            config.spool,
            name,
            fsync=recording.fsync,
            fsync_interval_s=recording.fsync_interval_s,
            max_bytes=int(recording.max_spool_gb * 1e9),
        )
        self.setup = Setup(config, self._spool)
        """In force; calls that began with another one finish with that."""
        self._next: Setup | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self._stop = threading.Event()
        self._poller: threading.Thread | None = None

    @property
    def config(self) -> GatewayConfig:
        """As it is in force."""
        return self.setup.config

    async def open(self) -> None:
        """Connect, and read the control state once: the first request finds it."""
        self.setup.connect()
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
        await self.drop()
        await asyncio.gather(self.setup.close(), *self._closing)
        self._spool.close()
        try:
            await asyncio.to_thread(self.store.end_worker, self.name)
        except FirstchairError:
            self.count("control_unreadable")

    # A reload, as the parent asks for it

    async def prepare(self, config: GatewayConfig) -> None:
        """Make all that calls need by ``config``; nothing changes yet. Raises ``ConfigError``."""
        await self.drop()
        made = await asyncio.to_thread(Setup, config, self._spool, self.setup)
        made.connect()
        self._next = made

    def use(self) -> None:
        """Serve every call from here on by what was prepared."""
        if self._next is None:
            return
        old, self.setup, self._next = self.setup, self._next, None
        self._close_unused(old)

    async def drop(self) -> None:
        """Forget what was prepared."""
        made, self._next = self._next, None
        if made is not None:
            await made.close()

    def take_setup(self) -> Setup:
        """The setup in force, for one call; ``give_back`` at its end."""
        self.setup.calls += 1
        return self.setup

    def give_back(self, setup: Setup) -> None:
        """A call has ended that was served with ``setup``."""
        setup.calls -= 1
        self._close_unused(setup)

    def _close_unused(self, setup: Setup) -> None:
        if setup is not self.setup and not setup.calls:
            task = asyncio.get_running_loop().create_task(setup.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

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
