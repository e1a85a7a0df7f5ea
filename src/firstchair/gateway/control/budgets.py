"""Budgets: a call reserves what it may cost before it is sent, and settles for what it did cost.

Each step is one ``UPDATE … WHERE`` that holds the rule, so two workers can never spend the same dollar:

    spent + reserved + x <= budget

A budget of a day or month begins at 0 with the first reservation of the new period (UTC); what is still reserved goes
along. What a dead worker had reserved counts as spent: the provider may bill it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, case, delete, insert, select, update

from firstchair.core.errors import ConfigError
from firstchair.gateway.control.tables import budgets, keys, reservations


def _period(key_id: str, now_us: int) -> ColumnElement[str]:
    """Name of the period that ``now_us`` is in, by the kind of the key's budget."""
    moment = datetime.fromtimestamp(now_us // 1_000_000, UTC)
    kind = select(keys.c.budget_period).where(keys.c.key_id == key_id).scalar_subquery()
    return case((kind == "day", moment.strftime("%Y-%m-%d")), (kind == "month", moment.strftime("%Y-%m")), else_="")


def reserve(connection: Connection, key_id: str, nano: int, *, worker: str, now_us: int) -> bool:
    """Set ``nano`` aside for one call; ``False`` when the budget does not allow it, or the key is not live.

    A key without a budget always may, and nothing is written for it.
    """
    if nano < 0:
        raise ConfigError(f"budget: found a reservation of {nano}; expected 0 or more nano-USD")
    period = _period(key_id, now_us)
    spent = case((budgets.c.period == period, budgets.c.spent_nano), else_=0)
    live = (keys.c.key_id == key_id, keys.c.revoked_us.is_(None))
    budget = select(keys.c.budget_nano).where(*live).scalar_subquery()
    # The write comes first: on SQLite a transaction that begins by reading cannot always go on to write.
    done = connection.execute(
        update(budgets)
        .where(budgets.c.key_id == key_id, spent + budgets.c.reserved_nano + nano <= budget)
        .values(spent_nano=spent, period=period, reserved_nano=budgets.c.reserved_nano + nano)
    )
    if done.rowcount:
        _note(connection, worker, key_id, nano)
        return True
    row = connection.execute(select(keys.c.budget_nano).where(*live)).first()
    return row is not None and row.budget_nano is None


def settle(
    connection: Connection, key_id: str, reserved_nano: int, actual_nano: int, *, worker: str, now_us: int
) -> None:
    """Give back what was reserved and count what was spent. Spent may pass the budget: the money is gone."""
    if reserved_nano < 0 or actual_nano < 0:
        raise ConfigError(f"budget: found {reserved_nano} reserved, {actual_nano} spent; expected 0 or more nano-USD")
    period = _period(key_id, now_us)
    spent = case((budgets.c.period == period, budgets.c.spent_nano), else_=0)
    done = connection.execute(
        update(budgets)
        .where(budgets.c.key_id == key_id)
        .values(spent_nano=spent + actual_nano, period=period, reserved_nano=budgets.c.reserved_nano - reserved_nano)
    )
    if done.rowcount:
        _note(connection, worker, key_id, -reserved_nano)


class Spend(NamedTuple):
    """What a budget has let through in its present period."""

    spent_nano: int
    reserved_nano: int


def spend_of(connection: Connection, key_id: str, now_us: int) -> Spend | None:
    """``None`` for a key without a budget."""
    spent = case((budgets.c.period == _period(key_id, now_us), budgets.c.spent_nano), else_=0)
    row = connection.execute(select(spent, budgets.c.reserved_nano).where(budgets.c.key_id == key_id)).first()
    return None if row is None else Spend(int(row[0]), int(row[1]))


def _note(connection: Connection, worker: str, key_id: str, nano: int) -> None:
    """Write down who has reserved it."""
    mine = (reservations.c.worker == worker, reservations.c.key_id == key_id)
    done = connection.execute(
        update(reservations).where(*mine).values(reserved_nano=reservations.c.reserved_nano + nano)
    )
    if not done.rowcount:
        connection.execute(insert(reservations).values(worker=worker, key_id=key_id, reserved_nano=nano))


def spend_reserved(connection: Connection, worker: str) -> None:
    """Count as spent what a worker that is gone had reserved."""
    for row in connection.execute(select(reservations).where(reservations.c.worker == worker)).all():
        connection.execute(
            update(budgets)
            .where(budgets.c.key_id == row.key_id)
            .values(
                spent_nano=budgets.c.spent_nano + row.reserved_nano,
                reserved_nano=budgets.c.reserved_nano - row.reserved_nano,
            )
        )
    connection.execute(delete(reservations).where(reservations.c.worker == worker))
