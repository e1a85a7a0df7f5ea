"""``firstchair gateway``: slots, keys, promotion, rollback and the ledger, straight in the gateway's database."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from firstchair.cli.session_options import AsJson, Wide

if TYPE_CHECKING:
    from firstchair.gateway.config import GatewayConfig
    from firstchair.gateway.control.store import ControlStore

app = typer.Typer(
    no_args_is_help=True,
    help="Slots, keys, promotion, rollback, ledger of the gateway.\n\n"
    "The commands work on the gateway's database, whether it runs or not; a change holds on every worker's next "
    "request. The database is the one that gateway.yaml names, unless --config or --db says otherwise.",
)
slots_app = typer.Typer(no_args_is_help=True, help="Who answers for which model name.")
keys_app = typer.Typer(no_args_is_help=True, help="API keys, their scopes, budgets and rate limits.")
app.add_typer(slots_app, name="slots")
app.add_typer(keys_app, name="keys")

Config = Annotated[
    Path | None,
    typer.Option(
        "--config", envvar="FIRSTCHAIR_GATEWAY_CONFIG", help="The gateway's YAML file; gateway.yaml unless given."
    ),
]
Database = Annotated[
    str,
    typer.Option(
        "--db",
        help="The database, whatever the config file says: SQLite file, or a URL such as postgresql://me@host/db.",
    ),
]
Who = Annotated[
    str,
    typer.Option("--who", envvar="FIRSTCHAIR_WHO", help="Who does it, for the audit log; your login unless given."),
]
Why = Annotated[str, typer.Option("--why", help="Why, for the audit log.")]
SlotName = Annotated[str, typer.Argument(metavar="SLOT", help="The slot's name.")]
OnlySlot = Annotated[str, typer.Option("--slot", help="Only calls of this slot.")]


@app.command()
def serve(
    config: Config = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, max=256, help="Processes that answer calls; the file's unless given."),
    ] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="FIELD=VALUE", help="Override a field of the file.")
    ] = None,
) -> None:
    """Run the gateway until it is stopped; SIGTERM lets running calls finish. Logs go to stderr as JSON lines."""
    from firstchair.gateway.config import load_config
    from firstchair.gateway.serve import serve as run

    overrides = (*(set_ or ()), *((f"workers={workers}",) if workers else ()))
    code = run(lambda: load_config(config or Path("gateway.yaml"), overrides))
    # All is written and closed; to take the interpreter apart would last as long as the stop did.
    os._exit(code)


@app.command()
def reload(who: Who = "", why: Why = "", config: Config = None, as_json: AsJson = False) -> None:
    """Have the gateway that runs here read its file again: providers, their keys, prices, limits, redaction.

    A file that is wrong changes nothing. What cannot change while the gateway runs is named.
    """
    from firstchair.cli.gateway_view import print_reloaded
    from firstchair.gateway.reload import ask_reload

    print_reloaded(ask_reload(_config(config).spool, who=login_name(who), why=why), as_json=as_json)


# --- slots ------------------------------------------------------------------------------------------------------


@slots_app.command("ls")
def list_slots(config: Config = None, db: Database = "", wide: Wide = False, as_json: AsJson = False) -> None:
    """List the slots in force."""
    from firstchair.cli.gateway_view import print_slots

    with _opened(config, db) as store:
        print_slots(store.slots(), store.url, wide=wide, as_json=as_json)


@slots_app.command("show")
def show_slot(
    slot: SlotName,
    version: Annotated[
        int | None, typer.Option("--version", min=1, help="This version, not the one in force.")
    ] = None,
    config: Config = None,
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Show one slot as the YAML that `slots set` takes."""
    from firstchair.cli.gateway_view import print_slot
    from firstchair.core.errors import ConfigError

    with _opened(config, db) as store:
        history = store.history(slot)
    if version is not None and version > len(history):
        raise ConfigError(f"--version: found {version}; slot {slot} has versions 1 to {len(history)}")
    print_slot(history[-1 if version is None else version - 1], as_json=as_json)


@slots_app.command("history")
def slot_history(
    slot: SlotName, config: Config = None, db: Database = "", wide: Wide = False, as_json: AsJson = False
) -> None:
    """List every version of a slot: what, who, when, why."""
    from firstchair.cli.gateway_view import print_history

    with _opened(config, db) as store:
        print_history(store.history(slot), wide=wide, as_json=as_json)


@slots_app.command("set")
def set_slot(
    file: Annotated[
        Path,
        typer.Argument(
            help="YAML of one slot, as `slots show` prints it, or of several under `slots`; gateway.yaml too."
        ),
    ],
    if_version: Annotated[
        int | None,
        typer.Option("--if-version", min=0, help="Only when this version is in force, 0 for a slot that is new."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check it and show what would change; write nothing.")
    ] = False,
    who: Who = "",
    why: Why = "",
    config: Config = None,
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Set the slots of a file, new or not: all of them or none. They hold on the next request of every worker.

    What changes is shown line by line. A slot that stands so already gets no new version; slots that are not in the
    file stay as they are.
    """
    from firstchair.cli.gateway_view import print_edits
    from firstchair.gateway.config import load_slots

    slots = load_slots(file)
    with _opened(config, db, create=not dry_run) as store:
        edits = store.put_slots(slots, who=login_name(who), why=why, if_version=if_version, dry_run=dry_run)
        print_edits(store, edits, dry_run=dry_run, as_json=as_json)


@slots_app.command("rm")
def remove_slot(
    slot: SlotName, who: Who = "", why: Why = "", config: Config = None, db: Database = "", as_json: AsJson = False
) -> None:
    """Take a slot out of service. Its history stays; `rollback` brings it back."""
    from firstchair.cli.gateway_view import print_change

    with _opened(config, db) as store:
        print_change(store, store.remove_slot(slot, who=login_name(who), why=why), as_json=as_json)


@app.command()
def promote(
    slot: SlotName,
    route: Annotated[str, typer.Argument(metavar="PROVIDER/MODEL", help="Who is to answer from now on.")],
    gates: Annotated[
        Path | None,
        typer.Option("--gates", metavar="FILE", help="JSON record of the gates that passed for this route."),
    ] = None,
    override: Annotated[
        str, typer.Option("--override", metavar="REASON", help="Promote without gates; the reason is kept.")
    ] = "",
    who: Who = "",
    why: Why = "",
    config: Config = None,
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Make a model the primary of a slot. The old primary stays armed as the first fallback."""
    from firstchair.cli.gateway_view import print_change
    from firstchair.core.errors import ConfigError
    from firstchair.gateway.control.gates import read_gates
    from firstchair.gateway.control.slots import read_route

    if (gates is None) == (not override.strip()):
        raise ConfigError("promote: expected --gates FILE, or --override REASON to do without; give one")
    record = None if gates is None else read_gates(gates)
    with _opened(config, db) as store:
        change = store.promote(
            slot, read_route(route), who=login_name(who), why=why, gates_record=record, override=override
        )
        print_change(store, change, as_json=as_json)


@app.command()
def rollback(
    slot: SlotName,
    to: Annotated[
        int | None, typer.Option("--to", min=1, help="Bring back this version, not the previous one.")
    ] = None,
    who: Who = "",
    why: Why = "",
    config: Config = None,
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Bring back a slot's previous version, at once. Done again, it goes further back."""
    from firstchair.cli.gateway_view import print_change

    with _opened(config, db) as store:
        print_change(store, store.rollback(slot, who=login_name(who), why=why, to=to), as_json=as_json)


@app.command()
def providers(config: Config = None, wide: Wide = False, as_json: AsJson = False) -> None:
    """List the providers of the config file, and whether their keys are there."""
    from firstchair.cli.gateway_view import print_providers

    print_providers(_config(config), wide=wide, as_json=as_json)


# --- keys -------------------------------------------------------------------------------------------------------


@keys_app.command("create")
def create_key(
    name: Annotated[str, typer.Argument(help="What the key is for; unique among live keys.")],
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope", metavar="call|admin|traces", help="What it may do, several times; call unless given."
        ),
    ] = None,
    budget: Annotated[str, typer.Option("--budget", metavar="USD", help="Spend at most this.")] = "",
    per: Annotated[
        Literal["total", "day", "month"], typer.Option("--per", help="When the budget begins anew, UTC.")
    ] = "total",
    requests_per_minute: Annotated[int | None, typer.Option(min=1, help="Rate limit.")] = None,
    tokens_per_minute: Annotated[int | None, typer.Option(min=1, help="Rate limit.")] = None,
    who: Who = "",
    why: Why = "",
    config: Config = None,
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """Create a key. Its secret is printed here, once; only its SHA-256 is stored."""
    from firstchair.cli.gateway_view import nano_of, print_new_key
    from firstchair.core.config import validate
    from firstchair.gateway.control.keys import KeyLimits

    limits = {
        "budget_nano": nano_of(budget, "--budget") if budget else None,
        "budget_period": per,
        "requests_per_minute": requests_per_minute,
        "tokens_per_minute": tokens_per_minute,
    }
    checked = validate(KeyLimits, limits, source="command line")
    with _opened(config, db, create=True) as store:
        print_new_key(
            store, store.create_key(name, scope or ["call"], checked, who=login_name(who), why=why), as_json=as_json
        )


@keys_app.command("ls")
def list_keys(
    revoked: Annotated[bool, typer.Option("--revoked", help="Revoked keys too.")] = False,
    config: Config = None,
    db: Database = "",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List keys: scopes, limits, what is spent."""
    from firstchair.cli.gateway_view import print_keys

    with _opened(config, db) as store:
        print_keys(store, store.keys(revoked=revoked), wide=wide, as_json=as_json)


@keys_app.command("revoke")
def revoke_key(
    key: Annotated[str, typer.Argument(help="Id or name of a live key.")],
    who: Who = "",
    why: Why = "",
    config: Config = None,
    db: Database = "",
    as_json: AsJson = False,
) -> None:
    """End a key. No worker takes it any more."""
    from firstchair.cli.gateway_view import print_revoked

    with _opened(config, db) as store:
        print_revoked(store, store.revoke_key(key, who=login_name(who), why=why), as_json=as_json)


# --- what happened ----------------------------------------------------------------------------------------------


@app.command()
def ledger(
    by: Annotated[
        Literal["slot", "model", "provider", "key", "day", "session"], typer.Option("--by", help="One line for each.")
    ] = "slot",
    since: Annotated[str, typer.Option(help="Only calls received at or after this ISO 8601 time.")] = "",
    until: Annotated[str, typer.Option(help="Only calls received before this ISO 8601 time.")] = "",
    slot: OnlySlot = "",
    config: Config = None,
    db: Database = "",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Sum up tokens, cost and savings. Shadow calls are summed apart."""
    from firstchair.cli.gateway_view import key_names, print_report
    from firstchair.gateway.control.ledger import report
    from firstchair.traces.times import microseconds

    bounds = (microseconds(since, field="--since"), microseconds(until, field="--until"))
    with _opened(config, db) as store:
        with store.reading() as connection:
            found = report(connection, by, since_us=bounds[0], until_us=bounds[1], slot=slot)
        print_report(found, key_names(store) if by == "key" else {}, wide=wide, as_json=as_json)


@app.command()
def tail(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many calls.")] = 20,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with new calls until Ctrl-C.")] = False,
    slot: OnlySlot = "",
    config: Config = None,
    db: Database = "",
    wide: Wide = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line instead of a table.")] = False,
) -> None:
    """Show the newest calls."""
    from firstchair.cli.gateway_view import follow_calls, print_calls
    from firstchair.gateway.control.ledger import tail as newest

    with _opened(config, db) as store:
        with store.reading() as connection:
            calls = newest(connection, limit, slot=slot)
        print_calls(calls, wide=wide, as_json=as_json)
        if follow:
            follow_calls(store, calls[-1]["seq"] if calls else 0, slot=slot, wide=wide, as_json=as_json)


@app.command("show")
def show_call(
    call_id: Annotated[str, typer.Argument(metavar="CALL", help="The call's id, as `tail --json` prints it.")],
    request: Annotated[
        bool, typer.Option("--request", help="Only the client's body, byte for byte as it was recorded.")
    ] = False,
    config: Config = None,
) -> None:
    """Print one recorded call as JSON: request, answer, every try, tokens.

    A shadow was sent the request of another call: it is printed, and `request_of` names that call.
    """
    from firstchair.cli.gateway_calls_view import print_call
    from firstchair.gateway.blobs import BlobStore
    from firstchair.gateway.recordings import read_recording

    blobs = BlobStore(_config(config).blob_folder)
    with _opened(config, "") as store, store.reading() as connection:
        record = read_recording(connection, call_id, blobs)
    print_call(record, only_request=request)


@app.command()
def shadow(
    slot: OnlySlot = "",
    since: Annotated[str, typer.Option(help="Only calls received at or after this ISO 8601 time.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many of the calls that differ.")] = 20,
    config: Config = None,
    db: Database = "",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """How often shadows did what the primary did, the newest calls where they did not, and their budget."""
    from firstchair.cli.gateway_calls_view import print_shadows
    from firstchair.gateway.console.insight import shadow_agreement, shadow_budget
    from firstchair.gateway.shadow import disagreements
    from firstchair.traces.times import microseconds

    after = microseconds(since, field="--since")
    known = None if db and config is None else _config(config)
    with _opened(config, db) as store:
        budget = shadow_budget(store, known.shadow.budget, known.spool) if known else None
        with store.reading() as connection:
            lines = shadow_agreement(connection, since_us=after, slot=slot)
            differ = disagreements(connection, slot=slot, since_us=after or 0, limit=limit)
    print_shadows(lines, differ, budget, wide=wide, as_json=as_json)


@app.command()
def audit(
    target: Annotated[str, typer.Option("--of", help="Only changes of this slot or key id.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many lines.")] = 50,
    config: Config = None,
    db: Database = "",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """List who changed what, when and why; the newest first."""
    from firstchair.cli.gateway_view import print_audit

    with _opened(config, db) as store:
        print_audit(store.audit_log(limit, target=target), wide=wide, as_json=as_json)


# --- opening ----------------------------------------------------------------------------------------------------


def _config(path: Path | None) -> GatewayConfig:
    from firstchair.gateway.config import load_config

    return load_config(path or Path("gateway.yaml"))


def _opened(config: Path | None, db: str, *, create: bool = False) -> ControlStore:
    """The store that the options mean; a slot may then only name providers of the config file, if there is one."""
    from firstchair.gateway.control.store import ControlStore

    known = None if db and config is None else _config(config)
    url = db or (known.database if known else "")
    return ControlStore.open(url, must_exist=not create, providers=known.providers if known else None)


def login_name(given: str) -> str:
    """Who does it: as given, else this login's name. Raises ``ConfigError``."""
    import getpass

    from firstchair.core.errors import ConfigError

    try:
        return given or getpass.getuser()
    except (OSError, KeyError):
        raise ConfigError("--who: this login has no name; say who you are") from None
