"""Slots in the database: the version in force, and every version there ever was."""

from __future__ import annotations

import msgspec
from pydantic import ValidationError
from sqlalchemy import Connection, Row, and_, func, insert, select, update

from firstchair.core.config import words_of
from firstchair.core.errors import ConfigError, IntegrityError
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.control.tables import slot_versions, slots


class SlotVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a slot. Versions count from 1 and are never changed."""

    slot: str
    version: int
    config: SlotConfig | None
    """``None``: the slot was removed."""
    action: str
    """``set``, ``promote``, ``rollback``, ``remove``, or what a program of the gateway calls its change."""
    restores: int | None = None
    """For a rollback, the version whose configuration came back."""
    who: str
    why: str
    at_us: int


def _version(row: Row[tuple[object, ...]]) -> SlotVersion:
    try:
        config = None if row.config is None else SlotConfig.model_validate_json(row.config)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise IntegrityError(
            f"{where}: {words_of(problem)}; written by another version of Firstchair? set the slot anew",
            path="gateway_slot_versions",
            field=f"{row.slot} version {row.version}",
        ) from None
    return SlotVersion(
        slot=row.slot,
        version=row.version,
        config=config,
        action=row.action,
        restores=row.restores,
        who=row.who,
        why=row.why,
        at_us=row.at_us,
    )


def in_force(connection: Connection) -> list[SlotVersion]:
    """The version in force of every slot that is not removed, by name."""
    both = and_(slot_versions.c.slot == slots.c.slot, slot_versions.c.version == slots.c.version)
    rows = connection.execute(
        select(slot_versions).join(slots, both).where(slot_versions.c.config.is_not(None)).order_by(slots.c.slot)
    )
    return [_version(row) for row in rows]


def of_slot(connection: Connection, slot: str) -> list[SlotVersion]:
    """Every version of one slot, the oldest first."""
    rows = connection.execute(
        select(slot_versions).where(slot_versions.c.slot == slot).order_by(slot_versions.c.version)
    )
    return [_version(row) for row in rows]


def current(connection: Connection, slot: str) -> SlotVersion | None:
    """The version in force, a removal too; ``None`` for a slot that never was."""
    row = connection.execute(
        select(slot_versions)
        .join(slots, and_(slot_versions.c.slot == slots.c.slot, slot_versions.c.version == slots.c.version))
        .where(slots.c.slot == slot)
    ).first()
    return None if row is None else _version(row)


def required(connection: Connection, slot: str) -> tuple[SlotVersion, SlotConfig]:
    """The version in force and its configuration. Raises ``ConfigError`` for a slot that is not there."""
    found = current(connection, slot)
    if found is None or found.config is None:
        known = connection.execute(select(slots.c.slot).order_by(slots.c.slot)).scalars().all()
        raise ConfigError(f"slot: found {slot!r}; expected one of {', '.join(known) or 'none: set one first'}")
    return found, found.config


def before(connection: Connection, slot: str) -> SlotVersion:
    """The version that a rollback brings back. Raises ``ConfigError`` when there is none.

    A rollback counts as the version it brought back, so that rolling back again goes further back, never forth to
    what was just taken out of service. Removals are passed over: a rollback never leaves a slot without an answer.
    """
    found = current(connection, slot)
    if found is None:
        required(connection, slot)
        raise AssertionError("a slot without a version in force is refused")
    base = base_of(found)
    row = connection.execute(
        select(slot_versions)
        .where(slot_versions.c.slot == slot, slot_versions.c.version < base, slot_versions.c.config.is_not(None))
        .order_by(slot_versions.c.version.desc())
        .limit(1)
    ).first()
    if row is None:
        raise ConfigError(f"slot {slot}: no version before {base}; nothing to roll back to")
    return _version(row)


def base_of(version: SlotVersion) -> int:
    """The version whose configuration this is: of a rollback, the one that it brought back."""
    return version.restores or version.version


def write(connection: Connection, new: SlotVersion) -> SlotVersion:
    """Put ``new`` in force; its number is the next one, whatever it says."""
    newest = connection.execute(
        select(func.max(slot_versions.c.version)).where(slot_versions.c.slot == new.slot)
    ).scalar()
    number = int(newest or 0) + 1
    made = msgspec.structs.replace(new, version=number)
    connection.execute(
        insert(slot_versions).values(
            slot=made.slot,
            version=number,
            config=None if made.config is None else made.config.model_dump_json(),
            action=made.action,
            restores=made.restores,
            who=made.who,
            why=made.why,
            at_us=made.at_us,
        )
    )
    if newest is None:
        connection.execute(insert(slots).values(slot=made.slot, version=number))
    else:
        connection.execute(update(slots).where(slots.c.slot == made.slot).values(version=number))
    return made
