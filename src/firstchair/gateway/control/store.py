"""The control state in its database, shared by every process of the gateway and by the command line.

    CLI, admin API ── put_slot, promote, rollback, create_key … ──> tables, revision + 1, audit log
    worker ── revision() often, snapshot() when it moved, heartbeat(seen) ──> a change holds on the next request

Any number of stores may be open on one database. A change is one transaction: all of it or nothing, with its line
in the audit log.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Connection, Engine, delete, insert, inspect, select, update

from firstchair.core.errors import ConfigError
from firstchair.gateway.control import budgets, gates, history, keys, tables
from firstchair.gateway.control.history import SlotVersion
from firstchair.gateway.control.keys import KeyLimits, NewKey, StoredKey
from firstchair.gateway.control.slots import Route, SlotConfig, check_no_overlap, promoted
from firstchair.gateway.control.snapshot import Budget, Key, Snapshot
from firstchair.traces.database import OpenDatabase, open_engine, reading, store_url, use_wal, writing

if TYPE_CHECKING:
    from firstchair.gateway.config import Provider

LIVE_S = 2.0
"""A worker without a heartbeat for longer does not count. Clocks of several hosts must agree to within a second."""
GONE_S = 60.0
"""A worker without a heartbeat for longer is forgotten, and what it had reserved counts as spent."""
MAX_TEXT = 2000
NO_LIMITS = KeyLimits()
_REVISION = f"SELECT number FROM {tables.info.name} WHERE name = 'revision'"


class Change(msgspec.Struct, frozen=True):
    """What a change of a slot made."""

    version: SlotVersion
    revision: int


class Edit(msgspec.Struct, frozen=True):
    """One slot of several that were set together."""

    before: SlotVersion | None
    """In force until then; a removal too."""
    after: SlotConfig
    change: Change | None
    """``None``: nothing was written, because it stood so already or was only tried."""

    @property
    def is_change(self) -> bool:
        return self.before is None or self.before.config != self.after


class Worker(msgspec.Struct, frozen=True):
    """A worker as it last reported."""

    worker: str
    started_us: int
    heartbeat_us: int
    seen_revision: int


class AuditEntry(msgspec.Struct, frozen=True):
    """One line of the audit log."""

    seq: int
    at_us: int
    who: str
    action: str
    target: str
    why: str
    details: dict[str, Any]


def _now_us() -> int:
    return time.time_ns() // 1000


class ControlStore(OpenDatabase):
    """An open control database. Safe to share between threads."""

    def __init__(
        self, engine: Engine, *, providers: Mapping[str, Provider] | None = None, now_us: Callable[[], int] = _now_us
    ):
        super().__init__(engine)
        self._now_us = now_us
        self._providers = providers

    @classmethod
    def open(
        cls,
        url: str | Path,
        *,
        must_exist: bool = False,
        providers: Mapping[str, Provider] | None = None,
        now_us: Callable[[], int] = _now_us,
    ) -> ControlStore:
        """Open (and, unless ``must_exist``, create) the database at ``url``, as ``TraceStore.open`` takes it.

        ``providers`` are those of the config file; a slot that names another is then refused. Raises
        ``ConfigError`` for a wrong URL or another layout, ``UpstreamError`` when a server cannot be reached.
        """
        parsed = store_url(url)
        engine = open_engine(parsed, must_exist=must_exist)
        if parsed.get_backend_name() == "sqlite":
            # Whoever makes it, a command or the gateway: recordings will stand in it. SQLite's other files follow it.
            with contextlib.suppress(OSError):
                os.close(os.open(str(parsed.database), os.O_CREAT | os.O_RDWR, 0o600))
        with reading(engine) as connection:
            layout = _layout(connection)
            others = [] if layout else inspect(connection).get_table_names()
        if layout is None:
            where = engine.url.render_as_string(hide_password=True)
            if must_exist:
                raise ConfigError(
                    f"{where}: no gateway database; start the gateway once, or correct --db or --config"
                )
            if others and engine.dialect.name == "sqlite" and "store_info" not in others:
                raise ConfigError(
                    f"{where}: a database of another program (with the table {others[0]}); name another file"
                )
            use_wal(engine)
            with writing(engine) as connection:
                tables.metadata.create_all(connection)
                layout = _layout(connection)
                if layout is None:
                    layout = tables.LAYOUT
                    rows = [{"name": "layout", "value": layout, "number": 0}]
                    rows.append({"name": "revision", "value": "", "number": 0})
                    connection.execute(insert(tables.info), rows)
        if layout != tables.LAYOUT:
            raise ConfigError(
                f"gateway database: found layout {layout}; this program knows {tables.LAYOUT}; "
                "use the version that wrote it, or name another database"
            )
        return cls(engine, providers=providers, now_us=now_us)

    @property
    def providers(self) -> tuple[str, ...]:
        """Names that a slot may name; none when they are not known here."""
        return tuple(sorted(self._providers or ()))

    def use_providers(self, providers: Mapping[str, Provider]) -> None:
        """Those of the config file, which was read again."""
        self._providers = providers

    def _brief(self) -> AbstractContextManager[Connection]:
        """A transaction that begins with its write of one row: on PostgreSQL it waits for that row alone."""
        return reading(self._engine)

    # What workers read

    def revision(self) -> int:
        """Moves with every change. Cheap."""
        with reading(self._engine) as connection:
            return _revision(connection)

    def snapshot(self) -> Snapshot:
        """Slots and live keys, as they are now."""
        with reading(self._engine) as connection:
            revision = _revision(connection)
            found = history.in_force(connection)
            live = [stored.key for stored in keys.listed(connection, revoked=False)]
        configs = [version.config for version in found if version.config is not None]
        return Snapshot(revision, configs, {version.slot: version.version for version in found}, live)

    # Slots

    def put_slot(
        self, slot: SlotConfig, *, who: str, why: str = "", action: str = "set", if_version: int | None = None
    ) -> Change:
        """Set a slot, new or not. With ``if_version`` only when that is the version in force (0: none).

        Raises ``ConfigError`` for a provider that is not configured, a name that another slot matches, or when
        somebody else was quicker.
        """
        self._check_providers(slot)
        with self.transaction() as connection:
            _check_version(slot.slot, history.current(connection, slot.slot), if_version)
            return self._write(connection, slot, action=action, who=who, why=why)

    def put_slots(
        self,
        slots: Sequence[SlotConfig],
        *,
        who: str,
        why: str = "",
        if_version: int | None = None,
        dry_run: bool = False,
    ) -> list[Edit]:
        """Set slots, all of them or none; those that stand so already get no new version.

        ``if_version`` as in ``put_slot``, for one slot. With ``dry_run`` all is checked and nothing written. Raises
        ``ConfigError`` as ``put_slot`` does; names that two slots match are told by how all would stand then.
        """
        names = [slot.slot for slot in slots]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ConfigError(f"slots: {twice} stands twice; slot names are unique")
        if if_version is not None and len(slots) != 1:
            raise ConfigError(f"if_version: found {len(slots)} slots; expected one slot, whose version is meant")
        for slot in slots:
            self._check_providers(slot)
        with self.reading() if dry_run else self.transaction() as connection:
            others = [one.config for one in history.in_force(connection) if one.slot not in names]
            check_no_overlap([*slots, *(config for config in others if config is not None)])
            edits = [Edit(history.current(connection, slot.slot), slot, None) for slot in slots]
            if if_version is not None:
                _check_version(names[0], edits[0].before, if_version)
            if dry_run:
                return edits
            return [
                msgspec.structs.replace(
                    edit,
                    change=self._commit(connection, self._new(edit.after.slot, edit.after, "set", who, why), {}),
                )
                if edit.is_change
                else edit
                for edit in edits
            ]

    def add_missing(self, slots: Iterable[SlotConfig], *, who: str, why: str = "") -> list[Change]:
        """Set the slots that the database never had: what a config file brings is a start, not an override."""
        made: list[Change] = []
        with self.transaction() as connection:
            for slot in slots:
                self._check_providers(slot)
                if history.current(connection, slot.slot) is None:
                    made.append(self._write(connection, slot, action="set", who=who, why=why))
        return made

    def remove_slot(self, slot: str, *, who: str, why: str = "") -> Change:
        """Take a slot out of service; its history stays, and a rollback brings it back."""
        with self.transaction() as connection:
            history.required(connection, slot)
            new = self._new(slot, None, "remove", who, why)
            return self._commit(connection, new, {})

    def promote(
        self,
        slot: str,
        route: Route,
        *,
        who: str,
        why: str = "",
        gates_record: Mapping[str, Any] | None = None,
        override: str = "",
    ) -> Change:
        """Make ``route`` the primary; the old primary stays armed as the first fallback.

        Wants the gates' record for this very route (``gates.read_gates``), or the reason to do without; either is
        kept in the audit log. Raises ``ConfigError``.
        """
        if (gates_record is None) == (not override.strip()):
            raise ConfigError("promote: expected the record of the gates, or an override with its reason; give one")
        if gates_record is not None:
            provider = (self._providers or {}).get(route.provider)
            gates.check_gates(gates_record, slot, route, provider.template_hash if provider else None)
        with self.transaction() as connection:
            _, config = history.required(connection, slot)
            new = promoted(config, route)
            self._check_providers(new)
            details: dict[str, Any] = {"from": str(config.primary), "to": str(route)}
            details |= {"override": override} if gates_record is None else {"gates": dict(gates_record)}
            return self._write(connection, new, action="promote", who=who, why=why or override, details=details)

    def rollback(
        self, slot: str, *, who: str, why: str = "", to: int | None = None, if_version: int | None = None
    ) -> Change:
        """Bring back the configuration of the previous version, or of version ``to``, as a new version.

        After a rollback the previous version is the one before that which was brought back. With ``if_version`` only
        when that is the version in force.
        """
        with self.transaction() as connection:
            _check_version(slot, history.current(connection, slot), if_version)
            if to is None:
                old = history.before(connection, slot)
            else:
                versions = {version.version: version for version in history.of_slot(connection, slot)}
                if to not in versions:
                    raise ConfigError(f"slot {slot}: found no version {to}; expected 1 to {len(versions)}")
                old = versions[to]
            if old.config is None:
                raise ConfigError(f"slot {slot}: version {to} is its removal; remove it, or name another version")
            self._check_providers(old.config)
            self._check_overlap(connection, old.config)
            new = self._new(slot, old.config, "rollback", who, why)
            new = msgspec.structs.replace(new, restores=history.base_of(old))
            return self._commit(connection, new, {"to_version": old.version})

    def history(self, slot: str) -> list[SlotVersion]:
        """Every version of a slot, the oldest first. Raises ``ConfigError`` for a slot that never was."""
        with reading(self._engine) as connection:
            found = history.of_slot(connection, slot)
            if not found:
                history.required(connection, slot)
            return found

    def slots(self) -> list[SlotVersion]:
        """The version in force of every slot, by name."""
        with reading(self._engine) as connection:
            return history.in_force(connection)

    def _check_providers(self, slot: SlotConfig) -> None:
        if self._providers is None:
            return
        routes = [slot.primary, *slot.fallbacks, *slot.shadow, *([slot.canary.route] if slot.canary else [])]
        for route in routes:
            if route.provider not in self._providers:
                raise ConfigError(
                    f"slot {slot.slot}: provider: found {route.provider!r}; expected one of "
                    f"{', '.join(sorted(self._providers)) or 'none'}; add it to the config file"
                )

    def _check_overlap(self, connection: Connection, slot: SlotConfig) -> None:
        others = (version.config for version in history.in_force(connection) if version.slot != slot.slot)
        check_no_overlap([slot, *(config for config in others if config is not None)])

    def _new(self, slot: str, config: SlotConfig | None, action: str, who: str, why: str) -> SlotVersion:
        who, why = _text("who", who), _text("why", why, empty=True)
        return SlotVersion(slot=slot, version=0, config=config, action=action, who=who, why=why, at_us=self._now_us())

    def _write(
        self,
        connection: Connection,
        slot: SlotConfig,
        *,
        action: str,
        who: str,
        why: str,
        details: Mapping[str, Any] | None = None,
    ) -> Change:
        self._check_overlap(connection, slot)
        return self._commit(connection, self._new(slot.slot, slot, action, who, why), details or {})

    def _commit(self, connection: Connection, new: SlotVersion, details: Mapping[str, Any]) -> Change:
        made = history.write(connection, new)
        self._log(
            connection, made.who, f"slot.{made.action}", made.slot, made.why, {**details, "version": made.version}
        )
        return Change(made, _bump(connection))

    # Keys and budgets

    def create_key(
        self, name: str, scopes: Sequence[str] = ("call",), limits: KeyLimits = NO_LIMITS, *, who: str, why: str = ""
    ) -> NewKey:
        """A new key; its secret is told here and never again."""
        who, why = _text("who", who), _text("why", why, empty=True)
        with self.transaction() as connection:
            made = keys.create(connection, name, scopes, limits, who=who, now_us=self._now_us())
            details = {"name": name, "scopes": sorted(made.key.scopes), **limits.model_dump(exclude_none=True)}
            self._log(connection, who, "key.create", made.key.key_id, why, details)
            _bump(connection)
        return made

    def revoke_key(self, key: str, *, who: str, why: str = "") -> Key:
        """End the live key of this id or name."""
        who, why = _text("who", who), _text("why", why, empty=True)
        with self.transaction() as connection:
            found = keys.revoke(connection, key, self._now_us())
            self._log(connection, who, "key.revoke", found.key_id, why, {"name": found.name})
            _bump(connection)
        return found

    def keys(self, *, revoked: bool = False) -> list[StoredKey]:
        """Live keys in order of creation; with ``revoked`` all of them."""
        with reading(self._engine) as connection:
            return keys.listed(connection, revoked=revoked)

    def open_account(self, account: str) -> None:
        """Let an account that is no key's be charged; again, it changes nothing."""
        with self.transaction() as connection:
            budgets.open_account(connection, account)

    def reserve(self, account: str, nano: int, *, worker: str = "", budget: Budget | None = None) -> bool:
        """Set money aside before a call; ``False``: the budget does not allow it. Atomic between all processes.

        ``account`` is the id of a key, or one that was opened, with its ``budget``.
        """
        with self._brief() as connection:
            return budgets.reserve(connection, account, nano, worker=worker, now_us=self._now_us(), budget=budget)

    def settle(
        self, account: str, reserved: int, actual: int, *, worker: str = "", budget: Budget | None = None
    ) -> None:
        """Give back what was reserved, and count what the call did cost."""
        now_us = self._now_us()
        with self._brief() as connection:
            budgets.settle(connection, account, reserved, actual, worker=worker, now_us=now_us, budget=budget)

    def spend(self, account: str, budget: Budget | None = None) -> budgets.Spend | None:
        """Spent and reserved in the present period; ``None`` for a key without a budget."""
        with reading(self._engine) as connection:
            return budgets.spend_of(connection, account, self._now_us(), budget)

    # Workers

    def heartbeat(self, worker: str, seen_revision: int) -> None:
        """This worker lives, and serves by this revision."""
        now = self._now_us()
        with self._brief() as connection:
            done = connection.execute(
                update(tables.workers)
                .where(tables.workers.c.worker == worker)
                .values(heartbeat_us=now, seen_revision=seen_revision)
            )
            if not done.rowcount:
                connection.execute(
                    insert(tables.workers).values(
                        worker=worker, started_us=now, heartbeat_us=now, seen_revision=seen_revision
                    )
                )

    def end_worker(self, worker: str) -> None:
        """This worker is gone; what it had reserved counts as spent."""
        with self.transaction() as connection:
            budgets.spend_reserved(connection, worker)
            connection.execute(delete(tables.workers).where(tables.workers.c.worker == worker))

    def forget_gone_workers(self) -> list[str]:
        """``end_worker`` for those that have been silent too long; their names."""
        limit = self._now_us() - int(GONE_S * 1e6)
        with reading(self._engine) as connection:
            silent = select(tables.workers.c.worker).where(tables.workers.c.heartbeat_us < limit)
            names = list(connection.execute(silent.order_by(tables.workers.c.worker)).scalars())
        for name in names:
            self.end_worker(name)
        return names

    def workers(self) -> list[Worker]:
        """Live workers, by name."""
        limit = self._now_us() - int(LIVE_S * 1e6)
        with reading(self._engine) as connection:
            live = (
                select(tables.workers).where(tables.workers.c.heartbeat_us >= limit).order_by(tables.workers.c.worker)
            )
            return [Worker(*row) for row in connection.execute(live)]

    def wait_for_workers(self, revision: int, timeout_s: float = 5.0, *, poll_s: float = 0.02) -> tuple[str, ...]:
        """Wait until every live worker serves by ``revision``; the names of those that do not yet."""
        deadline = time.monotonic() + timeout_s
        while True:
            behind = tuple(worker.worker for worker in self.workers() if worker.seen_revision < revision)
            if not behind or time.monotonic() >= deadline:
                return behind
            time.sleep(poll_s)

    # Audit log

    def audit(
        self, who: str, action: str, target: str, why: str = "", details: Mapping[str, Any] | None = None
    ) -> None:
        """Add a line, for what is not a change of a slot or key (those write their own)."""
        with self.transaction() as connection:
            self._log(connection, _text("who", who), action, target, _text("why", why, empty=True), details or {})

    def audit_log(self, limit: int = 100, *, target: str = "") -> list[AuditEntry]:
        """The newest lines, the newest first; of one slot or key when it is named."""
        query = select(tables.audit).order_by(tables.audit.c.seq.desc()).limit(limit)
        if target:
            query = query.where(tables.audit.c.target == target)
        with reading(self._engine) as connection:
            rows = [row._asdict() for row in connection.execute(query)]
        return [AuditEntry(**{**row, "details": json.loads(row["details"])}) for row in rows]

    def _log(
        self, connection: Connection, who: str, action: str, target: str, why: str, details: Mapping[str, Any]
    ) -> None:
        connection.execute(
            insert(tables.audit).values(
                at_us=self._now_us(),
                who=who,
                action=action,
                target=target,
                why=why,
                details=json.dumps(details),  # escapes U+0000, which PostgreSQL has no room for
            )
        )


def _check_version(slot: str, found: SlotVersion | None, expected: int | None) -> None:
    version = found.version if found else 0
    if expected is not None and version != expected:
        raise ConfigError(
            f"slot {slot}: found version {version}; expected {expected}: it was changed meanwhile; "
            "look at it and set it again"
        )


def _layout(connection: Connection) -> str | None:
    """``None`` when the gateway has no tables here."""
    if not inspect(connection).has_table(tables.info.name):
        return None
    return connection.execute(select(tables.info.c.value).where(tables.info.c.name == "layout")).scalar()


def _revision(connection: Connection) -> int:
    # In the driver's own words, at half the price: every worker asks twenty times a second.
    return int(connection.exec_driver_sql(_REVISION).scalar_one())


def _bump(connection: Connection) -> int:
    connection.execute(
        update(tables.info).where(tables.info.c.name == "revision").values(number=tables.info.c.number + 1)
    )
    return _revision(connection)


def _text(name: str, text: str, *, empty: bool = False) -> str:
    """``text`` for the log. Raises ``ConfigError``: who did it must be said, and a line is a line."""
    if len(text) > MAX_TEXT or "\0" in text or not (empty or text.strip()):
        raise ConfigError(
            f"{name}: found {text[:40]!r}; expected {'at most' if empty else '1 to'} {MAX_TEXT} characters"
        )
    return text
