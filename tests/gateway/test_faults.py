"""Bad days of providers and clients: a silent fallback before content, a proper error after it, one record."""

import json
import socket
import sqlite3
import threading
import time
from contextlib import contextmanager

import anthropic
import httpx
import openai
import pytest
from tests.gateway.conftest import saying
from tokenizers import Tokenizer, models, pre_tokenizers

from firstchair.chat.messages import ToolCall
from firstchair.gateway.dialects.base import FailureKind
from firstchair.gateway.records import Outcome
from firstchair.gateway.spool import losses_of
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Raw, Reply, Script

TIMEOUTS = {"connect_s": 2, "first_token_s": 0.3, "idle_s": 0.3, "total_s": 8}
ONCE = {"attempts": 1}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}]


def gateway(tmp_path, upstream, backup=None, kind="openai-compatible", slot=None, **more):
    providers = {"up": provider(upstream.base_url, kind)}
    main = {
        "slot": "main",
        "primary": {"provider": "up", "model": "first"},
        "timeouts": TIMEOUTS,
        "retries": ONCE,
        **(slot or {}),
    }
    if backup is not None:
        providers["spare"] = provider(backup.base_url, "anthropic")
        main["fallbacks"] = [{"provider": "spare", "model": "second"}]
    return running_gateway(tmp_path, providers, [main], **more)


def chat(running, **more):
    body = {"model": "main", "messages": [{"role": "user", "content": "Hi"}], **more}
    return httpx.post(
        running.url + "/v1/chat/completions",
        json=body,
        headers={"authorization": f"Bearer {running.key}"},
        timeout=20,
    )


def texts(response):
    """What a stream said, and its error event."""
    said, error = "", None
    for line in response.text.splitlines():
        if not line.startswith("data: ") or line == "data: [DONE]":
            continue
        event = json.loads(line[6:])
        if "error" in event:
            error = event["error"]
        elif event.get("choices"):
            said += event["choices"][0]["delta"].get("content") or ""
    return said, error


BEFORE_CONTENT = [
    (Fault("status", status=500), FailureKind.SERVER_ERROR),
    (Fault("status", status=529), FailureKind.OVERLOADED),
    (Fault("status", status=503), FailureKind.OVERLOADED),
    (Fault("status", status=429, retry_after="30"), FailureKind.RATE_LIMIT),
    (Fault("status", status=401), FailureKind.AUTHENTICATION),
    (Fault("status", status=404), FailureKind.NOT_FOUND),
    (
        Fault("status", status=400, error_code="context_length_exceeded", message="maximum context length is 10"),
        FailureKind.CONTEXT_OVERFLOW,
    ),
    (Fault("only_error", status=500), FailureKind.SERVER_ERROR),
    (Fault("hang_before_headers"), FailureKind.TIMEOUT),
    (Fault("cut_before_headers"), FailureKind.CONNECT),
    (Fault("not_json"), FailureKind.BAD_ANSWER),
]
STREAM_ONLY = [
    (Fault("error_first", status=500), None),
    (Fault("hang_after_headers"), FailureKind.TIMEOUT),
    (Fault("cut_after_events", after=1), FailureKind.BAD_ANSWER),
    (Fault("broken_json", after=0), FailureKind.BAD_ANSWER),
    (Fault("cut_after_bytes", after=20), FailureKind.BAD_ANSWER),
]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(("fault", "kind"), BEFORE_CONTENT, ids=lambda value: getattr(value, "kind", value))
def test_a_failure_before_the_content_falls_back_unseen(tmp_path, upstream, backup, fault, kind, stream):
    upstream.script = Script((Reply(text="lost", fault=fault),))
    hangs = {"slot": {"timeouts": {**TIMEOUTS, "answer_s": 0.3}}} if kind is FailureKind.TIMEOUT else {}
    with gateway(tmp_path, upstream, backup, **hangs) as running:
        response = chat(running, stream=stream)
        assert response.status_code == 200
        said = texts(response)[0] if stream else response.json()["choices"][0]["message"]["content"]
        assert said == "From the backup."
        assert response.headers["x-firstchair-provider"] == "spare/second"
        (record,) = running.records()
    assert (record.outcome, record.variant, record.provider) == (Outcome.OK, "fallback", "spare")
    assert record.attempts[0].failure is kind
    assert record.attempts[1].failure is None


@pytest.mark.parametrize(("fault", "kind"), STREAM_ONLY, ids=lambda value: getattr(value, "kind", value))
def test_a_stream_that_breaks_before_its_content_falls_back_unseen(tmp_path, upstream, backup, fault, kind):
    upstream.script = Script((Reply(text="lost", fault=fault),))
    with gateway(tmp_path, upstream, backup) as running:
        response = chat(running, stream=True)
        assert texts(response) == ("From the backup.", None)
        (record,) = running.records()
    assert record.outcome is Outcome.OK
    assert kind is None or record.attempts[0].failure is kind


AFTER_CONTENT = [
    Fault("error_late", after=3),
    Fault("cut_after_events", after=3),
    Fault("broken_json", after=3),
    Fault("broken_utf8", after=3),
    Fault("hang_after_events", after=3),
    Fault("no_terminal"),
    Fault("no_done"),
]


@pytest.mark.parametrize("fault", AFTER_CONTENT, ids=lambda fault: fault.kind)
def test_a_stream_that_breaks_after_content_ends_with_an_error_event(tmp_path, upstream, backup, fault):
    upstream.script = Script((Reply(text="one two three four five six seven", fault=fault),))
    with gateway(tmp_path, upstream, backup) as running:
        response = chat(running, stream=True)
        said, error = texts(response)
        assert said
        assert error["message"]
        assert "data: [DONE]" not in response.text
        (record,) = running.records()
    assert not backup.requests
    assert record.outcome is Outcome.INCOMPLETE
    assert record.status == 200
    assert record.answer.text.startswith(said)
    assert record.estimated
    assert record.usage.output > 0


@pytest.mark.parametrize("kind", ["split_utf8", "comments", "slow"])
def test_odd_but_whole_streams_arrive_whole(tmp_path, upstream, kind):
    upstream.script = Script((Reply(text="Grüße 🌍", fault=Fault(kind)),))
    with gateway(tmp_path, upstream) as running:
        assert texts(chat(running, stream=True)) == ("Grüße 🌍", None)
        assert running.records()[0].answer.text == "Grüße 🌍"


HI = [{"role": "user", "content": "Hi"}]
HEARD = {
    # The provider's status: what an OpenAI and an Anthropic client hear.
    429: (openai.RateLimitError, 429, anthropic.RateLimitError, 429, "rate_limit_error"),
    503: (openai.InternalServerError, 503, anthropic.OverloadedError, 529, "overloaded_error"),
    529: (openai.InternalServerError, 503, anthropic.OverloadedError, 529, "overloaded_error"),
    500: (openai.InternalServerError, 500, anthropic.InternalServerError, 500, "api_error"),
    504: (openai.InternalServerError, 504, anthropic.GatewayTimeoutError, 504, "timeout_error"),
}


@contextmanager
def sdks(running, max_retries=0):
    """Both vendors' clients, and one call on each of their wires."""
    chat = openai.OpenAI(base_url=running.url + "/v1", api_key=running.key, max_retries=max_retries)
    messages = anthropic.Anthropic(base_url=running.url, api_key=running.key, max_retries=max_retries)
    with chat, messages:
        yield (
            lambda **more: chat.chat.completions.create(model="main", messages=HI, **more),
            lambda **more: chat.responses.create(model="main", input="Hi", store=False, **more),
            lambda **more: messages.messages.create(model="main", max_tokens=9, messages=HI, **more),
        )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["anthropic", "openai"])
@pytest.mark.parametrize("status", HEARD)
def test_after_the_last_route_each_vendors_sdk_raises_what_it_knows(tmp_path, upstream, status, kind, stream):
    upstream.script = Script((Reply(fault=Fault("status", status=status, retry_after="7")),))
    openai_error, openai_status, anthropic_error, anthropic_status, word = HEARD[status]
    with gateway(tmp_path, upstream, kind=kind) as running, sdks(running) as (completion, response, message):
        for call, error, heard in (
            (completion, openai_error, openai_status),
            (response, openai_error, openai_status),
            (message, anthropic_error, anthropic_status),
        ):
            with pytest.raises(error) as told:
                call(stream=stream)
            assert told.value.status_code == heard
            assert told.value.response.headers["retry-after"] == "7"
            assert told.value.response.headers["x-firstchair-provider-status"] == str(status)
        assert told.value.body["error"]["type"] == told.value.type == word
        records = running.records(3)
    assert {record.outcome for record in records} == {Outcome.FAILED}
    assert {record.cost_nano for record in records} == {0}


@pytest.mark.parametrize("status", HEARD)
def test_what_may_pass_both_sdks_send_again(tmp_path, upstream, status):
    failed = Reply(fault=Fault("status", status=status))
    upstream.script = Script((failed, Reply(text="Hello."), failed, Reply(text="Hello.")))
    with gateway(tmp_path, upstream) as running, sdks(running, max_retries=1) as (completion, _, message):
        assert completion().choices[0].message.content == "Hello."
        assert message().content[0].text == "Hello."


@pytest.mark.parametrize("wanting", ["context", "model", "translation"])
def test_a_fallback_that_cannot_take_the_call_hides_no_outage(tmp_path, upstream, backup, wanting):
    """A harness compacts its history, or gives up, on a 400 or 404; the primary is back in seven seconds."""
    upstream.script = Script((Reply(fault=Fault("status", status=529, retry_after="7")),))
    answer = {
        "context": Fault("status", status=400, message="prompt is too long: 9 tokens > 8 maximum"),
        "model": Fault("status", status=404),
        "translation": None,
    }[wanting]
    backup.script = Script((Reply(fault=answer),))
    more = {"n": 2} if wanting == "translation" else {}  # Messages has no n
    with gateway(tmp_path, upstream, backup, breaker={"failures": 2}) as running:
        answers = [chat(running, **more) for _ in range(3)]
        records = running.records(3)
    assert [one.status_code for one in answers] == [503] * 3
    assert [one.headers["retry-after"] for one in answers[:2]] == ["7", "7"]
    assert "left alone" in answers[2].text  # the breaker of the primary is open
    assert int(answers[2].headers["retry-after"]) in range(1, 11)
    assert [record.outcome for record in records] == [Outcome.FAILED] * 3
    assert len(upstream.requests) == 2
    assert (len(backup.requests) == 0) is (wanting == "translation")


def test_a_fallback_that_finds_the_request_itself_wrong_says_so(tmp_path, upstream, backup):
    upstream.script = Script((Reply(fault=Fault("status", status=529)),))
    backup.script = Script((Reply(fault=Fault("status", status=400, message="temperature: too hot")),))
    with gateway(tmp_path, upstream, backup) as running:
        assert chat(running).status_code == 400


def test_a_bad_request_goes_back_to_the_client_and_nowhere_else(tmp_path, upstream, backup):
    upstream.script = Script((Reply(fault=Fault("status", status=400, message="temperature: too hot")),))
    with gateway(tmp_path, upstream, backup, breaker={"failures": 2}) as running:
        for _ in range(4):
            response = chat(running)
            assert response.status_code == 400
            assert "too hot" in response.json()["error"]["message"]
        assert not backup.requests
        assert len(upstream.requests) == 4


def test_a_refused_credential_of_ours_is_not_the_clients(tmp_path, upstream):
    upstream.script = Script((Reply(fault=Fault("status", status=401, message="bad key sk-CANARY-0123456789")),))
    with gateway(tmp_path, upstream) as running:
        response = chat(running)
        assert response.status_code == 502
        assert "CANARY" not in response.text
        assert "CANARY" not in running.records()[0].error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["status", "only_error", "error_first", "error_late"])
def test_a_key_of_ours_that_a_provider_repeats_reaches_nobody(tmp_path, upstream, monkeypatch, kind, stream):
    """Even one that looks like no key at all."""
    monkeypatch.setenv("PROVIDER_KEY", "plainwordcanary")
    fault = Fault(kind, status=400, message="wrong key plainwordcanary", after=3 if kind == "error_late" else 0)
    upstream.script = Script((Reply(text="one two three four", fault=fault),))
    providers = {"up": provider(upstream.base_url, api_key_env="PROVIDER_KEY")}
    slot = {"slot": "main", "primary": {"provider": "up", "model": "m"}, "retries": ONCE}
    with running_gateway(tmp_path, providers, [slot]) as running:
        response = chat(running, stream=stream)
        assert "canary" not in response.text + str(response.headers)
        assert "canary" not in str(running.records()[0])
    assert "plainwordcanary" in str(upstream.requests[0].headers)


def test_a_provider_that_is_down_is_left_alone_after_a_while(tmp_path, upstream, backup):
    upstream.close_port()
    with gateway(tmp_path, upstream, backup, breaker={"failures": 2, "open_s": 60, "max_open_s": 60}) as running:
        for _ in range(3):
            assert chat(running).status_code == 200
        records = running.records(3)
    assert [len(record.attempts) for record in records] == [2, 2, 1]
    assert records[0].attempts[0].failure is FailureKind.CONNECT


def test_retry_after_is_waited_for_on_the_same_route(tmp_path, upstream, backup):
    limited = Reply(fault=Fault("status", status=429, retry_after="0.05"))
    upstream.script = Script((limited, Reply(text="Second try.")))
    with gateway(tmp_path, upstream, backup, slot={"retries": {"attempts": 2}}) as running:
        assert chat(running).json()["choices"][0]["message"]["content"] == "Second try."
        (record,) = running.records()
    assert [attempt.failure for attempt in record.attempts] == [FailureKind.RATE_LIMIT, None]
    assert record.variant == "primary"
    assert not backup.requests


@pytest.mark.parametrize("stream", [False, True])
def test_a_malformed_call_is_repeated_under_constraint(tmp_path, upstream, backup, stream):
    wrong = Reply(text="Let me see.", calls=(ToolCall(id="c1", name="look_up", arguments='{"x":1}'),))
    right = Reply(calls=(ToolCall(id="c2", name="look_up", arguments='{"q":"a"}'),))
    upstream.script = Script((wrong, right))
    with gateway(tmp_path, upstream, backup, slot={"require_valid_calls": True}) as running:
        response = chat(running, stream=stream, tools=TOOLS)
        assert response.status_code == 200
        assert "Let me see." not in response.text
        (record,) = running.records()
    assert [attempt.failure for attempt in record.attempts] == [FailureKind.MALFORMED_CALL, None]
    again = upstream.requests[1].body
    assert again["tool_choice"] == {"type": "function", "function": {"name": "look_up"}}
    assert again["tools"][0]["function"]["strict"] is True
    assert record.answer.tool_calls[0].arguments == '{"q":"a"}'
    assert not backup.requests


def test_a_model_that_stays_malformed_falls_back(tmp_path, upstream, backup):
    upstream.script = Script((Reply(calls=(ToolCall(id="c1", name="look_up", arguments="{"),)),))
    backup.script = Script((Reply(calls=(ToolCall(id="c2", name="look_up", arguments='{"q":"a"}'),)),))
    with gateway(tmp_path, upstream, backup, slot={"require_valid_calls": True}) as running:
        response = chat(running, tools=TOOLS)
        assert response.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "look_up"
        (record,) = running.records()
    assert [attempt.failure for attempt in record.attempts] == [FailureKind.MALFORMED_CALL] * 2 + [None]


def test_elsewhere_a_malformed_call_is_counted_and_passed_on(tmp_path, upstream):
    upstream.script = Script((Reply(calls=(ToolCall(id="c1", name="look_up", arguments="{"),)),))
    with gateway(tmp_path, upstream) as running:
        call = chat(running, tools=TOOLS).json()["choices"][0]["message"]["tool_calls"][0]
        assert call["function"]["arguments"] == "{"
        assert running.records()[0].malformed_calls == 1


def test_a_full_spool_loses_records_that_are_counted_and_no_call(tmp_path, upstream):
    recording = {"store": str(tmp_path / "traces.db"), "max_spool_gb": 1e-7, "fsync": "interval"}
    with gateway(tmp_path, upstream, recording=recording) as running:
        assert any(thread.name == "spool-w0" for thread in threading.enumerate()), "nobody syncs now and then"
        assert chat(running).status_code == 200
    (losses,) = losses_of(tmp_path / "spool")
    assert losses.lost == {"cap": 1}


def test_a_provider_that_cannot_be_reached_says_why_and_not_where(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    providers = {"up": provider(f"http://127.0.0.1:{port}"), "lost": provider("http://no-such-host.invalid")}
    slots = [{"slot": name, "primary": {"provider": name, "model": "m"}, "retries": ONCE} for name in providers]
    with running_gateway(tmp_path, providers, slots) as running:
        refused, lost = chat(running, model="up"), chat(running, model="lost")
    assert refused.json()["error"]["message"] == "provider up cannot be reached: Connection refused"
    assert lost.json()["error"]["message"] == "provider lost cannot be reached: its host name is not known"
    assert (refused.status_code, lost.status_code) == (502, 502)


def test_calls_go_on_while_another_holds_the_database(tmp_path, upstream):
    with gateway(tmp_path, upstream) as running:
        other = sqlite3.connect(running.config.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert [chat(running).status_code for _ in range(3)] == [200] * 3
        other.execute("ROLLBACK")
        other.close()
        assert len(running.records(3)) == 3


def test_a_redirect_is_not_followed(tmp_path, upstream, backup):
    upstream.script = Script(
        (Raw(body=b"", status=307, headers={"location": backup.base_url + "/v1/chat/completions"}),)
    )
    with gateway(tmp_path, upstream) as running:
        assert chat(running).status_code == 502
    assert not backup.requests


def open_stream(running):
    """A streamed call on a bare socket, read up to its first content."""
    host, port = running.url.removeprefix("http://").split(":")
    raw = socket.create_connection((host, int(port)))
    body = json.dumps({"model": "main", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {running.key}\r\n"
    raw.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    seen = b""
    while b'"content"' not in seen:
        seen += raw.recv(4096)
    return raw


def test_a_client_that_leaves_cancels_the_provider_and_leaves_one_record(tmp_path, upstream):
    upstream.script = Script((Reply(text="one two three four", fault=Fault("hang_after_events", after=3)),))
    slot = {"timeouts": {**TIMEOUTS, "idle_s": 8}}
    with gateway(tmp_path, upstream, slot=slot) as running:
        open_stream(running).close()
        (record,) = running.records()
        upstream.wait_until(lambda it: it.disconnects == 1)
        assert len(running.records()) == 1
    assert record.outcome is Outcome.CLIENT_DISCONNECTED
    assert record.estimated
    assert record.usage.input > 0


def test_a_client_that_leaves_is_read_on_to_the_usage_where_the_slot_says_so(tmp_path, upstream):
    upstream.script = Script((Reply(text="one two three four", fault=Fault("hang_after_events", after=3)),))
    slot = {"on_disconnect": "drain", "timeouts": {**TIMEOUTS, "idle_s": 8}}
    with gateway(tmp_path, upstream, slot=slot) as running:
        open_stream(running).close()
        deadline = time.monotonic() + 5
        while running.worker.running and not running.worker.counters["clients_left"] and time.monotonic() < deadline:
            time.sleep(0.005)
        upstream.release()
        (record,) = running.records()
    assert record.outcome is Outcome.CLIENT_DISCONNECTED
    assert not record.estimated
    assert record.usage.output == 5
    assert record.answer.text == "one two three four"
    assert upstream.disconnects == 0


@pytest.mark.parametrize("policy", ["cancel", "drain"])
def test_a_client_that_leaves_before_a_whole_answer_leaves_one_record(tmp_path, upstream, policy):
    upstream.script = Script((Reply(text="one two", fault=Fault("hang_before_headers")),))
    slot = {"on_disconnect": policy, "timeouts": {**TIMEOUTS, "answer_s": 8}}
    body = json.dumps({"model": "main", "messages": [{"role": "user", "content": "Hi"}]}).encode()
    with gateway(tmp_path, upstream, slot=slot) as running:
        host, port = running.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as client:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-api-key: {running.key}\r\n"
            client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            upstream.wait_until(lambda it: len(it.requests) == 1)
        running.wait_until(lambda: running.worker.counters["clients_left"] == 1 or not running.worker.running)
        upstream.release()
        running.records()
        running.wait_until(lambda: not running.worker.running)
        (record,) = running.records()
    assert record.outcome is Outcome.CLIENT_DISCONNECTED
    if policy == "drain":
        assert not record.estimated
        assert record.answer.text == "one two"


OTHER_WIRES = {
    "/v1/messages": ("event: message_stop", "event: error"),
    "/v1/responses": ("event: response.completed", "event: response.failed"),
}
"""How a stream of the wire ends well and badly."""


def ask_stream(running, path):
    body = {"model": "main", "stream": True, "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
    if path == "/v1/responses":
        body = {"model": "main", "stream": True, "input": "Hi"}
    return httpx.post(running.url + path, json=body, headers={"x-api-key": running.key}, timeout=20)


@pytest.mark.parametrize("path", OTHER_WIRES)
@pytest.mark.parametrize("fault", AFTER_CONTENT, ids=lambda fault: fault.kind)
def test_a_translated_stream_that_breaks_ends_in_the_words_of_its_wire(tmp_path, upstream, backup, path, fault):
    upstream.script = Script((Reply(text="one two three four five six seven", fault=fault),))
    well, badly = OTHER_WIRES[path]
    with gateway(tmp_path, upstream, backup) as running:
        text = ask_stream(running, path).text
        (record,) = running.records()
    assert badly in text
    assert well not in text
    assert record.outcome is Outcome.INCOMPLETE


@pytest.mark.parametrize("path", OTHER_WIRES)
@pytest.mark.parametrize("fault", [fault for fault, _ in STREAM_ONLY], ids=lambda fault: fault.kind)
def test_a_translated_stream_that_breaks_early_falls_back_unseen(tmp_path, upstream, backup, path, fault):
    upstream.script = Script((Reply(text="lost", fault=fault),))
    well, badly = OTHER_WIRES[path]
    with gateway(tmp_path, upstream, backup) as running:
        text = ask_stream(running, path).text
        (record,) = running.records()
    assert well in text
    assert badly not in text
    assert (record.outcome, record.variant) == (Outcome.OK, "fallback")


def test_a_client_that_stops_reading_holds_the_provider_back_and_is_not_its_fault(tmp_path, upstream):
    begin = b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"'
    event = begin + b"x" * 65_536 + b'"},"finish_reason":null}]}\n\n'
    upstream.script = Script((Raw(body=(event,) * 400, content_type="text/event-stream"),))
    with gateway(tmp_path, upstream, breaker={"failures": 1}) as running:
        client = open_stream(running)
        (record,) = running.records()
        client.close()
        assert record.outcome is Outcome.CLIENT_DISCONNECTED
        assert len(record.answer.text) < 65_536 * 200
        assert running.worker.setup.breakers["up"].allows(0.0)


def test_a_prompt_that_is_too_long_is_counted_and_never_sent(tmp_path, upstream, backup):
    words = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    providers = {
        "up": provider(upstream.base_url, context_window=100, tokenizer=str(tmp_path)),
        "spare": provider(backup.base_url),
    }
    slot = {
        "slot": "main",
        "primary": {"provider": "up", "model": "first"},
        "fallbacks": [{"provider": "spare", "model": "second"}],
    }
    with running_gateway(tmp_path, providers, [slot]) as running:
        long = chat(running, messages=[{"role": "user", "content": "0123456789 " * 150}])
        assert long.headers["x-firstchair-provider"] == "spare/second"
        assert running.records()[0].attempts[0].failure is FailureKind.CONTEXT_OVERFLOW
        assert not upstream.requests
        assert chat(running).headers["x-firstchair-provider"] == "up/first"


def test_what_a_translation_drops_is_told_in_header_and_record(tmp_path, upstream):
    with gateway(tmp_path, upstream, kind="anthropic") as running:
        response = chat(running, seed=7)
        assert response.status_code == 200
        assert "seed" in response.headers["x-firstchair-dropped"]
        assert any("seed" in name for name in running.records()[0].dropped)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_a_provider_that_does_not_hang_up_behind_its_end_holds_nobody_and_has_not_failed(tmp_path, path):
    events = (
        b'data: {"id":"c","model":"m","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}\n\n'
        b"data: [DONE]\n\n"
    )
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    answer += b"%x\r\n%s\r\n" % (len(events), events)
    slot = {"slot": "main", "primary": {"provider": "up", "model": "m"}, "timeouts": {"idle_s": 60, "total_s": 60}}
    breaker = {"failures": 1}
    with (
        saying(answer) as url,
        running_gateway(tmp_path, {"up": provider(url)}, [slot], breaker=breaker) as running,
    ):
        body = {"model": "main", "max_tokens": 5, "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
        for _ in range(2):
            response = httpx.post(running.url + path, json=body, headers={"x-api-key": running.key}, timeout=20)
            assert response.status_code == 200
            assert "error" not in response.text
            running.wait_until(lambda: running.worker.running == 0)
        assert [record.outcome for record in running.records(2)] == [Outcome.OK, Outcome.OK]
