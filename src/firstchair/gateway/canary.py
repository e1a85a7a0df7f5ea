"""The canary's judge: what it answered so far, whether that is within its bands, and the rollback when it is not.

    ledger (all workers) ──→ windows by variant ──→ judge ──→ keep
                                                         └──→ roll back, if the slot is still at the judged version

The ledger is the one place where the calls of all workers meet, so no window has to be added up from parts, and a
restart forgets nothing. A window holds the calls of one slot version: after a change of the slot it begins anew.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from sqlalchemy import Connection, case, distinct, func, select

from firstchair.core.errors import ConfigError, FirstchairError
from firstchair.gateway.control.history import SlotVersion
from firstchair.gateway.control.slots import Bands, Route
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.control.tables import ledger
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.records import Outcome

_logger = logging.getLogger("firstchair.gateway")

WINDOW_S = 900.0
MAX_CALLS = 5000
"""Of one window, the newest ones."""
EVERY_S = 1.0
_CLIENTS_FAULT = frozenset({FailureKind.BAD_REQUEST.value, FailureKind.TOO_LARGE.value})


@dataclass
class Window:
    """Calls of one variant."""

    calls: int = 0
    errors: int = 0
    malformed: int = 0
    """Answers with a tool call that no tool can take."""
    latencies_ms: list[float] = field(default_factory=list)
    """Of answered calls."""

    @property
    def error_rate(self) -> float:
        return self.errors / self.calls if self.calls else 0.0

    @property
    def malformed_rate(self) -> float:
        return self.malformed / self.calls if self.calls else 0.0

    @property
    def p95_ms(self) -> float | None:
        """The least latency that 95 of 100 answers keep to; ``None`` without answers."""
        if not self.latencies_ms:
            return None
        return sorted(self.latencies_ms)[math.ceil(0.95 * len(self.latencies_ms)) - 1]

    def slower_than(self, limit_ms: float) -> int:
        return sum(latency > limit_ms for latency in self.latencies_ms)


class Decision(NamedTuple):
    """What is to be done, and why: the band that was left, or why nothing can be said."""

    action: Literal["keep", "roll back"]
    reason: str


def judge(window: Window, baseline: Window, bands: Bands) -> Decision:
    """Whether the canary stays.

    Below ``min_calls`` the calls that are missing count as good ones: a rollback then comes early only where it is
    certain to come. Where the baseline (the primary meanwhile, with as many calls) is no better, the fault is not the
    canary's and it stays.
    """
    enough = max(window.calls, bands.min_calls)
    found: list[tuple[str, float, float, float]] = [
        ("error rate", window.errors / enough, bands.error_rate, baseline.error_rate),
        ("malformed rate", window.malformed / enough, bands.malformed_rate, baseline.malformed_rate),
    ]
    if bands.p95_ms is not None:
        answered = max(len(window.latencies_ms), bands.min_calls)
        slow = baseline.slower_than(bands.p95_ms) / max(1, len(baseline.latencies_ms))
        name = f"share of answers slower than {bands.p95_ms:g} ms"
        found.append((name, window.slower_than(bands.p95_ms) / answered, 0.05, slow))
    no_better = ""
    for name, share, limit, usual in found:
        if share <= limit:
            continue
        if baseline.calls >= bands.min_calls and usual >= share:
            no_better = f"{name} {share:.1%} is above {limit:.1%}, but the primary's is {usual:.1%}"
            continue
        return Decision("roll back", f"{name} {share:.1%} of {window.calls} calls is above {limit:.1%}")
    if no_better:
        return Decision("keep", no_better)
    if window.calls < bands.min_calls:
        return Decision("keep", f"{window.calls} of {bands.min_calls} calls")
    return Decision("keep", "within its bands")


class CanaryState(NamedTuple):
    """A canary as it stands."""

    slot: str
    version: int
    route: Route
    percent: float
    window: Window
    baseline: Window
    decision: Decision
    mixed_sessions: tuple[str, ...]


def windows(connection: Connection, slot: str, version: int, canary: Route, since_us: int) -> tuple[Window, Window]:
    """The canary's window and the primary's."""
    rows = connection.execute(
        select(
            ledger.c.variant,
            ledger.c.outcome,
            ledger.c.failure,
            ledger.c.attempts,
            ledger.c.latency_ms,
            ledger.c.malformed_calls,
        )
        .where(
            ledger.c.slot == slot,
            ledger.c.slot_version == version,
            ledger.c.received_us >= since_us,
            ledger.c.variant != "shadow",
        )
        .order_by(ledger.c.received_us.desc())
        .limit(MAX_CALLS)
    )
    return gathered(rows, canary)


def gathered(rows: Iterable[Any], canary: Route) -> tuple[Window, Window]:
    """Ledger rows as the canary's and the primary's window.

    A call that a fallback answered is no answer of the variant that it was meant for: there it is an error.
    """
    found: dict[str, Window] = defaultdict(Window)
    for row in rows:
        if row.variant == "fallback":
            attempts: list[dict[str, Any]] = json.loads(row.attempts)
            first = attempts[0] if attempts else {}
            meant = (first.get("provider"), first.get("model")) == (canary.provider, canary.model)
            _failed(found["canary" if meant else "primary"], first.get("failure"))
        elif row.outcome in (Outcome.FAILED, Outcome.INCOMPLETE):
            _failed(found[row.variant], row.failure)
        elif row.outcome == Outcome.OK:
            window = found[row.variant]
            window.calls += 1
            window.malformed += row.malformed_calls > 0
            window.latencies_ms.append(row.latency_ms)
    return found["canary"], found["primary"]


def _failed(window: Window, failure: str | None) -> None:
    if failure is None or failure in _CLIENTS_FAULT:
        return
    window.calls += 1
    if failure == FailureKind.MALFORMED_CALL:
        window.malformed += 1
    else:
        window.errors += 1


def mixed_sessions(connection: Connection, slot: str, since_us: int, limit: int = 100) -> tuple[str, ...]:
    """Sessions of ``slot`` that both the primary and the canary have answered: no evidence for either."""
    variants = func.count(distinct(case((ledger.c.variant.in_(("primary", "canary")), ledger.c.variant))))
    query = (
        select(ledger.c.session)
        .where(ledger.c.slot == slot, ledger.c.received_us >= since_us, ledger.c.session != "")
        .group_by(ledger.c.session)
        .having(variants > 1)
        .order_by(ledger.c.session)
        .limit(limit)
    )
    return tuple(connection.execute(query).scalars())


def canary_state(
    store: ControlStore, version: SlotVersion, *, now_us: int, window_s: float = WINDOW_S
) -> CanaryState | None:
    """The canary of ``version``, judged; nothing is changed. ``None``: it has none, or one that gets no calls."""
    config = version.config
    if config is None or config.canary is None or config.canary.percent <= 0:
        return None
    canary, since_us = config.canary, now_us - int(window_s * 1e6)
    with store.reading() as connection:
        window, baseline = windows(connection, version.slot, version.version, canary.route, since_us)
        mixed = mixed_sessions(connection, version.slot, since_us)
    return CanaryState(
        slot=version.slot,
        version=version.version,
        route=canary.route,
        percent=canary.percent,
        window=window,
        baseline=baseline,
        decision=judge(window, baseline, canary.bands),
        mixed_sessions=mixed,
    )


def canary_states(store: ControlStore, *, now_us: int, window_s: float = WINDOW_S) -> list[CanaryState]:
    """Every canary in force, judged."""
    states = [canary_state(store, version, now_us=now_us, window_s=window_s) for version in store.slots()]
    return [state for state in states if state is not None]


def roll_back(store: ControlStore, slot: str, version: int, reason: str) -> bool:
    """Take the canary of ``version`` out of the slot; ``False`` when the slot has been changed since.

    Everything else of the slot stays. Where an earlier version was just that, the rollback counts as that version.
    """
    history: Mapping[int, SlotVersion] = {one.version: one for one in store.history(slot)}
    judged = history[version].config
    if judged is None or judged.canary is None:
        return False
    without = judged.model_copy(update={"canary": None})
    earlier = [number for number, one in history.items() if number < version and one.config == without]
    try:
        if earlier:
            store.rollback(slot, who="canary", why=reason, to=max(earlier), if_version=version)
        else:
            store.put_slot(without, who="canary", why=reason, action="rollback", if_version=version)
    except ConfigError:
        if store.history(slot)[-1].version == version:
            raise
        return False
    return True


class CanaryWatch:
    """Judges every canary about once a second. Several may run: only one rollback takes effect."""

    def __init__(self, store: ControlStore, *, window_s: float = WINDOW_S):
        self._store, self._window_s = store, window_s
        self._told: set[tuple[str, str]] = set()

    def check(self, now_us: int) -> list[CanaryState]:
        """Judge once; those that this watch rolled back."""
        rolled: list[CanaryState] = []
        for state in canary_states(self._store, now_us=now_us, window_s=self._window_s):
            for session in state.mixed_sessions:
                if (state.slot, session) not in self._told and len(self._told) < MAX_CALLS:
                    self._told.add((state.slot, session))
                    _logger.warning("slot %s: a session saw both primary and canary", state.slot)
            if state.decision.action == "roll back" and roll_back(
                self._store, state.slot, state.version, state.decision.reason
            ):
                _logger.warning("slot %s: canary %s rolled back: %s", state.slot, state.route, state.decision.reason)
                rolled.append(state)
        return rolled

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``. A database that cannot be read now is asked again."""
        while not stop.wait(EVERY_S):
            try:
                self.check(time.time_ns() // 1000)
            except FirstchairError as error:
                _logger.warning("canaries cannot be judged: %s", error)
                stop.wait(EVERY_S * 10)
