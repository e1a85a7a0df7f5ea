"""The operations of the admin API, under ``/api``."""

from __future__ import annotations

from typing import Any

from firstchair.gateway.console import views
from firstchair.gateway.console.desk import Desk
from firstchair.gateway.console.openapi import Asked, Operation, Param
from firstchair.gateway.console.refusal import Refusal
from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.control.ledger import GROUPS
from firstchair.gateway.control.slots import read_route
from firstchair.gateway.reload import Reloaded

_NAME = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}
_TEXT = {"type": "string", "maxLength": 2000, "pattern": "^[^\\u0000]*$", "default": ""}
_MAX_INT = 2**53 - 1
_US = {"type": "integer", "minimum": 0, "maximum": _MAX_INT}
SLOT = Param("slot", _NAME, "The slot's name")
ONLY_SLOT = Param("slot", _NAME, "Only calls of this slot")
SINCE = Param("since_us", _US, "Received at or after this; microseconds since 1970 UTC")
WHY = Param("why", _TEXT, "Why, for the audit log")


def _limit(default: int, most: int) -> Param:
    return Param("limit", {"type": "integer", "minimum": 1, "maximum": most, "default": default}, "At most so many")


# --- slots ------------------------------------------------------------------------------------------------------


def list_slots(desk: Desk, asked: Asked) -> views.SlotList:
    return views.SlotList(slots=[views.SlotView.of(version) for version in desk.control.slots()])


def show_slot(desk: Desk, asked: Asked) -> views.SlotView:
    desk.in_force(asked.path["slot"])
    return views.SlotView.of(desk.control.history(asked.path["slot"])[-1])


def slot_history(desk: Desk, asked: Asked) -> views.SlotHistory:
    desk.required(asked.path["slot"])
    return views.SlotHistory(versions=[views.SlotView.of(one) for one in desk.control.history(asked.path["slot"])])


def put_slot(desk: Desk, asked: Asked) -> views.ChangeView:
    body: views.PutSlot = asked.body
    if body.config.slot != asked.path["slot"]:
        raise Refusal(
            409,
            f"config.slot: found {body.config.slot!r}; expected {asked.path['slot'][:80]!r}, as in the path",
            param="config.slot",
        )
    return _change(desk.put_slot(body.config, asked.caller.who, body.why, body.if_version))


def remove_slot(desk: Desk, asked: Asked) -> views.ChangeView:
    return _change(desk.remove_slot(asked.path["slot"], asked.caller.who, asked.query["why"]))


def promote(desk: Desk, asked: Asked) -> views.ChangeView:
    body: views.Promote = asked.body
    return _change(
        desk.promote(
            asked.path["slot"],
            read_route(body.route),
            asked.caller.who,
            why=body.why,
            gates=body.gates,
            override=body.override,
        )
    )


def rollback(desk: Desk, asked: Asked) -> views.ChangeView:
    body: views.Rollback = asked.body
    return _change(desk.rollback(asked.path["slot"], asked.caller.who, body.why, body.to))


def _change(made: tuple[Any, list[str]]) -> views.ChangeView:
    change, behind = made
    return views.ChangeView(slot=views.SlotView.of(change.version), revision=change.revision, workers_behind=behind)


# --- keys -------------------------------------------------------------------------------------------------------


def list_keys(desk: Desk, asked: Asked) -> views.KeyList:
    stored = desk.control.keys(revoked=asked.query["revoked"])
    return views.KeyList(keys=[views.KeyView.of(one, desk.control.spend(one.key.key_id)) for one in stored])


def create_key(desk: Desk, asked: Asked) -> views.NewKeyView:
    body: views.CreateKey = asked.body
    limits = KeyLimits(**body.model_dump(exclude={"name", "scopes", "why"}))
    made = desk.control.create_key(body.name, body.scopes, limits, who=asked.caller.who, why=body.why)
    return views.NewKeyView.made(made, tuple(desk.behind(desk.control.revision())))


def revoke_key(desk: Desk, asked: Asked) -> views.RevokedKey:
    name = asked.path["key"]
    stored = desk.control.keys()
    if not any(name in (one.key.key_id, one.key.name) for one in stored):
        raise Refusal(404, f"key: found {name[:80]!r}; expected the id or name of a live key", param="key")
    key = desk.control.revoke_key(name, who=asked.caller.who, why=asked.query["why"])
    behind = desk.behind(desk.control.revision())
    return views.RevokedKey(key_id=key.key_id, name=key.name, workers_behind=behind)


# --- what happened ----------------------------------------------------------------------------------------------


def ledger(desk: Desk, asked: Asked) -> views.LedgerView:
    query = asked.query
    report, names = desk.report(
        query["by"], since_us=query.get("since_us"), until_us=query.get("until_us"), slot=query.get("slot", "")
    )
    return views.LedgerView.of(report, names)


def shadow(desk: Desk, asked: Asked) -> views.ShadowList:
    lines = desk.agreement(since_us=asked.query.get("since_us"), slot=asked.query.get("slot", ""))
    budget = desk.shadow_budget()
    return views.ShadowList(
        shadows=[views.ShadowView.of(line) for line in lines],
        budget=None if budget is None else views.ShadowBudgetView(**budget._asdict()),
    )


def calls(desk: Desk, asked: Asked) -> views.CallList:
    query = asked.query
    after = query.get("after_seq")
    found = desk.calls(query["limit"], after_seq=after, slot=query.get("slot", ""))
    return views.CallList(calls=found, last_seq=found[-1]["seq"] if found else after or 0)


def audit(desk: Desk, asked: Asked) -> views.AuditList:
    return views.AuditList(entries=desk.control.audit_log(asked.query["limit"], target=asked.query["target"]))


def workers(desk: Desk, asked: Asked) -> views.WorkerList:
    return views.WorkerList(workers=desk.control.workers(), revision=desk.control.revision())


def status(desk: Desk, asked: Asked) -> Any:
    return desk.status()


def reload(desk: Desk, asked: Asked) -> Reloaded:
    body: views.Reload = asked.body
    return desk.reload(asked.caller.who, body.why)


def list_sessions(desk: Desk, asked: Asked) -> views.SessionList:
    store, query = desk.traces(), asked.query
    if store is None:
        return views.SessionList(sessions=[], total=0)
    filters: Any = {name: query[name] for name in ("source", "tool") if name in query}
    rows = store.newest(query["limit"], skip=query["skip"], **filters)
    return views.SessionList(sessions=[views.SessionLine.of(row) for row in rows], total=store.count(**filters))


def show_session(desk: Desk, asked: Asked) -> views.SessionView:
    session, tools = desk.session(asked.path["session"])
    return views.SessionView(session=session, tools=list(tools))


OPERATIONS = (
    Operation(
        "GET", "/api/status", "status", "Version, revision, workers and sink", "admin", status, views.StatusView
    ),
    Operation(
        "POST",
        "/api/reload",
        "reload",
        "Read gateway.yaml again: providers, their keys, prices, limits, redaction; a wrong file changes nothing",
        "admin",
        reload,
        Reloaded,
        body=views.Reload,
    ),
    Operation("GET", "/api/workers", "workers", "Live workers", "admin", workers, views.WorkerList),
    Operation("GET", "/api/slots", "list_slots", "Slots in force", "admin", list_slots, views.SlotList),
    Operation(
        "GET", "/api/slots/{slot}", "show_slot", "One slot", "admin", show_slot, views.SlotView, places=(SLOT,)
    ),
    Operation(
        "PUT",
        "/api/slots/{slot}",
        "put_slot",
        "Set a slot, new or not",
        "admin",
        put_slot,
        views.ChangeView,
        body=views.PutSlot,
        places=(SLOT,),
    ),
    Operation(
        "DELETE",
        "/api/slots/{slot}",
        "remove_slot",
        "Take a slot out of service",
        "admin",
        remove_slot,
        views.ChangeView,
        query=(WHY,),
        places=(SLOT,),
    ),
    Operation(
        "GET",
        "/api/slots/{slot}/history",
        "slot_history",
        "Every version of a slot",
        "admin",
        slot_history,
        views.SlotHistory,
        places=(SLOT,),
    ),
    Operation(
        "POST",
        "/api/slots/{slot}/promote",
        "promote",
        "Make a route the primary; the old one stays armed as the first fallback",
        "admin",
        promote,
        views.ChangeView,
        body=views.Promote,
        places=(SLOT,),
    ),
    Operation(
        "POST",
        "/api/slots/{slot}/rollback",
        "rollback",
        "Bring back an earlier version",
        "admin",
        rollback,
        views.ChangeView,
        body=views.Rollback,
        places=(SLOT,),
    ),
    Operation(
        "GET",
        "/api/keys",
        "list_keys",
        "API keys: scopes, limits, what is spent",
        "admin",
        list_keys,
        views.KeyList,
        query=(Param("revoked", {"type": "boolean", "default": False}, "Revoked keys too"),),
    ),
    Operation(
        "POST",
        "/api/keys",
        "create_key",
        "Create a key; its secret is told here, once",
        "admin",
        create_key,
        views.NewKeyView,
        body=views.CreateKey,
        status=201,
    ),
    Operation(
        "DELETE",
        "/api/keys/{key}",
        "revoke_key",
        "End a key",
        "admin",
        revoke_key,
        views.RevokedKey,
        query=(WHY,),
        places=(Param("key", {"type": "string", "minLength": 1, "maxLength": 64}, "Id or name of a live key"),),
    ),
    Operation(
        "GET",
        "/api/ledger",
        "ledger",
        "Sums of tokens, cost and savings",
        "traces",
        ledger,
        views.LedgerView,
        query=(
            Param("by", {"type": "string", "enum": list(GROUPS), "default": "slot"}, "One line for each"),
            SINCE,
            Param("until_us", _US, "Received before this; microseconds since 1970 UTC"),
            ONLY_SLOT,
        ),
    ),
    Operation(
        "GET",
        "/api/shadow",
        "shadow",
        "How often shadows did what the primary did, with the 95% interval",
        "traces",
        shadow,
        views.ShadowList,
        query=(SINCE, ONLY_SLOT),
    ),
    Operation(
        "GET",
        "/api/calls",
        "calls",
        "The newest calls, or those after one",
        "traces",
        calls,
        views.CallList,
        query=(
            _limit(50, 1000),
            Param(
                "after_seq",
                {"type": "integer", "minimum": 0, "maximum": _MAX_INT},
                "Only calls after this `seq`, as `last_seq` said",
            ),
            ONLY_SLOT,
        ),
    ),
    Operation(
        "GET",
        "/api/audit",
        "audit",
        "Who changed what, when and why",
        "admin",
        audit,
        views.AuditList,
        query=(_limit(50, 1000), Param("target", _TEXT, "Only changes of this slot or key id")),
    ),
    Operation(
        "GET",
        "/api/sessions",
        "list_sessions",
        "Recorded sessions, the last to arrive first",
        "traces",
        list_sessions,
        views.SessionList,
        query=(
            _limit(50, 500),
            Param("skip", {"type": "integer", "minimum": 0, "maximum": 10**9, "default": 0}, "Leave out so many"),
            Param(
                "source",
                {"type": "string", "enum": ["production", "scripted", "synthetic", "rollout"]},
                "Only of this source",
            ),
            Param("tool", {"type": "string", "minLength": 1, "maxLength": 256}, "Only those that called this tool"),
        ),
    ),
    Operation(
        "GET",
        "/api/sessions/{session}",
        "show_session",
        "One session: messages, tool calls, errors",
        "traces",
        show_session,
        views.SessionView,
        places=(Param("session", {"type": "string", "minLength": 1, "maxLength": 512}, "Its id"),),
    ),
)
