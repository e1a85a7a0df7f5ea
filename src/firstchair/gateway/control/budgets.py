"""Budgets: a call reserves what it may cost before it is sent, and settles for what it did cost.

Each step is one ``UPDATE … WHERE`` that holds the rule, so two workers can never spend the same dollar:

    spent + reserved + x <= budget

A budget of a day or month begins at 0 with the first reservation of the new period (UTC); what is still reserved goes
along. What a dead worker had reserved counts as spent: the provider may bill it.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, Connection, case, delete, insert, literal, select, update

from firstchair.core.errors import ConfigError
from firstchair.gateway.control.snapshot import Budget
from firstchair.gateway.control.tables import budgets, keys, reservations


def _period(account: str, now_us: int, budget: Budget | None) -> ColumnElement[str]:
    """Name of the period that ``now_us`` is in, by the kind of ``budget``, else of the key's."""
    moment = datetime.fromtimestamp(now_us // 1_000_000, UTC)
    kind: ColumnElement[str] = select(keys.c.budget_period).where(keys.c.key_id == account).scalar_subquery()
    if budget is not None:
        kind = literal(budget.period)
    return case((kind == "day", moment.strftime("%Y-%m-%d")), (kind == "month", moment.strftime("%Y-%m")), else_="")


def open_account(connection: Connection, account: str) -> None:
    """Let an account that is no key's be charged. Inside a write transaction, or two may open it at once."""
    if connection.execute(select(budgets.c.key_id).where(budgets.c.key_id == account)).first() is None:
        connection.execute(insert(budgets).values(key_id=account, period="", spent_nano=0, reserved_nano=0))


def reserve(
    connection: Connection, account: str, nano: int, *, worker: str, now_us: int, budget: Budget | None = None
) -> bool:
    """Set ``nano`` aside for one call; ``False`` when the budget does not allow it, or the key is not live.

    ``account``: a key's id, and its own budget holds; else one that was opened, with its ``budget``. A key without a
    budget always may, and nothing is written for it.
    """
    if nano < 0:
        raise ConfigError(f"budget: found a reservation of {nano}; expected 0 or more nano-USD")
    period = _period(account, now_us, budget)
    spent = case((budgets.c.period == period, budgets.c.spent_nano), else_=0)
    live = (keys.c.key_id == account, keys.c.revoked_us.is_(None))
    most = literal(budget.nano) if budget is not None else select(keys.c.budget_nano).where(*live).scalar_subquery()
    # The write comes first: on SQLite a transaction that begins by reading cannot always go on to write.
    done = connection.execute(
        update(budgets)
        .where(budgets.c.key_id == account, spent + budgets.c.reserved_nano + nano <= most)
        .values(spent_nano=spent, period=period, reserved_nano=budgets.c.reserved_nano + nano)
    )
    if done.rowcount:
        _note(connection, worker, account, nano)
        return True
    if budget is not None:
        return False
    row = connection.execute(select(keys.c.budget_nano).where(*live)).first()
    return row is not None and row.budget_nano is None


def settle(
    connection: Connection,
    account: str,
    reserved_nano: int,
    actual_nano: int,
    *,
    worker: str,
    now_us: int,
    budget: Budget | None = None,
) -> None:
    """Give back what was reserved and count what was spent. Spent may pass the budget: the money is gone."""
    if reserved_nano < 0 or actual_nano < 0:
        raise ConfigError(f"budget: found {reserved_nano} reserved, {actual_nano} spent; expected 0 or more nano-USD")
    period = _period(account, now_us, budget)
    spent = case((budgets.c.period == period, budgets.c.spent_nano), else_=0)
    done = connection.execute(
        update(budgets)
        .where(budgets.c.key_id == account)
        .values(spent_nano=spent + actual_nano, period=period, reserved_nano=budgets.c.reserved_nano - reserved_nano)
    )
    if done.rowcount:
        _note(connection, worker, account, -reserved_nano)


class Spend(NamedTuple):
    """What a budget has let through in its present period."""

    spent_nano: int
    reserved_nano: int


def spend_of(connection: Connection, account: str, now_us: int, budget: Budget | None = None) -> Spend | None:
    """``None`` for a key without a budget, and for an account that was never opened."""
    spent = case((budgets.c.period == _period(account, now_us, budget), budgets.c.spent_nano), else_=0)
    row = connection.execute(select(spent, budgets.c.reserved_nano).where(budgets.c.key_id == account)).first()
    return None if row is None else Spend(int(row[0]), int(row[1]))


def _note(connection: Connection, worker: str, account: str, nano: int) -> None:
    """Write down who has reserved it."""
    mine = (reservations.c.worker == worker, reservations.c.key_id == account)
    done = connection.execute(
        update(reservations).where(*mine).values(reserved_nano=reservations.c.reserved_nano + nano)
    )
    if not done.rowcount:
        connection.execute(insert(reservations).values(worker=worker, key_id=account, reserved_nano=nano))


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
