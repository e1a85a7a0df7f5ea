"""What can be done on the admin port, whoever asks for it: the API and the pages are two faces of this."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import firstchair
from firstchair.chat.messages import Tool
from firstchair.core.errors import ConfigError
from firstchair.gateway.console.insight import Agreement, ShadowBudget, shadow_agreement, shadow_budget
from firstchair.gateway.console.refusal import Refusal
from firstchair.gateway.console.views import ProviderView, StatusView
from firstchair.gateway.control.ledger import By, Report, report, tail
from firstchair.gateway.control.slots import NAME, Route, SlotConfig
from firstchair.gateway.control.snapshot import Budget
from firstchair.gateway.control.store import Change, ControlStore
from firstchair.gateway.metrics import metrics_sums, sums_by_label
from firstchair.gateway.reload import Reloaded, ask_reload
from firstchair.gateway.sink import read_status
from firstchair.traces.session import Session
from firstchair.traces.store import TraceStore


class Desk:
    """The control store, the trace store and the sink's status. Safe to share between threads."""

    def __init__(
        self,
        control: ControlStore,
        *,
        traces: str,
        spool: Path,
        shadow_budget: Callable[[], Budget | None] = lambda: None,
        wait_s: float = 5.0,
    ):
        self.control = control
        self._traces_url, self._spool, self._wait_s = traces, spool, wait_s
        self._shadow_budget = shadow_budget
        self._traces: TraceStore | None = None
        self._lock = threading.Lock()

    def close(self) -> None:
        if self._traces is not None:
            self._traces.close()

    @property
    def providers(self) -> tuple[str, ...]:
        """Names that a slot may name."""
        return self.control.providers

    def reload(self, who: str, why: str) -> Reloaded:
        """Have the gateway read its file again. Raises ``ConfigError`` when nothing was changed."""
        return ask_reload(self._spool, who=who, why=why)

    # Slots

    def required(self, slot: str) -> None:
        """Raises ``Refusal`` (404) for a slot that never was."""
        if not NAME.fullmatch(slot):
            raise Refusal(404, f"slot: found {slot[:80]!r}; expected the name of a slot", param="slot")
        try:
            self.control.history(slot)
        except ConfigError as error:
            raise Refusal(404, str(error), param="slot") from None

    def in_force(self, slot: str) -> SlotConfig:
        """The configuration of a slot. Raises ``Refusal`` (404)."""
        self.required(slot)
        config = self.control.history(slot)[-1].config
        if config is None:
            raise Refusal(404, f"slot {slot}: it was removed; a rollback brings it back", param="slot")
        return config

    def put_slot(self, config: SlotConfig, who: str, why: str, if_version: int | None) -> tuple[Change, list[str]]:
        return self._waited(self.control.put_slot(config, who=who, why=why, if_version=if_version))

    def remove_slot(self, slot: str, who: str, why: str) -> tuple[Change, list[str]]:
        self.in_force(slot)
        return self._waited(self.control.remove_slot(slot, who=who, why=why))

    def promote(
        self, slot: str, route: Route, who: str, *, why: str, gates: dict[str, Any] | None, override: str
    ) -> tuple[Change, list[str]]:
        self.in_force(slot)
        change = self.control.promote(slot, route, who=who, why=why, gates_record=gates, override=override)
        return self._waited(change)

    def rollback(self, slot: str, who: str, why: str, to: int | None) -> tuple[Change, list[str]]:
        self.required(slot)
        return self._waited(self.control.rollback(slot, who=who, why=why, to=to))

    def _waited(self, change: Change) -> tuple[Change, list[str]]:
        return change, self.behind(change.revision)

    def behind(self, revision: int) -> list[str]:
        """Live workers that do not serve by ``revision`` after the wait."""
        return list(self.control.wait_for_workers(revision, self._wait_s))

    # Ledger

    def key_names(self) -> dict[str, str]:
        """Names by id, of revoked keys too."""
        return {stored.key.key_id: stored.key.name for stored in self.control.keys(revoked=True)}

    def report(
        self, by: By, *, since_us: int | None = None, until_us: int | None = None, slot: str = ""
    ) -> tuple[Report, dict[str, str]]:
        """Sums, and the names that stand for what the lines are called."""
        with self.control.reading() as connection:
            found = report(connection, by, since_us=since_us, until_us=until_us, slot=slot)
        return found, self.key_names() if by == "key" else {}

    def calls(self, limit: int, *, after_seq: int | None = None, slot: str = "") -> list[dict[str, Any]]:
        """The newest calls, the oldest of them first."""
        with self.control.reading() as connection:
            return tail(connection, limit, after_seq=after_seq, slot=slot)

    def agreement(self, *, since_us: int | None = None, slot: str = "") -> list[Agreement]:
        """How often shadows did what the primary did."""
        with self.control.reading() as connection:
            return shadow_agreement(connection, since_us=since_us, slot=slot)

    def shadow_budget(self) -> ShadowBudget | None:
        """``None`` when shadows have none."""
        return shadow_budget(self.control, self._shadow_budget(), self._spool)

    # Status

    def status(self) -> StatusView:
        revision = self.control.revision()
        workers = self.control.workers()
        sink = read_status(self._spool)
        sums = metrics_sums(self._spool)
        return StatusView(
            version=firstchair.__version__,
            revision=revision,
            workers=workers,
            workers_behind=[worker.worker for worker in workers if worker.seen_revision < revision],
            sink=sink,
            sink_age_s=None if sink is None else round(max(0.0, time.time() - sink.at_us / 1e6), 3),
            providers=self._provider_views(sums),
            lost=_by_one(sums, "firstchair_spool_lost_total", "reason"),
            shadow_dropped=_by_one(sums, "firstchair_shadow_dropped_total", "reason"),
            events=_by_one(sums, "firstchair_events_total", "event"),
        )

    def _provider_views(self, sums: Mapping[str, float]) -> list[ProviderView]:
        breakers = sums_by_label(sums, "firstchair_breaker_workers", "provider", "state")
        failures = sums_by_label(sums, "firstchair_attempt_failures_total", "provider", "failure")
        names = {*self.providers, *(provider for provider, _ in breakers)}
        return [
            ProviderView(
                provider=name,
                breaker={state: n for (provider, state), n in breakers.items() if provider == name},
                failed_tries={failure: n for (provider, failure), n in failures.items() if provider == name},
            )
            for name in sorted(names)
        ]

    # Sessions

    def traces(self) -> TraceStore | None:
        """The trace store; ``None`` while there is none yet."""
        with self._lock:
            if self._traces is None:
                try:
                    self._traces = TraceStore.open(self._traces_url, must_exist=True)
                except ConfigError:
                    return None
            return self._traces

    def session(self, session_id: str) -> tuple[Session, tuple[Tool, ...]]:
        """A session and the tools it was offered. Raises ``Refusal`` (404)."""
        store = self.traces()
        if store is not None:
            try:
                session = store.get(session_id)
            except ConfigError:
                pass
            else:
                return session, store.tools(session.catalog_id)
        raise Refusal(
            404, f"session: found {session_id[:80]!r}; expected one that was recorded here", param="session"
        )


def _by_one(sums: Mapping[str, float], family: str, label: str) -> dict[str, int]:
    return {value: n for (value,), n in sums_by_label(sums, family, label).items()}
