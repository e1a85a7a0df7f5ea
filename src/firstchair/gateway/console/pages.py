"""The console's pages. All of them work without JavaScript; the list of live calls then loads itself anew."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from firstchair.core.jsontext import loads
from firstchair.gateway.canary import canary_state
from firstchair.gateway.console import ledger_page, session_page
from firstchair.gateway.console.access import COOKIE, LOGIN_S, Access, Caller, check_token
from firstchair.gateway.console.desk import Desk
from firstchair.gateway.console.refusal import Refusal
from firstchair.gateway.console.render import ASSETS, asset, render
from firstchair.gateway.console.views import MAX_WHY
from firstchair.gateway.control import history
from firstchair.gateway.control.history import SlotVersion
from firstchair.gateway.control.slots import Route as ModelRoute
from firstchair.gateway.control.slots import promoted, read_route

LIVE_ROWS = 50
CHANGES = 50
"""Lines of the audit log."""
Form = Mapping[str, str]
Show = Callable[[Request, Caller], Response]
Change = Callable[[Request, Caller, Form], Response]


class Pages:
    """The pages of one admin process."""

    def __init__(self, desk: Desk, access: Access):
        self._desk, self._access = desk, access

    def routes(self) -> list[Route]:
        show, change = self._show, self._change
        slot = "/slots/{slot}"
        return [
            Route("/assets/{name}", self._asset, methods=["GET"]),
            Route("/login", self._login_page, methods=["GET"]),
            Route("/login", self._log_in, methods=["POST"]),
            Route("/logout", change(self._log_out), methods=["POST"]),
            Route("/", show(self.slots), methods=["GET"]),
            Route(slot, show(self.slot), methods=["GET"]),
            Route(f"{slot}/promote", show(self.ask_promote), methods=["GET"]),
            Route(f"{slot}/promote", change(self.promote), methods=["POST"]),
            Route(f"{slot}/rollback", show(self.ask_rollback), methods=["GET"]),
            Route(f"{slot}/rollback", change(self.rollback), methods=["POST"]),
            Route("/calls", show(self.calls), methods=["GET"]),
            Route("/calls/rows", show(self.rows), methods=["GET"]),
            Route("/ledger", show(self.ledger), methods=["GET"]),
            Route("/shadow", show(self.shadow), methods=["GET"]),
            Route("/sessions", show(self.sessions), methods=["GET"]),
            Route("/sessions/{session:path}", show(self.session), methods=["GET"]),
            Route("/keys", show(self.keys), methods=["GET"]),
        ]

    # Who may see them

    def _show(self, work: Show) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            caller = await self._caller(request)
            if caller is None:
                here = request.url.path + (f"?{request.url.query}" if request.url.query else "")
                return RedirectResponse(f"/login?next={quote(here, safe='')}", 303)
            return await run_in_threadpool(work, request, caller)

        return endpoint

    def _change(self, work: Change) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            caller = await self._caller(request)
            if caller is None:
                return RedirectResponse("/login", 303)
            form = await read_form(request)
            check_token(caller, form.get("token", ""))
            return await run_in_threadpool(work, request, caller, form)

        return endpoint

    async def _caller(self, request: Request) -> Caller | None:
        return await run_in_threadpool(self._access.console_caller, request.cookies.get(COOKIE, ""))

    def _page(self, template: str, caller: Caller | None, /, code: int = 200, **values: Any) -> Response:
        text = render(template, caller=caller, keyed=self._access.require_keys, **values)
        return Response(text, code, media_type="text/html")

    def problem(self, request: Request, status: int, message: str, headers: Mapping[str, str]) -> Response:
        """The page of an error."""
        text = render("problem.html.j2", caller=None, keyed=False, status=status, message=message)
        return Response(text, status, dict(headers), media_type="text/html")

    async def _asset(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in ASSETS:
            raise Refusal(404, f"there is no {name[:80]!r} here")
        kept = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(asset(name), headers=kept, media_type=ASSETS[name])

    # Login

    async def _login_page(self, request: Request) -> Response:
        if await self._caller(request) is not None:
            return RedirectResponse("/", 303)
        return self._page("login.html.j2", None, next=_local(request.query_params.get("next", "")), error="")

    async def _log_in(self, request: Request) -> Response:
        form = await read_form(request)
        target = _local(form.get("next", ""))
        try:
            cookie = await run_in_threadpool(self._access.log_in, form.get("key", ""))
        except Refusal as refusal:
            return self._page("login.html.j2", None, code=refusal.status, next=target, error=refusal.message)
        answer = RedirectResponse(target, 303)
        secure = "https" in (request.url.scheme, request.headers.get("x-forwarded-proto", ""))
        answer.set_cookie(COOKIE, cookie, max_age=LOGIN_S, httponly=True, samesite="strict", secure=secure)
        return answer

    def _log_out(self, request: Request, caller: Caller, form: Form) -> Response:
        self._access.log_out(request.cookies.get(COOKIE, ""))
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    # Slots

    def slots(self, request: Request, caller: Caller) -> Response:
        control = self._desk.control
        report, _ = self._desk.report("slot", since_us=ledger_page.midnight(1))
        today = {line.name: line for line in report.lines}
        return self._page(
            "slots.html.j2",
            caller,
            slots=control.slots(),
            today=today,
            status=self._desk.status(),
            audit=control.audit_log(CHANGES),
        )

    def slot(self, request: Request, caller: Caller) -> Response:
        slot = request.path_params["slot"]
        self._desk.required(slot)
        versions = self._desk.control.history(slot)
        made = request.query_params.get("made", "")
        return self._page(
            "slot.html.j2",
            caller,
            slot=slot,
            versions=versions[::-1],
            config=versions[-1].config,
            canary=canary_state(self._desk.control, versions[-1], now_us=time.time_ns() // 1000),
            shadows=self._desk.agreement(slot=slot),
            providers=self._desk.providers,
            made=int(made) if made.isdecimal() and len(made) < 10 else None,
            behind=request.query_params.get("behind", "") not in ("", "0"),
        )

    def ask_promote(self, request: Request, caller: Caller) -> Response:
        slot = request.path_params["slot"]
        config = self._desk.in_force(slot)
        route = _asked_route(request.query_params)
        after = promoted(config, route)
        version = self._desk.control.history(slot)[-1].version
        return self._page(
            "promote.html.j2",
            caller,
            slot=slot,
            route=route,
            before=config,
            after=after,
            version=version,
            max_why=MAX_WHY,
        )

    def promote(self, request: Request, caller: Caller, form: Form) -> Response:
        slot, why = request.path_params["slot"], form.get("why", "").strip()
        self._check_version(slot, form)
        if not why:
            raise Refusal(400, "the reason is empty; say why, it is kept in the audit log")
        gates = form.get("gates", "").strip()
        try:
            record = loads(gates) if gates else None
        except ValueError as error:
            raise Refusal(400, f"the gates' record is not JSON: {error}") from None
        if not isinstance(record, dict | None):
            raise Refusal(400, "the gates' record is no JSON object")
        change, behind = self._desk.promote(
            slot,
            read_route(form.get("route", "")),
            caller.who,
            why=why,
            gates=record,
            override="" if record is not None else why,
        )
        return _made(slot, change.version.version, behind)

    def ask_rollback(self, request: Request, caller: Caller) -> Response:
        slot = request.path_params["slot"]
        self._desk.required(slot)
        versions = self._desk.control.history(slot)
        target = _version(request.query_params.get("to", ""), versions)
        if target is None:
            with self._desk.control.reading() as connection:
                target = history.before(connection, slot)
        return self._page("rollback.html.j2", caller, slot=slot, now=versions[-1], target=target, max_why=MAX_WHY)

    def rollback(self, request: Request, caller: Caller, form: Form) -> Response:
        slot = request.path_params["slot"]
        self._check_version(slot, form)
        target = _version(form.get("to", ""), self._desk.control.history(slot))
        change, behind = self._desk.rollback(
            slot, caller.who, form.get("why", "").strip(), None if target is None else target.version
        )
        return _made(slot, change.version.version, behind)

    def _check_version(self, slot: str, form: Form) -> None:
        """Raises ``Refusal`` when the slot is not the one that the form was made for."""
        self._desk.required(slot)
        version = self._desk.control.history(slot)[-1].version
        if form.get("version") != str(version):
            raise Refusal(409, f"slot {slot} was changed meanwhile (version {version} is in force); look again")

    # What happened

    def calls(self, request: Request, caller: Caller) -> Response:
        slot = request.query_params.get("slot", "")
        calls = self._desk.calls(LIVE_ROWS, slot=slot)
        return self._page(
            "calls.html.j2",
            caller,
            calls=calls[::-1],
            names=self._desk.key_names(),
            slot=slot,
            slots=[version.slot for version in self._desk.control.slots()],
            last=calls[-1]["seq"] if calls else 0,
            paused="paused" in request.query_params,
        )

    def rows(self, request: Request, caller: Caller) -> Response:
        """New rows of the live list, the newest first."""
        after = request.query_params.get("after", "")
        if not after.isascii() or not after.isdecimal() or len(after) > 15:
            raise Refusal(400, "after: expected the seq of a call", param="after")
        slot = request.query_params.get("slot", "")
        calls = self._desk.calls(LIVE_ROWS, after_seq=int(after), slot=slot)
        text = render("call_rows.html.j2", calls=calls[::-1], names=self._desk.key_names() if calls else {})
        last = str(calls[-1]["seq"]) if calls else after
        return Response(text, headers={"x-last-seq": last, "x-calls": str(len(calls))}, media_type="text/html")

    def ledger(self, request: Request, caller: Caller) -> Response:
        return self._page("ledger.html.j2", caller, **ledger_page.values(self._desk, request.query_params))

    def shadow(self, request: Request, caller: Caller) -> Response:
        days = ledger_page.days_of(request.query_params)
        lines = self._desk.agreement(since_us=ledger_page.midnight(days))
        budget = self._desk.shadow_budget()
        return self._page(
            "shadow.html.j2", caller, lines=lines, budget=budget, days=days, periods=ledger_page.PERIODS
        )

    def sessions(self, request: Request, caller: Caller) -> Response:
        return self._page("sessions.html.j2", caller, **session_page.listing(self._desk, request.query_params))

    def session(self, request: Request, caller: Caller) -> Response:
        session, tools = self._desk.session(request.path_params["session"])
        values = session_page.values(session, tools, request.query_params)
        return self._page("session.html.j2", caller, **values)

    def keys(self, request: Request, caller: Caller) -> Response:
        control = self._desk.control
        stored = control.keys(revoked=True)
        spends = {one.key.key_id: control.spend(one.key.key_id) for one in stored}
        return self._page("keys.html.j2", caller, stored=stored, spends=spends)


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form; the last of equal names. Raises ``Refusal``."""
    from firstchair.gateway.console.app import read_raw

    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refusal(415, "content-type: expected application/x-www-form-urlencoded")
    raw = await read_raw(request)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, max_num_fields=50, errors="strict")
    except ValueError:
        raise Refusal(400, "the form is not UTF-8, or has too many fields") from None
    return dict(pairs)


def _asked_route(query: Mapping[str, str]) -> ModelRoute:
    """``route=provider/model``, or ``provider`` and ``model`` apart."""
    return read_route(query.get("route") or f"{query.get('provider', '')}/{query.get('model', '').strip()}")


def _version(text: str, versions: list[SlotVersion]) -> SlotVersion | None:
    """The version of this number; ``None`` for no number. Raises ``Refusal``."""
    if not text:
        return None
    for version in versions:
        if str(version.version) == text and version.config is not None:
            return version
    raise Refusal(404, f"to: found {text[:20]!r}; expected a version of the slot that has a configuration")


def _local(target: str) -> str:
    """``target`` when it is a page here, else the first page: a login leads nowhere else."""
    plain = target.isprintable() and target.isascii() and "\\" not in target
    return target if plain and target.startswith("/") and not target.startswith("//") else "/"


def _made(slot: str, version: int, behind: list[str]) -> Response:
    return RedirectResponse(f"/slots/{quote(slot)}?made={version}&behind={len(behind)}", 303)
