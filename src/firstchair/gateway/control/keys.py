"""API keys in the database: of a secret only its SHA-256 is there."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, get_args

import msgspec
from pydantic import Field
from sqlalchemy import Connection, Row, insert, select, update

from firstchair.core.config import Strict
from firstchair.core.errors import ConfigError
from firstchair.gateway.control.slots import check_name
from firstchair.gateway.control.snapshot import BudgetPeriod, Key, Scope, secret_digest
from firstchair.gateway.control.tables import budgets, keys
from firstchair.traces.times import utc_text

PREFIX = "fc_"
"""Lets scanners of leaked secrets know one."""
SCOPES: tuple[Scope, ...] = get_args(Scope)


class KeyLimits(Strict):
    """What a key may use; ``None``: no limit."""

    budget_nano: int | None = Field(default=None, ge=0, le=2**62)
    """Whole nano-USD in one period."""
    budget_period: BudgetPeriod = "total"
    requests_per_minute: int | None = Field(default=None, ge=1, le=10_000_000)
    tokens_per_minute: int | None = Field(default=None, ge=1, le=10**12)


class NewKey(msgspec.Struct, frozen=True):
    """A key at the one moment at which its secret is known."""

    key: Key
    secret: str


class StoredKey(msgspec.Struct, frozen=True):
    """A key as listed, revoked ones too."""

    key: Key
    revoked_us: int | None


def key_data(key: Key) -> dict[str, Any]:
    """A key as commands and API tell of it."""
    return {
        "key_id": key.key_id,
        "name": key.name,
        "scopes": sorted(key.scopes),
        "budget_nano": key.budget_nano,
        "budget_period": key.budget_period,
        "requests_per_minute": key.requests_per_minute,
        "tokens_per_minute": key.tokens_per_minute,
        "created_at": utc_text(key.created_us),
        "who": key.who,
    }


def stored_key_data(stored: StoredKey, spend: tuple[int, int] | None) -> dict[str, Any]:
    """The same with what it has spent and set aside (``None``: no budget), and when it was revoked."""
    return {
        **key_data(stored.key),
        "spent_nano": spend[0] if spend else None,
        "reserved_nano": spend[1] if spend else None,
        "revoked_at": None if stored.revoked_us is None else utc_text(stored.revoked_us),
    }


def create(
    connection: Connection, name: str, scopes: Sequence[str], limits: KeyLimits, *, who: str, now_us: int
) -> NewKey:
    """A new key. Raises ``ConfigError`` for a wrong name or scope, or a name that a live key has."""
    try:
        check_name(name)
    except ValueError as error:
        raise ConfigError(f"key: name: {error}; found {name!r}") from None
    for scope in scopes:
        if scope not in SCOPES:
            raise ConfigError(f"key: scope: found {scope!r}; expected one of {', '.join(SCOPES)}")
    if not scopes:
        raise ConfigError(f"key: scope: found none; expected one or more of {', '.join(SCOPES)}")
    taken = select(keys.c.key_id).where(keys.c.name == name, keys.c.revoked_us.is_(None))
    if connection.execute(taken).first() is not None:
        raise ConfigError(f"key: name: {name!r} is taken by a live key; revoke that one or use another name")
    secret = PREFIX + secrets.token_urlsafe(32)
    key = Key(
        key_id=f"key_{secrets.token_hex(8)}",
        name=name,
        digest=secret_digest(secret),
        scopes=frozenset(scope for scope in SCOPES if scope in scopes),
        **limits.model_dump(),
        created_us=now_us,
        who=who,
    )
    connection.execute(
        insert(keys).values(
            key_id=key.key_id,
            name=name,
            digest=key.digest.hex(),
            scopes=",".join(sorted(key.scopes)),
            **limits.model_dump(),
            who=who,
            created_us=now_us,
        )
    )
    if key.budget_nano is not None:
        connection.execute(insert(budgets).values(key_id=key.key_id, period="", spent_nano=0, reserved_nano=0))
    return NewKey(key, secret)


def _stored(row: Row[tuple[object, ...]]) -> StoredKey:
    key = Key(
        key_id=row.key_id,
        name=row.name,
        digest=bytes.fromhex(row.digest),
        scopes=frozenset(row.scopes.split(",")),
        budget_nano=row.budget_nano,
        budget_period=row.budget_period,
        requests_per_minute=row.requests_per_minute,
        tokens_per_minute=row.tokens_per_minute,
        created_us=row.created_us,
        who=row.who,
    )
    return StoredKey(key, row.revoked_us)


def listed(connection: Connection, *, revoked: bool) -> list[StoredKey]:
    """Keys in order of creation; with ``revoked`` those too."""
    query = select(keys).order_by(keys.c.created_us, keys.c.key_id)
    if not revoked:
        query = query.where(keys.c.revoked_us.is_(None))
    return [_stored(row) for row in connection.execute(query)]


def revoke(connection: Connection, key: str, now_us: int) -> Key:
    """End the live key of this id or name. Raises ``ConfigError`` when there is none."""
    for stored in listed(connection, revoked=False):
        if key in (stored.key.key_id, stored.key.name):
            connection.execute(update(keys).where(keys.c.key_id == stored.key.key_id).values(revoked_us=now_us))
            return stored.key
    raise ConfigError(f"key: found {key!r}; expected the id or name of a live key; see `firstchair gateway keys ls`")
