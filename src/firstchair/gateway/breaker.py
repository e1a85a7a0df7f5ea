"""One provider's circuit breaker: a pure state machine, the clock handed in.

    CLOSED ── `failures` in a row within `window_s` ──→ OPEN ── pause over ──→ HALF_OPEN ── probe answers ──→ CLOSED
                                                         ↑                        │
                                                         └── probe fails: pause × 2 ┘

While it is open the provider is skipped; half open, one call at a time is let through as a probe. Only what says
something about the provider counts: a request that the client got wrong, or that it gave up, says nothing.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from firstchair.gateway.dialects.base import FailureKind

TRIPS = frozenset(
    {
        FailureKind.CONNECT,
        FailureKind.TIMEOUT,
        FailureKind.SERVER_ERROR,
        FailureKind.OVERLOADED,
        FailureKind.BAD_ANSWER,
    }
)
"""What counts against a provider. A 429 does not: it concerns one key's quota, has its own ``retry-after``, and the
next route is tried at once anyway."""


class BreakerState(StrEnum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True)
class BreakerRules:
    """See ``BreakerConfig``."""

    failures: int = 5
    window_s: float = 30.0
    open_s: float = 10.0
    max_open_s: float = 120.0


class Breaker:
    """Ask ``allows`` before a call, tell ``answered``, ``failed`` or ``abandoned`` after it. Times in seconds."""

    def __init__(self, rules: BreakerRules):
        self._rules = rules
        self._recent: deque[float] = deque(maxlen=rules.failures)
        self._until = 0.0
        self._pause_s = rules.open_s
        self._open = False
        self._probe_since: float | None = None

    def state(self, now: float) -> BreakerState:
        if not self._open:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self._until else BreakerState.HALF_OPEN

    def allows(self, now: float) -> bool:
        """Whether a call may go out now. Half open, the first to ask becomes the probe and must report back."""
        if not self._open:
            return True
        if now < self._until:
            return False
        # A probe that never reports (a bug, a killed task) must not lock the provider out for ever.
        if self._probe_since is not None and now - self._probe_since < self._rules.max_open_s:
            return False
        self._probe_since = now
        return True

    def wait_s(self, now: float) -> float:
        """Seconds until the next call may be let through; 0 when one may now."""
        return max(0.0, self._until - now) if self._open else 0.0

    def answered(self) -> None:
        """The provider did its work, be it by refusing a bad request."""
        self._recent.clear()
        self._open, self._probe_since, self._pause_s = False, None, self._rules.open_s

    def failed(self, kind: FailureKind, now: float) -> None:
        """A call failed with ``kind``."""
        if kind not in TRIPS:
            if kind is FailureKind.RATE_LIMIT:
                self.abandoned()
            else:
                self.answered()
            return
        if self._open:
            if self._probe_since is not None:
                self._pause_s = min(self._pause_s * 2, self._rules.max_open_s)
                self._probe_since, self._until = None, now + self._pause_s
            return
        self._recent.append(now)
        if len(self._recent) == self._rules.failures and now - self._recent[0] <= self._rules.window_s:
            self._open, self._until = True, now + self._pause_s
            self._recent.clear()

    def abandoned(self) -> None:
        """The call ended without saying anything about the provider (the client left). A probe may be repeated."""
        self._probe_since = None
