"""The admin API: who may do what, what a change does, and that every wrong request is a 4xx in one shape."""

import json
import threading

import jsonschema
import pytest

from firstchair.gateway.console.api import OPERATIONS
from firstchair.gateway.control.snapshot import Budget
from firstchair.gateway.reload import Control, Reloaded
from firstchair.testing.gate_records import gate_record

EVERY = [(op.method, op.path.format(slot="desk", key="shop", session="shop/0"), op) for op in OPERATIONS]
BODIES = {
    "put_slot": {"config": {"slot": "desk", "primary": {"provider": "local", "model": "m"}}},
    "promote": {"route": "local/orchestrator-4b", "override": "it is better"},
    "rollback": {},
    "create_key": {"name": "made"},
    "reload": {"why": "a new key"},
}


def told(answer, status):
    """The error, which always has the one shape."""
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"}
    assert set(answer.json()["error"]) == {"type", "message", "param"}
    return answer.json()["error"]["message"]


def test_every_operation_is_closed_to_a_call_key_and_to_nobody(console):
    for method, path, op in EVERY:
        body = {"json": BODIES[op.name]} if op.body else {}
        assert "scope" in told(console.ask(method, path, scope="call", **body), 403)
        told(console.client.request(method, path, **body), 401)
        told(console.client.request(method, path, headers={"x-api-key": "fc_wrong"}, **body), 401)


def test_a_key_for_traces_reads_sessions_and_ledger_and_changes_nothing(console):
    for method, path, op in EVERY:
        body = {"json": BODIES[op.name]} if op.body else {}
        status = console.ask(method, path, scope="traces", **body).status_code
        assert status == (200 if op.scope == "traces" else 403), path


def test_every_answer_is_what_the_document_says(console, tmp_path):
    control = Control(tmp_path / "spool")
    gateway = threading.Thread(target=lambda: control.asked().answer(Reloaded(changed=("prices",))))
    gateway.start()
    document = console.client.get("/api/openapi.json").json()
    for method, path, op in sorted(EVERY, key=lambda every: every[0] == "DELETE"):
        body = {"json": BODIES[op.name]} if op.body else {}
        answer = console.ask(method, path, **body)
        assert answer.status_code == op.status, answer.text
        described = document["paths"][op.path][method.lower()]["responses"][str(op.status)]
        schema = {**described["content"]["application/json"]["schema"], "components": document["components"]}
        jsonschema.Draft202012Validator(schema).validate(answer.json())
    gateway.join()
    control.close()


def test_a_reload_without_a_gateway_is_a_conflict(console):
    assert "no gateway runs on the spool" in told(console.ask("POST", "/api/reload", json={}), 409)


def test_a_cookie_opens_no_api(console):
    console.log_in()
    told(console.client.get("/api/slots"), 401)


def test_two_keys_that_differ_are_none(console):
    right = console.secrets["admin"]
    for given in ("Bearer fc_other", "Basic eDp5", f"Bearer x{right}"):
        told(console.ask("GET", "/api/slots", headers={"authorization": given}), 401)
    assert console.ask("GET", "/api/slots", headers={"authorization": f"Bearer {right}"}).status_code == 200
    assert console.client.get("/api/slots", headers={"authorization": f"bearer {right}"}).status_code == 200


def test_a_removed_slot_is_gone_until_it_is_brought_back(console):
    assert console.ask("DELETE", "/api/slots/notes?why=unused").status_code == 200
    told(console.ask("GET", "/api/slots/notes"), 404)
    assert console.ask("POST", "/api/slots/notes/rollback", json={}).status_code == 200
    assert console.ask("GET", "/api/slots/notes").json()["version"] == 3


def test_promote_and_rollback_change_the_slot_and_say_who_and_why(console):
    answer = console.ask("POST", "/api/slots/desk/promote", json=BODIES["promote"])
    assert answer.json()["slot"]["config"]["primary"]["model"] == "orchestrator-4b"
    assert console.store.snapshot().slot_for("desk").fallbacks[0].model == "claude-sonnet-4-6"
    entry = console.ask("GET", "/api/audit?limit=1").json()["entries"][0]
    assert (entry["who"], entry["action"], entry["why"]) == ("key admin-key", "slot.promote", "it is better")
    assert console.ask("POST", "/api/slots/desk/rollback", json={"why": "worse"}).status_code == 200
    assert console.store.snapshot().slot_for("desk").primary.model == "claude-sonnet-4-6"
    versions = console.ask("GET", "/api/slots/desk/history").json()["versions"]
    assert [version["action"] for version in versions] == ["set", "set", "promote", "rollback"]


def test_gates_count_only_for_their_own_route(console):
    body = {"route": "local/orchestrator-4b", "gates": gate_record("local/other", "desk")}
    assert "gates.route" in told(console.ask("POST", "/api/slots/desk/promote", json=body), 409)
    body["gates"]["route"] = "local/orchestrator-4b"
    assert "gates.record_sha256" in told(console.ask("POST", "/api/slots/desk/promote", json=body), 409)
    body["gates"] = gate_record("local/orchestrator-4b", "desk")
    assert console.ask("POST", "/api/slots/desk/promote", json=body).status_code == 200


def test_a_slot_is_set_only_on_the_version_that_was_seen(console):
    body = {**BODIES["put_slot"], "if_version": 1}
    assert "changed meanwhile" in told(console.ask("PUT", "/api/slots/desk", json=body), 409)
    assert console.ask("PUT", "/api/slots/desk", json={**body, "if_version": 2}).json()["slot"]["version"] == 3
    assert "as in the path" in told(console.ask("PUT", "/api/slots/other", json=body), 409)


def test_a_key_is_told_once_and_revoked(console):
    made = console.ask("POST", "/api/keys", json={"name": "agent", "scopes": ["admin"], "budget_nano": 5}).json()
    console.secrets["admin"], old = made["secret"], console.secrets["admin"]
    listed = console.ask("GET", "/api/keys").text
    assert made["key"]["key_id"] in listed
    assert made["secret"] not in listed
    assert console.ask("DELETE", "/api/keys/agent").status_code == 200
    told(console.ask("GET", "/api/keys"), 401)
    console.secrets["admin"] = old
    told(console.ask("DELETE", "/api/keys/agent"), 404)


def test_the_ledger_names_keys_and_its_total_is_its_lines(console):
    found = console.ask("GET", "/api/ledger?by=key").json()
    assert [line["label"] for line in found["lines"]] == ["shop"]
    by_day = console.ask("GET", "/api/ledger?by=day").json()
    assert sum(line["sums"]["cost_nano"] for line in by_day["lines"]) == found["total"]["sums"]["cost_nano"] > 0


def test_shadow_agreement_comes_with_its_interval(console):
    (line,) = console.ask("GET", "/api/shadow?slot=desk", scope="traces").json()["shadows"]
    assert (line["route"], line["calls"]) == ("local/orchestrator-4b", sum(line["counts"].values()))
    assert 0 <= line["same"]["low"] < line["same"]["value"] < line["same"]["high"] <= 1
    assert line["sessions"] == 3
    assert console.ask("GET", "/api/shadow?slot=notes").json()["shadows"] == []


def test_the_budget_of_shadows_is_told_by_the_api_and_on_the_page(console, tmp_path):
    console.store.open_account("shadow")
    console.store.settle("shadow", 0, 4 * 10**8, budget=Budget(5 * 10**8, "day"))
    metrics = tmp_path / "spool" / "metrics"
    metrics.mkdir(parents=True)
    counts = {'firstchair_shadow_dropped_total{reason="budget"}': 1}
    (metrics / "w0.json").write_text(json.dumps({"at_s": 0, "counts": counts, "gauges": {}}))
    told = {"budget_nano": 5 * 10**8, "budget_period": "day", "spent_nano": 4 * 10**8, "reserved_nano": 0}
    assert console.ask("GET", "/api/shadow", scope="traces").json()["budget"] == {**told, "not_sent": 1}
    console.log_in()
    page = console.client.get("/shadow").text
    assert "$0.4000 of $0.5000 a day spent. 1 copy was not sent" in page


def test_calls_go_on_after_the_last_one_seen(console):
    first = console.ask("GET", "/api/calls?limit=3").json()
    assert len(first["calls"]) == 3
    rest = console.ask("GET", f"/api/calls?after_seq={first['last_seq']}").json()
    assert rest == {"calls": [], "last_seq": first["last_seq"]}


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=x",
        "limit=1.0",
        "limit=99999999999999999999",
        "limit=1&limit=2",
        "slot=",
        "slot=%00",
        "after_seq=-1",
        "nope=1",
        "slot=..%2F..",
        "limit=%EF%BC%91",
    ],
)
def test_a_wrong_query_is_refused(console, query):
    told(console.ask("GET", f"/api/calls?{query}"), 400)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"[]", 400),
        (b"{", 400),
        (b'{"name": "\\ud800"}', 400),
        (b"\xff", 400),
        (b'{"name":"a","x":1}', 400),
        (b'{"name":"a","budget_nano":NaN}', 400),
        (b'{"name":"a","budget_nano":"5"}', 400),
        (b"[" * 5000, 400),
        (b'{"name":"a","name":"b"}', 400),
        (b'{"name":"shop"}', 409),
        (b'{"name":"a","why":"\\u0000"}', 409),
    ],
)
def test_a_wrong_body_is_refused(console, body, status):
    told(console.ask("POST", "/api/keys", content=body, headers={"content-type": "application/json"}), status)


def test_size_type_and_method_are_checked(console):
    json_type = {"content-type": "application/json"}
    told(console.ask("POST", "/api/keys", content=b" " * 1_000_001, headers=json_type), 413)
    told(console.ask("POST", "/api/keys", content=b"{}", headers={"content-type": "text/plain"}), 415)
    answer = console.ask("PATCH", "/api/keys")
    assert "GET" in answer.headers["allow"]
    told(answer, 405)


def test_paths_lead_nowhere_else(console):
    for path in ("/api/slots/..%2f..%2fgateway.db", "/api/sessions/..%2f..%2fetc%2fpasswd", "/api/nothing"):
        told(console.ask("GET", path), 404)
    for path in ("/assets/..%2fapp.py", "/assets/page.html.j2", "/assets/%2e%2e/app.py"):
        assert console.client.get(path).status_code == 404


def test_a_missing_trace_store_is_an_empty_one(console, tmp_path):
    for file in tmp_path.glob("traces.db*"):
        file.unlink()
    assert console.ask("GET", "/api/sessions").json() == {"sessions": [], "total": 0}
    told(console.ask("GET", "/api/sessions/shop/0"), 404)


def test_the_sink_status_is_told(console, tmp_path):
    assert console.ask("GET", "/api/status").json()["sink"] is None
    (tmp_path / "spool").mkdir()
    (tmp_path / "spool" / "sink.json").write_text(json.dumps({"at_us": 1, "pid": 2, "waiting_bytes": 3}))
    assert console.ask("GET", "/api/status").json()["sink"]["waiting_bytes"] == 3
