"""`gateway show` and `gateway shadow`: single calls, and where a shadow did something else."""

from __future__ import annotations

import json

import pytest
import yaml
from tests.gateway.recording.calls import READERS, record, said, user

from firstchair.chat.messages import Message
from firstchair.cli.tables import rate_row
from firstchair.evals.stats import rate
from firstchair.gateway.config import load_config
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.control.snapshot import Budget
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.records import CallRecord, encode_record
from firstchair.gateway.serve import sink_settings
from firstchair.gateway.sink import Sink
from firstchair.gateway.spool import SpoolWriter

CONFIG = {
    "database": "gateway.db",
    "spool": "spool",
    "recording": {"store": "traces.db"},
    "providers": {"local": {"type": "openai-compatible", "base_url": "http://127.0.0.1:8000/v1"}},
}


@pytest.fixture
def gateway(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(CONFIG))
    ControlStore.open(tmp_path / "gateway.db").close()

    def call(*arguments, code=0):
        found, out, err = run("gateway", *arguments)
        assert found == code, out + err
        return out if code == 0 else err

    return call


def keep(tmp_path, *records: CallRecord) -> None:
    """As a gateway does it: into the spool, and from there by the sink to where it keeps calls."""
    config = sink_settings(load_config(tmp_path / "gateway.yaml"))
    with SpoolWriter(config.spool, "w0") as spool:
        assert all(spool.append(encode_record(one)) for one in records)
    with Sink(config, readers=READERS) as sink:
        assert sink.drain(20), sink.status()


def test_a_recorded_call_is_shown_whole_and_its_body_byte_for_byte(gateway, tmp_path):
    body = b'{"model": "m",  "n": 1.50, "messages": []}'
    large = {"model": "m", "messages": [user("x" * 300_000)]}
    answer, _ = said("done")
    keep(
        tmp_path,
        record([], answer, call_id="a", body=body, received_us=1_750_000_000_000_000),
        record([], answer, call_id="b", body=json.dumps(large).encode()),
        record([], answer, call_id="c", body=b"not json \xff"),
    )
    assert [path for path in (tmp_path / "spool" / "blobs").rglob("*") if path.is_file()]  # the large one
    shown = json.loads(gateway("show", "a"))
    assert shown["request"] == {"model": "m", "n": 1.5, "messages": []}
    assert (shown["call_id"], shown["received"][:10]) == ("a", "2025-06-15")
    assert "done" in json.dumps(shown["answer"])
    assert gateway("show", "a", "--request") == body.decode()
    assert json.loads(gateway("show", "b"))["request"] == large
    assert json.loads(gateway("show", "c"))["request"] == "not json \\xff"


def test_a_shadow_is_shown_with_the_request_that_it_was_sent_a_copy_of(gateway, run, tmp_path):
    body = json.dumps({"model": "m", "messages": [user("x" * 300_000)]}).encode()  # large: in the blob folder
    answer, _ = said("done")
    shadow = shadow_call("s", shadow_of="p", answer=answer)
    keep(
        tmp_path,
        record([], answer, call_id="p", body=body),
        shadow,
        shadow_call("t", shadow_of="gone", answer=answer),
    )
    shown = json.loads(gateway("show", "s"))
    assert (shown["call_id"], shown["request_of"]) == ("s", "p")
    assert shown["request"] == json.loads(body)
    assert "request_of" not in json.loads(gateway("show", "p"))
    code, out, err = run("gateway", "show", "s", "--request")
    assert (code, out, err) == (0, body.decode(), "the request of call p, whose shadow this is:\n")
    lost = json.loads(gateway("show", "t"))
    assert (lost["request_of"], lost["request"]) == ("gone", None)
    assert "call gone, which is no longer recorded" in gateway("show", "t", "--request", code=2)


def test_a_call_that_is_not_there_says_where_to_look(gateway, tmp_path):
    for _ in ("no sink ever ran", "another call is there"):
        assert "call 'a': not recorded here; `firstchair gateway tail --json`" in gateway("show", "a", code=2)
        keep(tmp_path, record([user("x")], None, call_id="b"))
    (tmp_path / "gateway.db").unlink()
    assert "gateway.db" in gateway("show", "a", code=2)


def shadow_call(call_id: str, answer: Message | None = None, **fields: object) -> CallRecord:
    route = {"provider": "local", "provider_model": "small", "cost_nano": 5}
    return record([], answer, call_id=call_id, variant="shadow", **route, **fields)


def test_shadows_are_summed_up_and_the_calls_that_differ_are_named(gateway, tmp_path):
    assert gateway("shadow") == "no shadow calls\n"
    agreements = ("same", "same", "same", "different", "same_tool", "unscored")
    calls = [
        shadow_call(f"s{place}", shadow_of=f"p{place}", agreement=found, received_us=10**15 + place)
        for place, found in enumerate(agreements)
    ]
    with ControlStore.open(tmp_path / "gateway.db") as store, store.transaction() as connection:
        insert_records(connection, [record([], None, call_id="p0"), *calls])
    data = json.loads(gateway("shadow", "--json"))
    (line,) = data["shadows"]
    assert line["same"] == rate_row(rate([1, 1, 1, 0, 0], [1] * 5, range(5)))
    assert (line["same"]["value"], line["same"]["n"], line["sessions"]) == (0.6, 5, 5)
    assert (line["slot"], line["route"], line["calls"], line["cost_nano"]) == ("main", "local/small", 6, 30)
    assert [(row["shadow_of"], row["call_id"]) for row in data["differ"]] == [("p4", "s4"), ("p3", "s3")]
    table = gateway("shadow")
    assert "60.0%" in table
    assert "p4" in table
    assert "s0" not in table
    assert len(json.loads(gateway("shadow", "-n", 1, "--json"))["differ"]) == 1
    assert json.loads(gateway("shadow", "--slot", "other", "--json")) == {
        "shadows": [],
        "differ": [],
        "budget": None,
    }
    assert json.loads(gateway("shadow", "--since", "2030-01-01", "--json"))["shadows"] == []


def test_the_budget_of_shadows_is_told_beside_what_it_stopped(gateway, tmp_path):
    config = {**CONFIG, "shadow": {"budget_usd": 0.5, "budget_period": "month"}}
    (tmp_path / "gateway.yaml").write_text(yaml.safe_dump(config))
    told = {"budget_nano": 5 * 10**8, "budget_period": "month", "spent_nano": 0, "reserved_nano": 0, "not_sent": 0}
    assert json.loads(gateway("shadow", "--json"))["budget"] == told
    with ControlStore.open(tmp_path / "gateway.db") as store:
        store.open_account("shadow")
        store.settle("shadow", 0, 4 * 10**8, budget=Budget(5 * 10**8, "month"))
    counts = {'firstchair_shadow_dropped_total{reason="budget"}': 1234, "firstchair_workers": 1}
    (tmp_path / "spool" / "metrics").mkdir(parents=True)
    (tmp_path / "spool" / "metrics" / "w0.json").write_text(json.dumps({"at_s": 0, "counts": counts, "gauges": {}}))
    last = gateway("shadow").splitlines()[-1]
    assert last == "budget: spent 0.4000 of 0.5000 $ a month; 1,234 copies were not sent for want of money so far"


def test_a_shadow_that_could_never_be_compared_has_no_rate(gateway, tmp_path):
    with ControlStore.open(tmp_path / "gateway.db") as store, store.transaction() as connection:
        insert_records(connection, [shadow_call("s", shadow_of="p", agreement="unscored")])
    (line,) = json.loads(gateway("shadow", "--json"))["shadows"]
    assert line["same"] == {"value": None, "n": 0, "low": None, "high": None}
    assert "local/small" in gateway("shadow")
