"""Half of a surrogate pair, which JSON can escape and UTF-8 cannot hold, in every place of a call.

The call is answered or refused with 400, and every call is one record, which sink and trace store take.
"""

import json

import httpx
import pytest
from sqlalchemy import select

from firstchair.chat.messages import ToolCall
from firstchair.gateway.control import tables
from firstchair.gateway.serve import sink_settings
from firstchair.gateway.sink import Sink
from firstchair.gateway.spool import losses_of
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_answers import body_of
from firstchair.testing.scripted_events import events_of
from firstchair.testing.scripted_upstream import Raw, Reply, Script
from firstchair.traces.database import open_engine, reading, store_url
from firstchair.traces.store import TraceStore

KINDS = ("anthropic", "openai", "openai-compatible")
HALF = "\ud800"
DEEP = '{"q":"a\\ud800b"}'
"""Arguments as text: the escape stands in JSON within JSON, which the body's own reader cannot see."""
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}


def chat(text="Hi", name="look_up", arguments="{}", told="seen", about="Looks.", user="ann"):
    call = {"id": "c1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {
        "messages": [
            {"role": "user", "content": text},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": told},
        ],
        "tools": [{"type": "function", "function": {"name": name, "description": about, "parameters": SCHEMA}}],
        "user": user,
    }


def messages(text="Hi", name="look_up", arguments="{}", told="seen", about="Looks.", user="ann"):
    put = json.loads(arguments)
    return {
        "max_tokens": 50,
        "messages": [
            {"role": "user", "content": text},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": name, "input": put}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": told}]},
        ],
        "tools": [{"name": name, "description": about, "input_schema": SCHEMA}],
        "metadata": {"user_id": user},
    }


def responses(text="Hi", name="look_up", arguments="{}", told="seen", about="Looks.", user="ann"):
    return {
        "input": [
            {"role": "user", "content": text},
            {"type": "function_call", "call_id": "c1", "name": name, "arguments": arguments},
            {"type": "function_call_output", "call_id": "c1", "output": told},
        ],
        "tools": [{"type": "function", "name": name, "description": about, "parameters": SCHEMA}],
        "user": user,
        "store": False,
    }


INBOUND = {"/v1/chat/completions": chat, "/v1/messages": messages, "/v1/responses": responses}
PLACES = {
    "text": {"text": f"a{HALF}b"},
    "text within JSON": {"text": DEEP},
    "low half": {"text": "\udfff"},
    "two high halves": {"text": "\ud83d\ud83d"},
    "name": {"name": f"look{HALF}"},
    "arguments": {"arguments": DEEP},
    "key in the arguments": {"arguments": '{"\\ud800":1}'},
    "result": {"told": f"{HALF}"},
    "description": {"about": f"{HALF}."},
    "user": {"user": f"{HALF}ann"},
}


@pytest.fixture(scope="module")
def client():
    with httpx.Client(timeout=30) as client:
        yield client


def ask(client, running, path, content, **headers):
    sent = {"x-api-key": running.key, "content-type": "application/json", **headers}
    raw = [(name.encode(), value if isinstance(value, bytes) else value.encode()) for name, value in sent.items()]
    return client.post(running.url + path, content=content, headers=raw)


def check_all_is_kept(running, calls):
    """Ledger rows = calls; every one that was not refused is in a session. ``calls``: status by id."""
    assert losses_of(running.config.spool) == []
    with Sink(sink_settings(running.config)) as sink:
        assert sink.drain(60), sink.status()
        status = sink.status()
    refused = {call_id for call_id, code in calls.items() if code == 400}
    assert (status.lost, status.damage, status.error) == ({}, (), "")
    assert status.left_out == ({"refused": len(refused)} if refused else {})
    with reading(open_engine(store_url(running.config.database), must_exist=True)) as connection:
        assert set(connection.execute(select(tables.ledger.c.call_id)).scalars()) == set(calls)
    with TraceStore.open(running.config.recording.store, must_exist=True) as store:
        stored = {call.call_id for session in store.sessions() for call in session.calls}
    assert stored == set(calls) - refused


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", INBOUND)
def test_half_a_pair_from_a_client_is_answered_or_refused_and_recorded(tmp_path, upstream, client, path, kind):
    slot = {"slot": "main", "match": ["main*"], "primary": {"provider": "up", "model": "m"}}
    calls = {}
    with running_gateway(tmp_path, {"up": provider(upstream.base_url, kind)}, [slot]) as running:
        for place, fields in PLACES.items():
            for stream in (False, True):
                body = json.dumps({"model": "main", "stream": stream, **INBOUND[path](**fields)})
                response = ask(client, running, path, body)
                assert response.status_code in (200, 400), f"{place}: {response.text}"
                if response.status_code == 400 and "arguments" not in place:
                    assert "half of a surrogate pair" in response.json()["error"]["message"], place
                calls[response.headers["request-id"]] = response.status_code
        whole = {"model": "main", **INBOUND[path](text="\U0001f30d")}
        named = [
            ask(client, running, path, json.dumps({**whole, "model": f"main-{HALF}"})),
            ask(client, running, path, json.dumps({**whole, f"x{HALF}": 1})),
            ask(client, running, path, json.dumps(whole), **{"x-firstchair-session": b"\xed\xa0\x80"}),
            ask(client, running, path, json.dumps(whole), **{"user-agent": b"\xed\xa0\x80"}),
        ]
        assert [response.status_code for response in named] == [400, 400, 200, 200]
        calls |= {response.headers["request-id"]: response.status_code for response in named}
        records = running.records(len(calls))
        assert {record.call_id: record.status for record in records} == calls
        assert running.worker.counters["faults"] == 0
        assert not any(breaker.wait_s(0.0) for breaker in running.worker.setup.breakers.values())
    check_all_is_kept(running, calls)


ANSWERS = {
    "text within JSON": Script((Reply(text=DEEP),)),
    "arguments": Script((Reply(calls=(ToolCall(id="c1", name="look_up", arguments=DEEP),)),)),
    "broken arguments": Script((Reply(calls=(ToolCall(id="c1", name="look_up", arguments='{"q":"\\ud8'),)),)),
}


SPOILT = Reply(text="one HALF two")


def spoilt(seen):
    """``SPOILT`` with half of a pair in its text, which no JSON writer of ours would write."""
    wire = {"/v1/messages": "anthropic", "/v1/responses": "responses"}.get(seen.path, "openai")
    if seen.body.get("stream"):
        events = [event.replace(b"HALF", b"\\ud800") for event in events_of(SPOILT, wire, seen.body)]
        return Raw(body=tuple(events), content_type="text/event-stream")
    return Raw(body=json.dumps(body_of(SPOILT, wire, seen.body)).replace("HALF", "\\ud800").encode())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("path", INBOUND)
def test_half_a_pair_from_a_provider_is_passed_on_or_told_as_a_bad_answer(tmp_path, upstream, client, path, kind):
    slot = {"slot": "main", "primary": {"provider": "up", "model": "m"}, "retries": {"attempts": 1}}
    calls = {}
    breaker = {"failures": 100}
    with running_gateway(tmp_path, {"up": provider(upstream.base_url, kind)}, [slot], breaker=breaker) as running:
        for name, script in {**ANSWERS, "text": Script(by=spoilt)}.items():
            upstream.script = script
            for stream in (False, True):
                response = ask(
                    client, running, path, json.dumps({"model": "main", "stream": stream, **INBOUND[path]()})
                )
                # Half of a pair in the JSON itself is no JSON.
                assert response.status_code == (502 if name == "text" else 200), f"{name}: {response.text}"
                calls[response.headers["request-id"]] = response.status_code
        records = running.records(len(calls))
        assert {record.call_id: record.status for record in records} == calls
        assert running.worker.counters["faults"] == 0
    check_all_is_kept(running, calls)
