"""How the gateway's control state and ledger are printed."""

from __future__ import annotations

import difflib
import json
import time
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

import msgspec
import typer
import yaml

from firstchair.catalog.token_counts import NANO
from firstchair.cli.tables import Column, counted, number, print_json, print_list, shortened
from firstchair.core.errors import ConfigError
from firstchair.gateway.config import GatewayConfig
from firstchair.gateway.control.history import SlotVersion
from firstchair.gateway.control.keys import NewKey, StoredKey, key_data, stored_key_data
from firstchair.gateway.control.ledger import Line, Report
from firstchair.gateway.control.ledger import tail as newest_calls
from firstchair.gateway.control.slots import SlotConfig
from firstchair.gateway.control.snapshot import Key
from firstchair.gateway.control.store import AuditEntry, Change, ControlStore, Edit
from firstchair.gateway.reload import Reloaded
from firstchair.traces.times import utc_text

FOLLOW_S = 0.5
"""How often `tail --follow` looks for new calls."""
NAME_CELLS = 32


def usd(nano: int) -> str:
    """Dollars, exactly: all decimals there are, and at least four."""
    text = f"{Decimal(nano) / NANO:,.9f}"
    whole, _, decimals = text.partition(".")
    return f"{whole}.{decimals.rstrip('0').ljust(4, '0')}"


def nano_of(text: str, flag: str) -> int:
    """Dollars as whole nano-USD. Raises ``ConfigError``."""
    try:
        nano = Decimal(text) * NANO
        if nano.is_finite() and nano == int(nano) and 0 <= nano < 2**62:
            return int(nano)
    except InvalidOperation:
        pass
    raise ConfigError(f"{flag}: found {text!r}; expected US dollars such as 25 or 0.5, at most nine decimals")


def _when(at_us: int) -> str:
    return utc_text(at_us)[:19].replace("T", " ")


# --- slots ------------------------------------------------------------------------------------------------------


def _slot_data(slot: SlotConfig) -> dict[str, Any]:
    """What differs from the defaults, so that it reads like what a person wrote."""
    return slot.model_dump(mode="json", exclude_defaults=True)


def _slot_yaml(slot: SlotConfig) -> str:
    return yaml.safe_dump(_slot_data(slot), sort_keys=False, allow_unicode=True)


def _version_data(version: SlotVersion) -> dict[str, Any]:
    config = None if version.config is None else version.config.model_dump(mode="json")
    return {**msgspec.to_builtins(msgspec.structs.replace(version, config=None)), "config": config}


def print_slots(versions: Sequence[SlotVersion], url: str, *, wide: bool, as_json: bool) -> None:
    if as_json:
        print_json([_version_data(version) for version in versions])
        return
    rows = []
    for version in versions:
        slot = version.config
        assert slot is not None
        canary = f"{slot.canary.route} {slot.canary.percent:g}%" if slot.canary else ""
        rows.append(
            [
                slot.slot,
                str(version.version),
                " ".join(slot.match),
                str(slot.primary),
                " ".join(map(str, slot.fallbacks)),
                canary,
                " ".join(map(str, slot.shadow)),
            ]
        )
    columns = [Column("slot"), number("version"), Column("match", "end"), Column("primary", "middle")]
    columns += [Column("fallbacks", "end"), Column("canary", "middle"), Column("shadow", "end")]
    if rows:
        print_list(columns, rows, wide=wide)
    typer.echo(f"{counted(len(rows), 'slot')} in {url}")


def print_slot(version: SlotVersion, *, as_json: bool) -> None:
    if as_json:
        print_json(_version_data(version))
        return
    typer.echo(f"# version {version.version}, {version.action} by {version.who} at {_when(version.at_us)} UTC")
    if version.config is None:
        typer.echo("# removed")
    else:
        typer.echo(_slot_yaml(version.config), nl=False)


def print_history(versions: Sequence[SlotVersion], *, wide: bool, as_json: bool) -> None:
    if as_json:
        print_json([_version_data(version) for version in versions])
        return
    rows = []
    for version in versions:
        action = f"{version.action} of {version.restores}" if version.restores else version.action
        primary = "" if version.config is None else str(version.config.primary)
        rows.append([str(version.version), _when(version.at_us), version.who, action, primary, version.why])
    columns = [number("version"), Column("when (UTC)"), Column("who", "end"), Column("action")]
    print_list([*columns, Column("primary", "middle"), Column("why", "end")], rows, wide=wide)


def print_change(store: ControlStore, change: Change, *, as_json: bool) -> None:
    """What was changed, once every worker serves by it."""
    behind = _wait(store, change.revision)
    version = change.version
    if as_json:
        print_json({**_version_data(version), "revision": change.revision, "workers_behind": list(behind)})
        return
    primary = f": {version.config.primary}" if version.config else ""
    typer.echo(f"{version.slot} version {version.version} ({version.action}){primary}")


def print_edits(store: ControlStore, edits: Sequence[Edit], *, dry_run: bool, as_json: bool) -> None:
    """What was set, or would be, once every worker serves by it."""
    made = [edit.change for edit in edits if edit.change is not None]
    behind = _wait(store, made[-1].revision) if made else ()
    if as_json:
        rows = [
            {
                "slot": edit.after.slot,
                "changes": edit.is_change,
                "diff": _diff(edit),
                "version": None if edit.change is None else _version_data(edit.change.version),
            }
            for edit in edits
        ]
        print_json({"slots": rows, "dry_run": dry_run, "workers_behind": list(behind)})
        return
    for edit in edits:
        for line in _diff(edit):
            typer.echo(line)
    for edit in edits:
        if edit.change is not None:
            typer.echo(f"{edit.after.slot} version {edit.change.version.version} (set): {edit.after.primary}")
        elif not edit.is_change:
            typer.echo(f"{edit.after.slot}: stands so already")
    if dry_run:
        typer.echo("dry run: nothing was changed")


def _diff(edit: Edit) -> list[str]:
    """What changes in a slot, as lines of YAML."""
    before = edit.before
    old = [] if before is None or before.config is None else _slot_yaml(before.config).splitlines()
    name = f"{edit.after.slot} version {before.version}" if before is not None and old else "(no slot)"
    new = _slot_yaml(edit.after).splitlines()
    return list(difflib.unified_diff(old, new, name, edit.after.slot, lineterm="", n=1))


def _wait(store: ControlStore, revision: int) -> tuple[str, ...]:
    behind = store.wait_for_workers(revision)
    if behind:
        typer.secho(
            f"warning: {counted(len(behind), 'worker')} had not seen the change after 5 s: {', '.join(behind)}",
            err=True,
            fg="yellow",
        )
    return behind


def print_reloaded(done: Reloaded, *, as_json: bool) -> None:
    """What a reload changed, and what it could not."""
    if done.behind:
        who = ", ".join(done.behind)
        typer.secho(f"warning: {counted(len(done.behind), 'process')} not reloaded: {who}", err=True, fg="yellow")
    if as_json:
        print_json(msgspec.to_builtins(done))
        return
    fields = ", ".join(done.changed) or "no field of the file"
    typer.echo(f"reloaded; changed: {fields}; keys of providers and prices were read again")
    if done.needs_restart:
        typer.echo(f"not before a restart: {', '.join(done.needs_restart)}")
    if done.slots_not_applied:
        slots = ", ".join(done.slots_not_applied)
        typer.echo(f"not taken from the file, `slots set` changes them: slots {slots}")


def print_providers(config: GatewayConfig, *, wide: bool, as_json: bool) -> None:
    """Never a key itself."""
    found = []
    for name, provider in config.providers.items():
        try:
            key = "none wanted" if provider.secret(name) is None else "there"
        except ConfigError as error:
            # What is missing comes first: the end of a long line is cut.
            field, _, what = str(error).removeprefix(f"providers.{name}.").partition(": ")
            key = f"{what.partition(';')[0]} ({field})"
        found.append({"name": name, "type": provider.type, "base_url": provider.base_url, "key": key})
    if as_json:
        print_json(found)
        return
    columns = [Column("provider"), Column("type"), Column("base URL", "middle"), Column("key", "end", 36)]
    print_list(columns, [list(one.values()) for one in found], wide=wide)


# --- keys -------------------------------------------------------------------------------------------------------


def print_new_key(store: ControlStore, made: NewKey, *, as_json: bool) -> None:
    behind = _wait(store, store.revision())
    if as_json:
        print_json({**key_data(made.key), "secret": made.secret, "workers_behind": list(behind)})
        return
    typer.echo(made.secret)
    typer.echo(f"Key {made.key.name} ({made.key.key_id}). This is the only time its secret is shown.", err=True)


def print_keys(store: ControlStore, stored: Sequence[StoredKey], *, wide: bool, as_json: bool) -> None:
    found = [stored_key_data(one, store.spend(one.key.key_id)) for one in stored]
    if as_json:
        print_json(found)
        return
    rows = []
    for key in found:
        budget = key["budget_nano"]
        limits = [f"{key['requests_per_minute']:,} req/min"] if key["requests_per_minute"] else []
        limits += [f"{key['tokens_per_minute']:,} tok/min"] if key["tokens_per_minute"] else []
        rows.append(
            [
                key["name"],
                key["key_id"],
                ",".join(key["scopes"]),
                "" if budget is None else usd(key["spent_nano"]),
                "" if budget is None else f"{usd(budget)} {key['budget_period']}",
                " ".join(limits),
                "revoked" if key["revoked_at"] else "live",
            ]
        )
    columns = [Column("key", "end"), Column("id", "middle"), Column("scopes", "end"), number("spent $")]
    columns += [number("budget $"), Column("limits", "end"), Column("state")]
    if rows:
        print_list(columns, rows, wide=wide)
    typer.echo(f"{counted(len(rows), 'key')} in {store.url}")


def key_names(store: ControlStore) -> dict[str, str]:
    """Names by id, of revoked keys too."""
    return {stored.key.key_id: stored.key.name for stored in store.keys(revoked=True)}


def print_revoked(store: ControlStore, key: Key, *, as_json: bool) -> None:
    behind = _wait(store, store.revision())
    if as_json:
        print_json({**key_data(key), "workers_behind": list(behind)})
    else:
        typer.echo(f"key {key.name} ({key.key_id}) revoked")


# --- ledger -----------------------------------------------------------------------------------------------------


def _line_data(line: Line) -> dict[str, Any]:
    derived = {"tokens": line.tokens, "saved_nano": line.saved_nano, "cost_usd": usd(line.cost_nano).replace(",", "")}
    return {**msgspec.to_builtins(line), **derived}


def print_report(found: Report, names: Mapping[str, str], *, wide: bool, as_json: bool) -> None:
    """``names`` stand for what the lines are called, where there are any."""
    if as_json:
        print_json(
            {
                "by": found.by,
                "lines": [{**_line_data(line), "label": names.get(line.name, line.name)} for line in found.lines],
                "total": _line_data(found.total),
                "shadow": [_line_data(line) for line in found.shadow],
                "shadow_total": _line_data(found.shadow_total),
            }
        )
        return
    if not found.lines and not found.shadow:
        typer.echo("no calls")
        return
    for title, lines, total in (("", found.lines, found.total), ("shadow", found.shadow, found.shadow_total)):
        if lines:
            _print_lines([*lines, total], found.by, names, title=title, wide=wide)
    unpriced = found.total.unpriced_calls + found.shadow_total.unpriced_calls
    if unpriced:
        typer.echo(f"note: {counted(unpriced, 'call')} of models without a price; add them to the price table")
    estimated = found.total.usage.get("estimated", 0)
    if estimated:
        typer.echo(
            f"note: tokens of {counted(estimated, 'call')} are counted from the text; the provider did not say"
        )


def _print_lines(lines: Sequence[Line], by: str, names: Mapping[str, str], *, title: str, wide: bool) -> None:
    rows = []
    for line in lines:
        written = line.cache_write_5m + line.cache_write_1h
        rows.append(
            [
                shown_name(names.get(line.name, line.name) or "(none)", wide=wide),
                f"{line.calls:,}",
                f"{line.calls - line.outcomes.get('ok', 0):,}",
                f"{line.fallbacks:,}",
                f"{line.input:,}",
                f"{line.cache_read:,}",
                f"{written:,}",
                f"{line.output:,}",
                usd(line.cost_nano),
                usd(line.saved_nano) if line.compared_calls else "",
            ]
        )
    columns = [Column(by), number("calls"), number("not ok"), number("fallback"), number("input")]
    columns += [number("cached"), number("written"), number("output"), number("cost $"), number("saved $")]
    # Room for the names: a column that has nothing to tell is left out, unless the whole was asked for.
    optional = {"fallback", "cached", "written", "saved $"}
    kept = [
        place
        for place, column in enumerate(columns)
        if wide or column.title not in optional or any(row[place] not in ("", "0") for row in rows)
    ]
    print_list([columns[at] for at in kept], [[row[at] for at in kept] for row in rows], title=title, wide=wide)


def shown_name(name: str, *, wide: bool) -> str:
    """A name that is a line's only title: never cut to nothing, whatever the terminal's width."""
    return name if wide else shortened(name, NAME_CELLS, "middle")


def print_calls(calls: Sequence[Mapping[str, Any]], *, wide: bool, as_json: bool) -> None:
    """Calls as `ledger.tail` gives them."""
    if as_json:
        for call in calls:
            typer.echo(json.dumps(call, ensure_ascii=False))
        return
    if not calls:
        return
    rows = []
    for call in calls:
        cost = call["cost_nano"]
        tokens_in = call["tokens_input"] + call["tokens_cache_read"] + call["tokens_cache_write_5m"]
        rows.append(
            [
                _when(call["received_us"])[5:],
                call["slot"],
                call["variant"],
                shown_name(_answered_by(call), wide=wide),
                call["failure"] or call["outcome"],
                f"{tokens_in + call['tokens_cache_write_1h']:,}",
                f"{call['tokens_output']:,}",
                "" if cost is None else usd(cost),
                f"{call['latency_ms']:,.0f}",
            ]
        )
    columns = [Column("received (UTC)"), Column("slot", "end", 6), Column("variant"), Column("answered by")]
    columns += [Column("outcome"), number("in"), number("out"), number("cost $"), number("ms")]
    print_list(columns, rows, wide=wide)


def _answered_by(call: Mapping[str, Any]) -> str:
    """The route; where nobody was asked, the name that the client asked for."""
    if call["provider"]:
        return f"{call['provider']}/{call['provider_model']}"
    return f"(for {call['requested_model']})" if call["requested_model"] else ""


def follow_calls(store: ControlStore, after_seq: int, *, slot: str, wide: bool, as_json: bool) -> None:
    """Print calls as they come, until Ctrl-C."""
    try:
        while True:
            with store.reading() as connection:
                calls = newest_calls(connection, 200, after_seq=after_seq, slot=slot)
            print_calls(calls, wide=wide, as_json=as_json)
            after_seq = calls[-1]["seq"] if calls else after_seq
            time.sleep(FOLLOW_S)
    except KeyboardInterrupt:
        return


def print_audit(entries: Sequence[AuditEntry], *, wide: bool, as_json: bool) -> None:
    if as_json:
        print_json([{**msgspec.to_builtins(entry), "at": utc_text(entry.at_us)} for entry in entries])
        return
    rows = [[_when(one.at_us), one.who, one.action, one.target, one.why, json.dumps(one.details)] for one in entries]
    columns = [Column("when (UTC)"), Column("who", "end"), Column("action"), Column("of", "middle")]
    if rows:
        print_list([*columns, Column("why", "end"), Column("details", "end")], rows, wide=wide)
    typer.echo(counted(len(rows), "line"))
