"""`gateway show` and `gateway shadow`: single calls, and where a shadow did something else."""

from __future__ import annotations

import json

import pytest
import yaml

from firstchair.chat.messages import Message, TextPart
from firstchair.evals.stats import wilson
from firstchair.gateway import recordings
from firstchair.gateway.blobs import BlobStore
from firstchair.gateway.control.ledger import insert_records
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.records import CallRecord, Outcome
from firstchair.traces.store import TraceStore

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


def record(call_id: str, **fields: object) -> CallRecord:
    return CallRecord(
        **{
            "call_id": call_id,
            "received_us": 1_750_000_000_000_000,
            "worker": "w0",
            "slot": "main",
            "dialect": "openai",
            "requested_model": "m",
            "provider": "local",
            "provider_model": "small",
            "outcome": Outcome.OK,
            "status": 200,
            "cost_nano": 5,
            **fields,
        }
    )


def keep(tmp_path, *records: CallRecord) -> None:
    with TraceStore.open(tmp_path / "traces.db") as store, store.transaction() as connection:
        recordings.metadata.create_all(connection)
        recordings.insert_recordings(connection, "s", records)


def test_a_recorded_call_is_shown_whole_and_its_body_byte_for_byte(gateway, tmp_path):
    body = b'{"model": "m",  "n": 1.50, "messages": []}'
    blob = BlobStore(tmp_path / "spool" / "blobs").put(b'{"large": true}')
    answer = Message(role="assistant", content=(TextPart(text="done"),))
    keep(
        tmp_path,
        record("a", request=body, answer=answer),
        record("b", request_blob=blob),
        record("c", request=b"not json \xff"),
    )
    shown = json.loads(gateway("show", "a"))
    assert shown["request"] == {"model": "m", "n": 1.5, "messages": []}
    assert (shown["call_id"], shown["received"][:10]) == ("a", "2025-06-15")
    assert "done" in json.dumps(shown["answer"])
    assert gateway("show", "a", "--request") == body.decode()
    assert json.loads(gateway("show", "b"))["request"] == {"large": True}
    assert json.loads(gateway("show", "c"))["request"] == "not json \\xff"


def test_a_call_that_is_not_there_says_where_to_look(gateway, tmp_path):
    assert "traces.db" in gateway("show", "a", code=2)
    TraceStore.open(tmp_path / "traces.db").close()
    for _ in ("no gateway ever wrote to it", "another call did"):
        assert "call 'a': not recorded here; `firstchair gateway tail --json`" in gateway("show", "a", code=2)
        keep(tmp_path, record("b", request=b"{}"))


def test_shadows_are_summed_up_and_the_calls_that_differ_are_named(gateway, tmp_path):
    assert gateway("shadow") == "no shadow calls\n"
    agreements = ("same", "same", "same", "different", "same_tool", "unscored")
    calls = [
        record(f"s{place}", variant="shadow", shadow_of=f"p{place}", agreement=found, received_us=10**15 + place)
        for place, found in enumerate(agreements)
    ]
    with ControlStore.open(tmp_path / "gateway.db") as store, store.transaction() as connection:
        insert_records(connection, [record("p0"), *calls])
    data = json.loads(gateway("shadow", "--json"))
    low, high = wilson(3, 5)
    (line,) = data["shadows"]
    assert line["same"] == {"value": 0.6, "n": 5, "low": low, "high": high}
    assert (line["slot"], line["route"], line["calls"], line["cost_nano"]) == ("main", "local/small", 6, 30)
    assert [(row["shadow_of"], row["call_id"]) for row in data["differ"]] == [("p4", "s4"), ("p3", "s3")]
    table = gateway("shadow")
    assert "60.0%" in table
    assert "p4" in table
    assert "s0" not in table
    assert len(json.loads(gateway("shadow", "-n", 1, "--json"))["differ"]) == 1
    assert json.loads(gateway("shadow", "--slot", "other", "--json")) == {"shadows": [], "differ": []}
    assert json.loads(gateway("shadow", "--since", "2030-01-01", "--json"))["shadows"] == []


def test_a_shadow_that_could_never_be_compared_has_no_rate(gateway, tmp_path):
    with ControlStore.open(tmp_path / "gateway.db") as store, store.transaction() as connection:
        insert_records(connection, [record("s", variant="shadow", shadow_of="p", agreement="unscored")])
    (line,) = json.loads(gateway("shadow", "--json"))["shadows"]
    assert line["same"] == {"value": None, "n": 0, "low": None, "high": None}
    assert "local/small" in gateway("shadow")
