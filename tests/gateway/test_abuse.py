"""What clients do wrong, or on purpose: a 4xx in their dialect's words, never a 500, and no provider is asked."""

import json
import socket

import anthropic
import httpx
import openai
import pytest
import yaml
from tests.gateway.conftest import saying

from firstchair.catalog.token_counts import TokenCounts
from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.control.store import ControlStore
from firstchair.gateway.ending import MAX_SETTLED_NANO
from firstchair.gateway.records import Outcome
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Reply, Script, scripted_upstream

SLOT = {"slot": "main", "match": ["claude-*"], "primary": {"provider": "up", "model": "m"}}
TRIED = {
    "slot": "tried",
    "primary": {"provider": "up", "model": "m"},
    "canary": {"route": {"provider": "up", "model": "c"}, "percent": 50},
}
PATHS = ("/v1/chat/completions", "/v1/messages")
HELLO = {"model": "main", "max_tokens": 5, "messages": [{"role": "user", "content": "Hi"}]}
SECRET = "sk-ant-api03-CANARYCANARYCANARYCANARY"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with (
        scripted_upstream(Script((Reply(text="Hello."),))) as upstream,
        running_gateway(
            tmp_path_factory.mktemp("gateway"),
            {"up": provider(upstream.base_url)},
            [SLOT, TRIED],
            limits={"max_body_mb": 1},
        ) as gateway,
    ):
        gateway.upstream = upstream
        yield gateway


def post(running, path, content, **headers):
    sent = {"x-api-key": running.key, "content-type": "application/json", **headers}
    return httpx.post(running.url + path, content=content, headers=sent, timeout=30)


def check_refusal(response, path, status=400):
    assert response.status_code == status
    body = response.json()
    if path == "/v1/messages":
        assert body["type"] == "error"
        assert body["error"]["type"]
    assert body["error"]["message"]
    assert response.headers["request-id"].startswith("call_")


DEEP = b'{"model":"main","messages":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
MESS = {
    "empty": b"",
    "not json": b"hello",
    "cut": b'{"model": "main", "messages": [',
    "a list": b"[]",
    "invalid utf-8": b'{"model": "main", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
    "deep": DEEP,
    "seventy deep": b'{"model":"main","messages":' + b"[" * 70 + b"]" * 70 + b"}",
    "nan": b'{"model": "main", "messages": [], "temperature": NaN}',
    "no model": b'{"messages": []}',
    "model is a number": b'{"model": 1, "messages": []}',
    "model is empty": b'{"model": "", "messages": []}',
    "stream is text": b'{"model": "main", "stream": "yes", "messages": [{"role": "user", "content": "Hi"}]}',
    "messages is text": b'{"model": "main", "messages": "Hi"}',
    "messages is missing": b'{"model": "main"}',
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("content", MESS.values(), ids=MESS.keys())
def test_a_body_that_is_no_request_is_refused(running, path, content):
    asked = len(running.upstream.requests)
    check_refusal(post(running, path, content), path)
    assert len(running.upstream.requests) == asked


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("messages", [["a", "b"], [None, None], [1], [[], {}], [{"role": []}, {}]])
def test_messages_of_any_form_can_be_drawn_for_a_canary(running, path, messages):
    """The draw looks at the conversation's beginning, before anybody has checked it."""
    response = post(running, path, json.dumps({**HELLO, "model": "tried", "messages": messages}))
    assert response.status_code in (200, 400)


@pytest.mark.parametrize("path", PATHS)
def test_a_body_over_the_limit_is_refused_whether_it_says_so_or_not(running, path):
    large = json.dumps({**HELLO, "pad": "x" * 1_100_000}).encode()
    check_refusal(post(running, path, large), path, 413)
    check_refusal(post(running, path, iter([large[:600_000], large[600_000:]])), path, 413)


@pytest.mark.parametrize("path", PATHS)
def test_ten_thousand_headers_are_refused(running, path):
    body = json.dumps(HELLO).encode()
    many = "".join(f"x-{number}: y\r\n" for number in range(10_000))
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nx-api-key: {running.key}\r\n{many}content-length: {len(body)}\r\n\r\n"
    with connected(running) as raw:
        raw.sendall(head.encode() + body)
        assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def connected(running):
    host, port = running.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def test_an_endless_header_is_cut_off(running):
    with connected(running) as raw:
        raw.sendall(b"POST /v1/messages HTTP/1.1\r\nx: ")
        with pytest.raises((ConnectionError, AssertionError)):
            for _ in range(200):
                raw.sendall(b"y" * 65536)
            assert raw.recv(1) == b"never"
    assert httpx.get(running.url + "/healthz").status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_an_unknown_model_is_not_found(running, path):
    for model in ("nobody", "x" * 5000, "../../etc/passwd", "main\r\nx: y"):
        check_refusal(post(running, path, json.dumps({**HELLO, "model": model})), path, 404)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("headers", [{}, {"x-api-key": "fc_wrong"}, {"authorization": "Basic x"}, {"x-api-key": "é"}])
def test_without_a_live_key_nobody_gets_in(running, path, headers):
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    response = httpx.post(running.url + path, json=HELLO, headers=raw)
    check_refusal(response, path, 401)
    response = httpx.get(running.url + "/v1/models", headers=raw)
    assert response.status_code == 401


def test_a_key_without_the_scope_may_not_call(running):
    other = running.store.create_key("reader", ["traces"], who="test").secret
    running.store.wait_for_workers(running.store.revision())
    response = httpx.post(running.url + "/v1/messages", json=HELLO, headers={"x-api-key": other})
    check_refusal(response, "/v1/messages", 403)


def test_what_is_not_here_is_not_found(running):
    for method, path in (("GET", "/"), ("POST", "/v1/embeddings"), ("GET", "/v1/../etc/passwd"), ("PUT", "/admin")):
        response = httpx.request(method, running.url + path, headers={"x-api-key": running.key})
        assert response.status_code == 404
    assert httpx.get(running.url + "/v1/messages", headers={"x-api-key": running.key}).status_code == 405


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("/messages", "the base URL of this client ends in /v1"),
        ("/v1/v1/messages", "the base URL of this client goes without /v1"),
        ("/chat/completions", "the base URL of this client ends in /v1"),
        ("/v1/embeddings", "calls go to /v1/chat/completions, /v1/responses, /v1/messages"),
    ],
)
def test_a_wrong_base_url_is_told_with_the_right_one_and_is_no_missing_model(running, path, fix):
    response = httpx.post(running.url + path, json=HELLO, headers={"x-api-key": running.key})
    assert response.status_code == 404
    error = response.json()["error"]
    assert error["message"] == f"there is no POST {path} here; {fix}"
    assert error.get("code") == (None if "messages" in path else "unknown_url")


def test_both_sdks_list_the_models(running):
    chat = openai.OpenAI(base_url=running.url + "/v1", api_key=running.key)
    assert [model.id for model in chat.models.list()] == ["main", "tried"]
    assert chat.models.retrieve("claude-sonnet-4-6").id == "claude-sonnet-4-6"
    messages = anthropic.Anthropic(base_url=running.url, api_key=running.key)
    assert [model.id for model in messages.models.list()] == ["main", "tried"]
    with pytest.raises(openai.NotFoundError):
        chat.models.retrieve("nobody")


def test_a_slot_that_matches_by_globs_is_listed_by_the_models_that_its_routes_and_clients_know(tmp_path, upstream):
    """Claude Code offers of this list what begins with `claude`: a slot's own name alone would be invisible to it."""
    slots = [
        {
            "slot": "sonnet",
            "match": ["claude-sonnet-*"],
            "primary": {"provider": "up", "model": "orchestrator-4b"},  # after a promote
            "fallbacks": [{"provider": "up", "model": "claude-sonnet-4-6"}, {"provider": "up", "model": "gpt-5"}],
        },
        # Its fallback is answered by the slot above.
        {
            "slot": "haiku",
            "match": ["claude-haiku-*", "claude-small"],
            "primary": {"provider": "up", "model": "claude-haiku-4-5"},
            "fallbacks": [{"provider": "up", "model": "claude-sonnet-5"}],
        },
    ]
    names = ["claude-haiku-4-5", "claude-small", "claude-sonnet-4-6", "haiku", "sonnet"]
    with running_gateway(tmp_path, {"up": provider(upstream.base_url)}, slots) as running:
        chat = openai.OpenAI(base_url=running.url + "/v1", api_key=running.key)
        messages = anthropic.Anthropic(base_url=running.url, api_key=running.key)
        with chat, messages:
            listed, told = list(chat.models.list()), list(messages.models.list())
            assert [model.id for model in listed] == [model.id for model in told] == names
            assert {(model.object, model.owned_by, model.created) for model in listed} == {("model", "firstchair", 0)}
            assert {(model.type, model.lifecycle, model.created_at.year) for model in told} == {
                ("model", "active", 1970)
            }
            assert [model.display_name for model in told] == names
            for name in names:  # each of them is answered
                chat.chat.completions.create(model=name, messages=[{"role": "user", "content": "Hi"}])
        slots_asked = [record.slot for record in running.records(len(names))]
    assert slots_asked == ["haiku", "haiku", "sonnet", "haiku", "sonnet"]


def test_a_header_cannot_be_smuggled_through_a_session_name_or_field(running):
    response = post(running, "/v1/messages", json.dumps({**HELLO, "x\r\nevil: 1": 2, "ü": 3}))
    assert response.status_code in (200, 400)
    assert "evil" not in response.headers


SMUGGLED = [
    b"a\r\nevil: 1",
    b"a\nevil: 1",
    b"a\revil: 1",
    b"a\x00b",
    b"a\r\n evil: 1",
    "ü☃".encode(),
    b"x" * 5000,
]


@pytest.mark.parametrize("value", SMUGGLED)
def test_a_session_header_brings_no_header_of_its_own_along(running, value):
    body = json.dumps(HELLO).encode()
    head = f"POST /v1/messages HTTP/1.1\r\nhost: x\r\nx-api-key: {running.key}\r\nconnection: close\r\n"
    asked = len(running.upstream.requests)
    with connected(running) as raw:
        session = b"x-firstchair-session: " + value + b"\r\n"
        raw.sendall(head.encode() + session + f"content-length: {len(body)}\r\n\r\n".encode() + body)
        answer = b"".join(iter(lambda: raw.recv(65_536), b""))
    lines = answer.partition(b"\r\n\r\n")[0].split(b"\r\n")
    assert lines[0].split()[1] in (b"200", b"400")
    assert not any(line.lower().startswith(b"evil") for line in lines)
    for seen in running.upstream.requests[asked:]:
        assert "evil" not in {name.lower() for name in seen.headers}
        assert not any("session" in name.lower() for name in seen.headers)
    assert all(len(record.session) <= 256 for record in running.records(0))


@pytest.mark.parametrize("model", ["claude-x\r\nevil: 1", "claude-\x00", "claude-ü☃", "claude-" + "x" * 249])
def test_a_model_name_brings_no_header_along(running, model):
    asked = len(running.upstream.requests)
    response = post(running, "/v1/messages", json.dumps({**HELLO, "model": model}))
    assert response.status_code == 200
    assert "evil" not in response.headers
    assert response.headers["x-firstchair-provider"] == "up/m"
    assert running.upstream.requests[asked].body["model"] == "m"


def test_a_secret_in_a_call_is_in_no_record(running):
    before = len(running.records(0))
    body = {**HELLO, "messages": [{"role": "user", "content": f"my key is {SECRET}"}]}
    assert post(running, "/v1/messages", json.dumps(body), **{"x-firstchair-session": SECRET}).status_code == 200
    assert post(running, "/v1/messages", json.dumps({**body, "model": SECRET})).status_code == 404
    running.records(before + 2)
    spool = b"".join(path.read_bytes() for path in running.config.spool.rglob("*") if path.is_file())
    assert SECRET.encode() not in spool
    assert running.key.encode() not in spool


def test_refused_requests_are_records_too(running):
    before = len(running.records(0))
    check_refusal(post(running, "/v1/messages", b"{}"), "/v1/messages")
    record = running.records(before + 1)[-1]
    assert record.outcome is Outcome.REFUSED
    assert record.cost_nano == 0
    assert record.attempts == ()


def test_health_needs_no_key(running):
    assert httpx.get(running.url + "/healthz").json() == {"ok": True}
    assert httpx.get(running.url + "/readyz").status_code == 200


def test_rates_and_budgets_of_a_key(tmp_path, upstream):
    limits = KeyLimits(requests_per_minute=2, budget_nano=1000)
    providers = {"up": provider(upstream.base_url, "anthropic")}
    slot = {"slot": "main", "primary": {"provider": "up", "model": "claude-sonnet-4-6"}}
    with running_gateway(tmp_path, providers, [slot], limits) as running:
        response = post(running, "/v1/messages", json.dumps(HELLO))
        assert response.status_code == 402
        assert response.json()["error"]["type"] == "billing_error"
        post(running, "/v1/messages", json.dumps(HELLO))
        limited = post(running, "/v1/messages", json.dumps(HELLO))
        assert limited.status_code == 429
        assert int(limited.headers["retry-after"]) >= 1
    assert not upstream.requests


def test_a_budget_is_asked_for_what_the_dearest_route_may_cost(tmp_path, upstream):
    """Five tokens of Haiku and the prompt are less than 300,000 nano-USD; five of Opus 4.1 alone are 375,000."""
    providers = {"up": provider(upstream.base_url, "anthropic")}
    slot = {"slot": "main", "primary": {"provider": "up", "model": "claude-haiku-4-5"}}
    dear = {**slot, "fallbacks": [{"provider": "up", "model": "claude-opus-4-1"}]}
    for number, (config, status) in enumerate(((slot, 200), (dear, 402))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with running_gateway(folder, providers, [config], KeyLimits(budget_nano=300_000)) as running:
            assert post(running, "/v1/messages", json.dumps(HELLO)).status_code == status


def test_a_bill_beyond_all_bounds_settles_too(tmp_path, upstream):
    """10^12 tokens at a million dollars a million are 10^21 nano-USD, which no database can hold."""
    price = {"input": 1_000_000, "output": 1_000_000}
    (tmp_path / "prices.yaml").write_text(yaml.safe_dump({"version": "1", "models": {"m": price}}))
    upstream.script = Script((Reply(text="Hello.", usage=TokenCounts(input=1, output=10**12)),))
    limits = KeyLimits(budget_nano=2**61)
    providers = {"up": provider(upstream.base_url, "anthropic")}
    with running_gateway(tmp_path, providers, [SLOT], limits, prices=tmp_path / "prices.yaml") as running:
        assert post(running, "/v1/messages", json.dumps(HELLO)).status_code == 200
        assert post(running, "/v1/messages", json.dumps(HELLO)).status_code == 200
        assert running.records(2)[0].usage.output == 10**12
        (key,) = running.store.keys()
        database = running.config.database
    with ControlStore.open(database) as store:
        spend = store.spend(key.key.key_id)
    assert (spend.spent_nano, spend.reserved_nano) == (2 * MAX_SETTLED_NANO, 0)


def test_tokens_are_counted_by_anthropic_or_refused(tmp_path, upstream):
    body = json.dumps(HELLO)
    with running_gateway(tmp_path / "a", {"up": provider(upstream.base_url, "anthropic")}, [SLOT]) as running:
        client = anthropic.Anthropic(base_url=running.url, api_key=running.key)
        counted = client.messages.count_tokens(model="main", messages=HELLO["messages"])
        assert counted.input_tokens == upstream.script.input_tokens
        assert upstream.requests[-1].body["model"] == "m"
    with running_gateway(tmp_path / "b", {"up": provider(upstream.base_url)}, [SLOT]) as running:
        response = post(running, "/v1/messages/count_tokens", body)
        check_refusal(response, "/v1/messages")
        assert "no tokenizer" in response.json()["error"]["message"]


def test_our_own_refused_key_is_no_fault_of_who_counts_tokens(tmp_path):
    refusal = json.dumps({"type": "error", "error": {"type": "authentication_error", "message": "bad key"}}).encode()
    answer = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(refusal), refusal)
    with (
        saying(answer) as url,
        running_gateway(tmp_path, {"up": provider(url, "anthropic")}, [SLOT]) as running,
    ):
        check_refusal(post(running, "/v1/messages/count_tokens", json.dumps(HELLO)), "/v1/messages", 502)


def test_counting_tokens_is_one_request_of_the_keys_rate_and_none_of_its_tokens(tmp_path, upstream):
    body = json.dumps(HELLO)
    providers = {"up": provider(upstream.base_url, "anthropic")}
    slot = {"slot": "main", "primary": {"provider": "up", "model": "claude-sonnet-4-6"}}
    # The call takes the minute's one token and overdraws it, and the budget pays for exactly that call.
    limits = KeyLimits(requests_per_minute=3, tokens_per_minute=1, budget_nano=10**9)
    with running_gateway(tmp_path, providers, [slot], limits) as running:
        assert post(running, "/v1/messages", body).status_code == 200
        assert post(running, "/v1/messages", body).status_code == 429  # its tokens
        for _ in range(2):
            assert post(running, "/v1/messages/count_tokens", body).status_code == 200
        limited = post(running, "/v1/messages/count_tokens", body)
        check_refusal(limited, "/v1/messages", 429)
        assert "3 requests a minute" in limited.json()["error"]["message"]
        assert int(limited.headers["retry-after"]) in range(1, 21)
        records = running.records(2)
        running.wait_until(lambda: running.store.spend(records[0].key_id).reserved_nano == 0)
        assert running.store.spend(records[0].key_id).spent_nano == records[0].cost_nano
        assert len(running.records(2)) == 2


def test_who_counts_tokens_hears_how_long_to_wait(tmp_path):
    refusal = json.dumps({"type": "error", "error": {"type": "rate_limit_error", "message": "slow"}}).encode()
    answer = b"HTTP/1.1 429 Too Many\r\nretry-after: 9\r\ncontent-length: %d\r\n\r\n%s" % (len(refusal), refusal)
    with (
        saying(answer) as url,
        running_gateway(tmp_path, {"up": provider(url, "anthropic")}, [SLOT]) as running,
    ):
        response = post(running, "/v1/messages/count_tokens", json.dumps(HELLO))
    check_refusal(response, "/v1/messages", 429)
    assert response.headers["retry-after"] == "9"
