"""``firstchair prices``: show, update."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from firstchair.cli.session_options import AsJson, Force, Wide

if TYPE_CHECKING:
    from firstchair.catalog.price_update import PriceUpdate
    from firstchair.catalog.prices import ModelPrice

app = typer.Typer(no_args_is_help=True, help="What models cost: the dated table, and new prices into it.")

PriceTableFile = Annotated[
    Path | None, typer.Option("--prices", help="Price table of your own, over the packaged one.")
]


@app.callback()
def _group() -> None:
    """What models cost: the dated table, and new prices into it."""


@app.command()
def show(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="[MODEL]...", help="Models to price; the whole table unless given.")
    ] = None,
    prices: PriceTableFile = None,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Show prices in US dollars per million tokens. Exit code 1 when a model that was named has none."""
    from firstchair.catalog.price_update import usd_text
    from firstchair.catalog.prices import PriceTable
    from firstchair.cli.tables import Column, counted, number, print_json, print_list

    table = PriceTable.load(prices)
    found = {name: table.price(name) for name in models} if models else dict(table.models)
    if as_json:
        priced = {name: None if price is None else _usd(price) for name, price in found.items()}
        print_json({"version": table.version, "models": priced})
    else:
        fields = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
        rows = [
            [name, *("" if (nano := getattr(price, field, None)) is None else usd_text(nano) for field in fields)]
            for name, price in found.items()
        ]
        columns = [Column("model", "middle"), number("input"), number("output"), number("cache read")]
        print_list([*columns, number("write 5m"), number("write 1h")], rows, wide=wide)
        typer.echo(f"{counted(len(found), 'model')}, USD per million tokens, version {table.version}")
    missing = [name for name, price in found.items() if price is None]
    if missing:
        typer.secho(f"no price is known: {', '.join(missing)}", err=True, fg="yellow")
        raise typer.Exit(1)


@app.command()
def update(
    source: Annotated[
        str,
        typer.Argument(metavar="SOURCE", help="OpenRouter's list of models (address or JSON file), or a YAML table."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Table to write; if it is there, its other models stay in it.")],
    date: Annotated[str, typer.Option("--date", help="Version of the table; today's date unless given.")] = "",
    force: Force = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Write a dated price table with the prices of SOURCE, and show what they change."""
    from firstchair.catalog.price_update import fetch, read_quotes, table_yaml, updated
    from firstchair.catalog.prices import PriceTable, read_price_file
    from firstchair.cli.tables import counted, print_json
    from firstchair.core.atomic import refuse_existing, write_text
    from firstchair.core.clock import utc_now

    refuse_existing(out, force=force)
    before = out if out.exists() else None
    own = {} if before is None else read_price_file(before).models
    quotes = read_quotes(fetch(source), source)
    done = updated(own, quotes.models, PriceTable.load(before).models)
    version = date or utc_now()[:10]
    write_text(out, table_yaml(version, done.models, source=source), force=force)
    if as_json:
        value = {
            "version": version,
            "models": len(done.models),
            "changed": {name: [_usd(old), _usd(new)] for name, (old, new) in done.changed.items()},
            "added": {name: _usd(price) for name, price in done.added.items()},
            "same": done.same,
            "left_out": quotes.left_out,
        }
        print_json(value)
        return
    _print_changes(done, quotes.left_out, wide=wide)
    typer.echo(f"{counted(len(done.models), 'model')} written to {out}, version {version}")


def _usd(price: ModelPrice) -> dict[str, str]:
    """Exact decimals, as text: a float would not be what is charged."""
    from firstchair.catalog.price_update import usd_text

    return {field: usd_text(nano) for field, nano in price if nano is not None}


def _print_changes(done: PriceUpdate, left_out: dict[str, str], *, wide: bool) -> None:
    from firstchair.catalog.price_update import usd_text
    from firstchair.cli.tables import Column, number, print_list

    rows = [
        [name, f"{usd_text(old.input)} / {usd_text(old.output)}", f"{usd_text(new.input)} / {usd_text(new.output)}"]
        for name, (old, new) in done.changed.items()
    ]
    rows += [[name, "", f"{usd_text(new.input)} / {usd_text(new.output)}"] for name, new in done.added.items()]
    if rows:
        print_list([Column("model", "middle"), number("before in / out"), number("now in / out")], rows, wide=wide)
    typer.echo(f"{len(done.changed):,} changed, {len(done.added):,} new, {done.same:,} as before")
    for name, why in left_out.items():
        typer.echo(f"left out: {name}: {why}")
