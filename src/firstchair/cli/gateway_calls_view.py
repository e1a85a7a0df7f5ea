"""How single calls are printed: one as it was recorded, and those where a shadow did something else."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import msgspec
import typer

from firstchair.cli.gateway_view import shown_name, usd
from firstchair.cli.tables import Column, number, print_json, print_list, rate_row
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsontext import loads_bytes
from firstchair.evals.report import interval, percent
from firstchair.gateway.console.insight import Agreement, ShadowBudget
from firstchair.gateway.records import CallRecord
from firstchair.gateway.shadow import Disagreement
from firstchair.traces.times import utc_text


def print_call(record: CallRecord, *, only_request: bool) -> None:
    """One call as JSON, or its request alone; ``request_of`` says of a shadow whose request it was sent."""
    copied = record.variant == "shadow"
    if only_request:
        if copied:
            if not record.request:
                raise ConfigError(
                    f"call {record.call_id}: a shadow; it was sent the request of call {record.shadow_of}, which is "
                    "no longer recorded; leave out --request to see the rest"
                )
            typer.echo(f"the request of call {record.shadow_of}, whose shadow this is:", err=True)
        sys.stdout.buffer.write(record.request)
        return
    data = msgspec.to_builtins(msgspec.structs.replace(record, request=b""))
    if copied:
        data["request_of"] = record.shadow_of
    try:
        data["request"] = loads_bytes(record.request) if record.request or not copied else None
    except (DataError, UnicodeDecodeError):  # recorded as it came, also when it is no JSON
        data["request"] = record.request.decode(errors="backslashreplace")
    print_json({**data, "received": utc_text(record.received_us)})


def print_shadows(
    lines: Sequence[Agreement],
    differ: Sequence[Disagreement],
    budget: ShadowBudget | None,
    *,
    wide: bool,
    as_json: bool,
) -> None:
    """Agreement with its 95% interval over the calls that could be compared, calls that differ, and the budget."""
    if as_json:
        shares = [{**line._asdict(), "calls": line.calls, "same": rate_row(line.same)} for line in lines]
        found = [{**row._asdict(), "route": str(row.route)} for row in differ]
        print_json({"shadows": shares, "differ": found, "budget": None if budget is None else budget._asdict()})
        return
    if lines:
        _print_agreement(lines, differ, wide=wide)
    else:
        typer.echo("no shadow calls")
    if budget is not None:
        period = {"day": "a day", "month": "a month", "total": "in all"}[budget.budget_period]
        copies = "copy was" if budget.not_sent == 1 else "copies were"
        typer.echo(
            f"budget: spent {usd(budget.spent_nano)} of {usd(budget.budget_nano)} $ {period}; "
            f"{budget.not_sent:,} {copies} not sent for want of money so far"
        )


def _print_agreement(lines: Sequence[Agreement], differ: Sequence[Disagreement], *, wide: bool) -> None:
    rows = []
    for line in lines:
        same = line.same
        rows.append(
            [
                line.slot,
                shown_name(line.route, wide=wide),
                f"{line.calls:,}",
                f"{line.sessions:,}",
                f"{percent(same.value)} ({interval(same)})" if same.n else "",
                *(f"{line.counts[name]:,}" for name in ("same_tool", "different", "unscored")),
                usd(line.cost_nano),
            ]
        )
    columns = [Column("slot", "end", 6), Column("shadow"), number("calls"), number("sessions"), Column("same action")]
    columns += [number("same tool"), number("different"), number("unscored"), number("cost $")]
    print_list(columns, rows, wide=wide)
    if differ:
        shown = [[row.shadow_of, row.call_id, row.slot, row.agreement] for row in differ]
        titles = [Column("call"), Column("its shadow"), Column("slot", "end", 6), Column("agreement")]
        print_list(titles, shown, title="differ; `firstchair gateway show CALL` prints one", wide=wide)
