"""What the admin API takes and answers, as types: the OpenAPI document is made from them, and requests are checked
by what the document says.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from pydantic import Field

from firstchair.chat.messages import Tool
from firstchair.core.config import Strict
from firstchair.core.jsontext import loads
from firstchair.gateway.console.insight import Agreement
from firstchair.gateway.control.history import SlotVersion
from firstchair.gateway.control.keys import NewKey, StoredKey, stored_key_data
from firstchair.gateway.control.ledger import Line, Report
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.control.store import AuditEntry, Worker
from firstchair.gateway.sink import SinkStatus
from firstchair.traces.session import Session
from firstchair.traces.store import SessionRow
from firstchair.traces.times import utc_text

MAX_WHY = 2000

# --- requests ---------------------------------------------------------------------------------------------------


class PutSlot(Strict):
    """A slot, whole."""

    config: SlotConfig
    why: str = Field(default="", max_length=MAX_WHY)
    if_version: int | None = Field(default=None, ge=0, le=2**31 - 1)
    """Only when this version is in force; 0 for a slot that is new."""


class Promote(Strict):
    """The new primary, with the record of its gates or the reason to do without."""

    route: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}/[!-~]{1,256}$")
    """``provider/model``."""
    gates: dict[str, Any] | None = None
    override: str = Field(default="", max_length=MAX_WHY)
    why: str = Field(default="", max_length=MAX_WHY)


class Rollback(Strict):
    """Back to the version before, or to the one named."""

    to: int | None = Field(default=None, ge=1, le=2**31 - 1)
    why: str = Field(default="", max_length=MAX_WHY)


class Reload(Strict):
    """The file is read again."""

    why: str = Field(default="", max_length=MAX_WHY)


class CreateKey(Strict):
    """A new key."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")
    scopes: list[Literal["call", "admin", "traces"]] = Field(default=["call"], min_length=1, max_length=3)
    budget_nano: int | None = Field(default=None, ge=0, le=2**62)
    """Whole billionths of a US dollar in one period."""
    budget_period: Literal["total", "day", "month"] = "total"
    requests_per_minute: int | None = Field(default=None, ge=1, le=10_000_000)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**12)
    why: str = Field(default="", max_length=MAX_WHY)


# --- answers ----------------------------------------------------------------------------------------------------


class _View(msgspec.Struct, frozen=True, kw_only=True):
    pass


class SlotView(_View, frozen=True):
    """One version of a slot."""

    slot: str
    version: int
    config: dict[str, Any] | None
    action: str
    restores: int | None
    who: str
    why: str
    at: str

    @classmethod
    def of(cls, version: SlotVersion) -> SlotView:
        config = None if version.config is None else version.config.model_dump(mode="json")
        return cls(
            slot=version.slot,
            version=version.version,
            config=config,
            action=version.action,
            restores=version.restores,
            who=version.who,
            why=version.why,
            at=utc_text(version.at_us),
        )


class SlotList(_View, frozen=True):
    slots: list[SlotView]


class SlotHistory(_View, frozen=True):
    """The oldest first."""

    versions: list[SlotView]


class ChangeView(_View, frozen=True):
    """A change that was made."""

    slot: SlotView
    revision: int
    workers_behind: list[str]
    """Live workers that did not serve by it yet after the wait."""


class KeyView(_View, frozen=True):
    """A key; its secret is stored nowhere."""

    key_id: str
    name: str
    scopes: list[str]
    budget_nano: int | None
    budget_period: str
    spent_nano: int | None
    reserved_nano: int | None
    requests_per_minute: int | None
    tokens_per_minute: int | None
    created_at: str
    who: str
    revoked_at: str | None

    @classmethod
    def of(cls, stored: StoredKey, spent: tuple[int, int] | None) -> KeyView:
        return cls(**stored_key_data(stored, spent))


class NewKeyView(_View, frozen=True):
    """A key at the one moment at which its secret is told."""

    secret: str
    key: KeyView
    workers_behind: list[str]

    @classmethod
    def made(cls, new: NewKey, behind: tuple[str, ...]) -> NewKeyView:
        spent = None if new.key.budget_nano is None else (0, 0)
        return cls(secret=new.secret, key=KeyView.of(StoredKey(new.key, None), spent), workers_behind=list(behind))


class KeyList(_View, frozen=True):
    keys: list[KeyView]


class RevokedKey(_View, frozen=True):
    key_id: str
    name: str
    workers_behind: list[str]


class LineView(_View, frozen=True):
    """Sums over the calls of one group."""

    label: str
    """The name for people: of a key its name, not its id."""
    tokens: int
    saved_nano: int
    """What the incumbent would have cost more, over the calls that can be compared."""
    sums: Line

    @classmethod
    def of(cls, line: Line, names: dict[str, str]) -> LineView:
        label = names.get(line.name, line.name)
        return cls(label=label, tokens=line.tokens, saved_nano=line.saved_nano, sums=line)


class LedgerView(_View, frozen=True):
    """Shadow calls are summed apart: nobody was served by them."""

    by: str
    lines: list[LineView]
    total: LineView
    shadow: list[LineView]
    shadow_total: LineView

    @classmethod
    def of(cls, report: Report, names: dict[str, str]) -> LedgerView:
        return cls(
            by=report.by,
            lines=[LineView.of(line, names) for line in report.lines],
            total=LineView.of(report.total, {}),
            shadow=[LineView.of(line, names) for line in report.shadow],
            shadow_total=LineView.of(report.shadow_total, {}),
        )


class RateView(_View, frozen=True):
    """A share of ``n`` calls with its 95% interval; ``None`` throughout when there is none to take a share of."""

    value: float | None
    n: int
    low: float | None
    high: float | None


class ShadowView(_View, frozen=True):
    """How often one shadow did what the primary did."""

    slot: str
    route: str
    calls: int
    sessions: int
    """Those with a call that could be compared."""
    same: RateView
    """Of the calls that could be compared; calls of one session are not taken as independent."""
    counts: dict[str, int]
    """Calls by agreement."""
    cost_nano: int

    @classmethod
    def of(cls, line: Agreement) -> ShadowView:
        same = RateView(value=line.same.value, n=line.same.n, low=line.same.low, high=line.same.high)
        return cls(
            slot=line.slot,
            route=line.route,
            calls=line.calls,
            sessions=line.sessions,
            same=same,
            counts=line.counts,
            cost_nano=line.cost_nano,
        )


class ShadowBudgetView(_View, frozen=True):
    """What all shadow calls together may cost in a period."""

    budget_nano: int
    budget_period: Literal["total", "day", "month"]
    spent_nano: int
    """In the present period."""
    reserved_nano: int
    not_sent: int
    """Copies that were not sent because it was spent."""


class ShadowList(_View, frozen=True):
    """The busiest first."""

    shadows: list[ShadowView]
    budget: ShadowBudgetView | None
    """``null``: shadows have none."""


class CallList(_View, frozen=True):
    """Calls by column of the ledger, the oldest of them first."""

    calls: list[dict[str, Any]]
    last_seq: int
    """For ``after_seq`` of the next request."""


class WorkerList(_View, frozen=True):
    workers: list[Worker]
    revision: int


class AuditList(_View, frozen=True):
    """The newest first."""

    entries: list[AuditEntry]


class ProviderView(_View, frozen=True):
    """How the workers find one provider."""

    provider: str
    breaker: dict[str, int]
    """Workers by the state of their breaker for it: ``closed``, ``open``, ``half_open``. Empty: no worker reports."""
    failed_tries: dict[str, int]
    """Tries without an answer, by failure, since the spool began."""


class StatusView(_View, frozen=True):
    """How the gateway is doing."""

    version: str
    revision: int
    workers: list[Worker]
    workers_behind: list[str]
    sink: SinkStatus | None
    """``None``: the sink has written no status yet."""
    sink_age_s: float | None
    providers: list[ProviderView]
    lost: dict[str, int]
    """Records lost, by reason, since the spool began; so are all counters below."""
    shadow_dropped: dict[str, int]
    """Shadow copies that were never asked, by reason."""
    events: dict[str, int]
    """What went wrong beside calls, by the event of ``firstchair_events_total``."""


class SessionLine(_View, frozen=True):
    """A recorded session, without its messages."""

    session_id: str
    source: str
    created_at: str
    turns: int
    messages: int
    tool_calls: int
    tool_errors: int
    labels: dict[str, Any]

    @classmethod
    def of(cls, row: SessionRow) -> SessionLine:
        labels = loads(row.labels) if row.labels else {}
        return cls(
            session_id=row.session_id,
            source=row.source,
            created_at=row.created_at,
            turns=row.num_turns,
            messages=row.num_messages,
            tool_calls=row.num_tool_calls,
            tool_errors=row.num_tool_errors,
            labels=labels if isinstance(labels, dict) else {},
        )


class SessionList(_View, frozen=True):
    """The last to arrive first."""

    sessions: list[SessionLine]
    total: int


class SessionView(_View, frozen=True):
    session: Session
    tools: list[Tool]
