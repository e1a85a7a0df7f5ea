"""The console's pages: login, forms that only their own pages can send, and stored text that stays text."""

import json
import time

import pytest
from tests.gateway.console.traffic import HOSTILE

from firstchair.gateway.canary import CanaryWatch, canary_state
from firstchair.gateway.console.access import COOKIE, LOGIN_S, Access
from firstchair.gateway.console.pages import _local
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.testing.gate_records import gate_record

PAGES = (
    *("/", "/slots/desk", "/slots/notes", "/slots/desk/promote?route=local/orchestrator-4b", "/slots/desk/rollback"),
    *("/calls", "/calls?slot=desk", "/calls/rows?after=0", "/ledger", "/ledger?days=0&slot=desk", "/ledger?days=x"),
    *("/shadow", "/sessions", "/sessions?tool=find_trips&skip=1", "/sessions/shop/0", "/sessions/shop/2", "/keys"),
)


def test_every_page_wants_a_login_and_then_comes(console):
    for page in PAGES:
        answer = console.client.get(page, follow_redirects=False)
        assert answer.status_code == 303, page
        assert answer.headers["location"].startswith("/login?next=%2F")
    console.log_in()
    for page in PAGES:
        answer = console.client.get(page)
        assert answer.status_code == 200, (page, answer.text)
        assert "<script>" not in answer.text
        assert "onerror=&#34;" not in answer.text.replace(HOSTILE, "") or "&lt;img" in answer.text
        assert "<img" not in answer.text
        assert answer.headers["cache-control"] == "no-store"
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy


def test_a_slot_shows_of_its_canary_what_the_judge_decides(console):
    console.log_in()
    version = console.store.history("desk")[-1]
    state = canary_state(console.store, version, now_us=time.time_ns() // 1000)
    assert f"keep: {state.decision.reason}" in console.client.get("/slots/desk").text
    with console.store.transaction() as connection:
        insert_records(connection, [failed_canary(number, version.version) for number in range(9)])
    page = console.client.get("/slots/desk").text
    assert "roll back: error rate" in page
    assert CanaryWatch(console.store).check(time.time_ns() // 1000)[0].decision.reason in page


def failed_canary(number, version):
    return CallRecord(
        call_id=f"bad-{number}",
        received_us=time.time_ns() // 1000,
        worker="w0",
        slot="desk",
        slot_version=version,
        dialect="openai",
        requested_model="desk",
        variant="canary",
        outcome=Outcome.FAILED,
        status=502,
        failure=FailureKind.OVERLOADED,
    )


def test_the_cookie_is_strict_and_ends(console):
    for secret, status in (("fc_wrong", 401), (console.secrets["call"], 403), (console.secrets["traces"], 403)):
        answer = console.client.post("/login", data={"key": secret})
        assert answer.status_code == status
        assert "set-cookie" not in answer.headers
    answer = console.client.post("/login", data={"key": console.secrets["admin"]}, follow_redirects=False)
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert console.secrets["admin"] not in cookie
    behind_tls = {"x-forwarded-proto": "https"}
    answer = console.client.post("/login", data={"key": console.secrets["admin"]}, headers=behind_tls)
    assert "secure" in answer.history[0].headers["set-cookie"].lower()


def test_a_login_ends_by_time_by_logging_out_and_with_its_key(console):
    now = [0.0]
    access = Access(console.store, require_keys=True, clock=lambda: now[0])
    cookie = access.log_in(console.secrets["admin"])
    now[0] = LOGIN_S - 1
    assert access.console_caller(cookie).who == "key admin-key"
    now[0] = LOGIN_S
    assert access.console_caller(cookie) is None
    cookie = access.log_in(console.secrets["admin"])
    access.log_out(cookie)
    assert access.console_caller(cookie) is None
    cookie = access.log_in(console.secrets["admin"])
    console.store.revoke_key("admin-key", who="test")
    assert access.console_caller(cookie) is None


def test_promote_and_roll_back_by_form(console):
    token = console.log_in()
    form = {"token": token, "version": "2", "route": "local/orchestrator-4b", "why": "it is better"}
    answer = console.client.post("/slots/desk/promote", data=form)
    assert "Version 3 is in force" in answer.text
    assert console.store.snapshot().slot_for("desk").primary.model == "orchestrator-4b"
    assert console.store.audit_log(1)[0].details["override"] == "it is better"
    assert console.client.post("/slots/desk/rollback", data=form).status_code == 409  # made for version 2
    form = {"token": token, "version": "3", "to": "2"}
    assert "Version 4 is in force" in console.client.post("/slots/desk/rollback", data=form).text
    assert console.store.snapshot().slot_for("desk").primary.model == "claude-sonnet-4-6"


def test_a_slot_back_at_its_first_version_offers_no_way_further_back(console):
    token = console.log_in()
    offer = 'href="/slots/desk/rollback">'
    for page in ("/", "/slots/desk"):
        assert offer in console.client.get(page).text
    form = {"token": token, "version": "2", "to": "1"}
    assert "Version 3 is in force" in console.client.post("/slots/desk/rollback", data=form).text
    for page in ("/", "/slots/desk"):
        assert offer not in console.client.get(page).text


@pytest.mark.parametrize("path", ["/slots/desk/promote", "/slots/desk/rollback", "/logout"])
def test_a_form_of_another_page_changes_nothing(console, path):
    token = console.log_in()
    form = {"token": token, "version": "2", "route": "local/orchestrator-4b", "why": "x"}
    for wrong in ("", "guess", "\u00e9"):
        assert console.client.post(path, data={**form, "token": wrong}).status_code == 403
    for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}):
        assert console.client.post(path, data=form, headers=headers).status_code == 403
    assert console.client.post(path, content=b'{"a":1}', headers={"content-type": "text/plain"}).status_code == 415
    assert console.store.history("desk")[-1].version == 2
    assert console.client.get("/").status_code == 200


def test_an_own_origin_may_change(console):
    token = console.log_in()
    form = {"token": token, "version": "2", "why": "x"}
    own = {"origin": "http://localhost:8401", "sec-fetch-site": "same-origin"}
    assert console.client.post("/slots/desk/rollback", data=form, headers=own).status_code == 200


def test_a_reason_is_wanted_and_the_gates_are_read(console):
    token = console.log_in()
    form = {"token": token, "version": "2", "route": "local/orchestrator-4b", "why": " "}
    assert console.client.post("/slots/desk/promote", data=form).status_code == 400
    form["why"] = "the gates passed"
    for gates, status in (("{", 400), ("[]", 400), ('{"passed": false}', 409)):
        assert console.client.post("/slots/desk/promote", data={**form, "gates": gates}).status_code == status
    gates = json.dumps(gate_record("local/orchestrator-4b", "desk"), indent=2)
    assert console.client.post("/slots/desk/promote", data={**form, "gates": gates}).status_code == 200
    assert console.store.audit_log(1)[0].details["gates"]["passed"] is True


def test_without_keys_only_loopback_names_are_answered_and_forms_still_want_their_token(open_console):
    client = open_console.client
    assert client.get("/").status_code == 200
    assert client.get("/api/slots").status_code == 200
    for host in ("evil.example", "evil.example:8401", "127.0.0.1.evil.example", "[bad"):
        assert client.get("/api/slots", headers={"host": host}).status_code == 403
    for host in ("127.0.0.1:8401", "[::1]:8401", "LOCALHOST"):
        assert client.get("/api/slots", headers={"host": host}).status_code == 200
    evil = {"origin": "http://evil.example"}
    assert client.post("/api/slots/desk/rollback", json={}, headers=evil).status_code == 403
    assert client.post("/slots/desk/rollback", data={"version": "2"}).status_code == 403
    form = {"token": open_console.token(), "version": "2"}
    assert client.post("/slots/desk/rollback", data=form).status_code == 200


@pytest.mark.parametrize(
    ("target", "leads_to"),
    [
        ("/calls?slot=a", "/calls?slot=a"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil", "/"),
        ("/a\r\nset-cookie: x=1", "/"),
        ("", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_a_login_leads_nowhere_else(console, target, leads_to):
    assert _local(target) == leads_to
    form = {"key": console.secrets["admin"], "next": target}
    answer = console.client.post("/login", data=form, follow_redirects=False)
    assert answer.headers["location"] == leads_to
    assert answer.headers.get_list("set-cookie")[0].startswith(COOKIE)
    assert len(answer.headers.get_list("set-cookie")) == 1


def test_what_is_not_there_is_a_page_too(console):
    console.log_in()
    for page, status in (("/slots/none", 404), ("/sessions/none", 404), ("/nothing", 404), ("/slots/a%2fb", 404)):
        answer = console.client.get(page)
        assert (answer.status_code, "That did not work" in answer.text) == (status, True)
    assert console.client.get("/slots/desk/promote?route=x").status_code == 409
    assert console.client.get("/slots/desk/rollback?to=99").status_code == 404
    assert console.client.get("/calls/rows?after=-1").status_code == 400
    assert console.client.get("/calls/rows?after=%C2%B2").status_code == 400


def test_new_rows_come_after_the_last_one(console):
    console.log_in()
    page = console.client.get("/calls").text
    last = page.split('data-last="')[1].split('"')[0]
    answer = console.client.get(f"/calls/rows?after={last}")
    assert (answer.headers["x-calls"], answer.headers["x-last-seq"], answer.text.strip()) == ("0", last, "")
    answer = console.client.get(f"/calls/rows?after={int(last) - 2}")
    assert (answer.headers["x-calls"], answer.headers["x-last-seq"]) == ("2", last)
    assert answer.text.count("<tr") == 2
