"""Shadow calls: on every endpoint, after the answer, at nobody's cost but their own."""

import httpx
import pytest

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, TextPart, Tool, ToolCall
from firstchair.core.errors import UpstreamError
from firstchair.gateway.console.insight import shadow_budget
from firstchair.gateway.control.keys import KeyLimits
from firstchair.gateway.control.ledger import insert_records, report
from firstchair.gateway.metrics import metrics_text
from firstchair.gateway.records import Outcome
from firstchair.gateway.shadow import agreement, disagreements, runs_elsewhere
from firstchair.testing.gateway_server import provider, running_gateway
from firstchair.testing.scripted_upstream import Fault, Reply, Script

CALL = ToolCall(id="call_a1", name="look_up", arguments='{"q":"a"}')
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer", "default": 1}}}
HELLO = {"role": "user", "content": "Hi"}
BODIES = {
    "/v1/chat/completions": {
        "model": "main",
        "messages": [HELLO],
        "tools": [{"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}],
    },
    "/v1/responses": {
        "model": "main",
        "input": "Hi",
        "store": False,
        "tools": [{"type": "function", "name": "look_up", "parameters": SCHEMA, "strict": False}],
    },
    "/v1/messages": {
        "model": "main",
        "max_tokens": 9,
        "messages": [HELLO],
        "tools": [{"name": "look_up", "input_schema": SCHEMA}],
    },
}


def gateway(folder, upstream, backup, *, kind="openai-compatible", percent=100, slot=None, key_limits=None, **config):
    providers = {"up": provider(upstream.base_url), "next": provider(backup.base_url, kind)}
    shadow = {"provider": "next", "model": "candidate", "percent": percent}
    slots = [{"slot": "main", "primary": {"provider": "up", "model": "big"}, "shadow": [shadow], **(slot or {})}]
    return running_gateway(folder, providers, slots, key_limits, **config)


def ask(running, path="/v1/messages", **more):
    headers = {"authorization": f"Bearer {running.key}", "x-firstchair-session": "s-1"}
    return httpx.post(running.url + path, json={**BODIES[path], **more}, headers=headers, timeout=60)


def message(*calls, text=""):
    return Message(role="assistant", content=(TextPart(text=text),) if text else (), tool_calls=calls)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["openai-compatible", "anthropic"])
@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_in_both_modes_is_copied_and_a_twin_agrees(tmp_path, upstream, backup, path, kind, stream):
    upstream.script = backup.script = Script((Reply(calls=(CALL,)),))
    with gateway(tmp_path, upstream, backup, kind=kind) as running:
        assert ask(running, path, stream=stream).status_code == 200
        answered, copied = running.records(2)
        assert (answered.variant, copied.variant, copied.shadow_of) == ("primary", "shadow", answered.call_id)
        assert (copied.provider, copied.provider_model, copied.stream) == ("next", "candidate", stream)
        assert (copied.outcome, copied.agreement) == (Outcome.OK, "same")
        assert (copied.key_id, copied.session, copied.usage.output) == ("", "s-1", 5)
        assert answered.agreement == ""
        assert running.key not in str(backup.requests[0].headers)
        assert backup.requests[0].body["model"] == "candidate"


def test_the_client_has_its_answer_before_the_copy_leaves_and_a_dead_candidate_hurts_nobody(
    tmp_path, upstream, backup
):
    backup.script = Script((Reply(fault=Fault("hang_before_headers")),))
    with gateway(tmp_path, upstream, backup, shadow={"at_once": 1, "queue_calls": 2}) as running:
        # The candidate never answers: answers of the primary come all the same.
        assert [ask(running).status_code for _ in range(5)] == [200] * 5
        backup.wait_until(lambda it: it.holding == 1)
        assert len(running.records(5)) == 5
    records = running.records(6)
    assert [record.variant for record in records].count("shadow") == 1
    assert records[-1].variant == "shadow"
    assert records[-1].outcome is not Outcome.OK


def test_a_full_queue_drops_and_counts(tmp_path, upstream, backup):
    backup.script = Script((Reply(fault=Fault("hang_before_headers")),))
    with gateway(tmp_path, upstream, backup, shadow={"at_once": 1, "queue_calls": 2}) as running:
        ask(running)
        backup.wait_until(lambda it: it.holding == 1)
        for _ in range(4):
            ask(running)
        shadows = running.app.shadows
        running.wait_until(lambda: shadows.dropped["queue_full"] == 2)
        assert (shadows.waiting, shadows.running) == (2, 1)
        assert len(running.records(5)) == 5
    assert shadows.dropped == {"queue_full": 2, "stopped": 2}


def test_failing_candidates_open_no_breaker_of_the_calls(tmp_path, upstream):
    """The candidate is another model of the same provider as the primary."""
    upstream.script = Script((Reply(text="Yes"), Reply(fault=Fault("status", status=500)), Reply(text="Yes")))
    slot = {"shadow": [{"provider": "up", "model": "candidate"}], "retries": {"attempts": 1}}
    with gateway(tmp_path, upstream, upstream, slot=slot, breaker={"failures": 1}) as running:
        assert ask(running).status_code == 200
        records = running.records(2)
        assert records[1].outcome is Outcome.FAILED
        assert ask(running).status_code == 200
        never_asked = running.records(4)[-1]
        assert (never_asked.variant, never_asked.attempts, never_asked.agreement) == ("shadow", (), "unscored")
        assert (never_asked.provider, never_asked.provider_model) == ("up", "candidate")


def test_what_failed_or_is_not_drawn_is_not_copied(tmp_path, upstream, backup):
    with gateway(tmp_path, upstream, backup, percent=0) as running:
        assert ask(running).status_code == 200
    upstream.script = Script((Reply(fault=Fault("status", status=400)),))
    with gateway(tmp_path / "other", upstream, backup) as running:
        assert ask(running).status_code == 400
        assert len(running.records()) == 1
    assert backup.requests == []


def test_an_answer_of_a_fallback_is_no_measure_for_the_candidate(tmp_path, upstream, backup):
    upstream.script = Script((Reply(fault=Fault("status", status=500)),))
    slot = {"fallbacks": [{"provider": "next", "model": "spare"}], "retries": {"attempts": 1}}
    with gateway(tmp_path, upstream, backup, slot=slot) as running:
        assert ask(running).status_code == 200
        answered, copied = running.records(2)
        assert (answered.variant, copied.variant, copied.agreement) == ("fallback", "shadow", "unscored")


def test_disagreements_can_be_listed(tmp_path, upstream, backup):
    upstream.script = Script((Reply(calls=(CALL,)),))
    backup.script = Script((Reply(text="Done."), Reply(calls=(CALL,)), Reply(calls=(call('{"q":"b"}'),))))
    with gateway(tmp_path, upstream, backup) as running:
        for count in (2, 4, 6):
            assert ask(running).status_code == 200
            records = running.records(count)
        with running.store.transaction() as connection:
            insert_records(connection, records)
            found = disagreements(connection, slot="main")
            assert disagreements(connection, slot="other") == []
    originals = [record.call_id for record in records if record.variant == "primary"]
    assert [(one.shadow_of, one.agreement) for one in found] == [
        (originals[2], "same_tool"),
        (originals[0], "different"),
    ]
    assert str(found[0].route) == "next/candidate"


def test_tools_that_the_provider_runs_are_never_run_twice(tmp_path, upstream, backup):
    with gateway(tmp_path, upstream, backup) as running:
        tools = [{"type": "function", "function": {"name": "f"}}]
        assert ask(running, "/v1/chat/completions", tools=tools, web_search_options={}).status_code == 200
        shadows = running.app.shadows
        running.wait_until(lambda: shadows.dropped["provider_tools"] == 1)
        assert backup.requests == []


PRICED = {
    "primary": {"provider": "up", "model": "claude-sonnet-4-6"},
    "shadow": [{"provider": "next", "model": "claude-haiku-4-5"}],
}


def test_shadows_have_a_budget_of_their_own_and_the_key_pays_for_none_of_them(tmp_path, upstream, backup):
    """A copy may cost some 100,000 nano-USD before it is asked, and 36,000 after."""
    backup.script = Script((Reply(text="Yes.", usage=TokenCounts(input=11, output=5)),))
    limits = KeyLimits(budget_nano=10**10)
    shadow = {"budget_usd": 0.0002}
    with gateway(tmp_path, upstream, backup, slot=PRICED, key_limits=limits, shadow=shadow) as running:
        shadows, store, budget = running.app.shadows, running.store, running.config.shadow.budget
        asked = 0
        while not shadows.dropped and asked < 9:
            assert ask(running).status_code == 200
            asked += 1
            running.wait_until(lambda n=asked: len(backup.requests) + shadows.dropped.total() == n)
            running.wait_until(lambda: store.spend("shadow", budget).reserved_nano == 0)
        assert shadows.dropped == {"budget": 1}
        sent = len(backup.requests)
        records = running.records(2 * sent + 1)
        copies = [record for record in records if record.variant == "shadow"]
        calls = [record for record in records if record.variant == "primary"]
        assert (len(copies), len(calls)) == (sent, sent + 1)
        assert {record.cost_nano for record in copies} == {11 * 1000 + 5 * 5000}
        assert 100_000 < store.spend("shadow", budget).spent_nano == 36_000 * sent <= 200_000
        running.wait_until(lambda: store.spend(calls[0].key_id).reserved_nano == 0)
        assert store.spend(calls[0].key_id).spent_nano == sum(record.cost_nano for record in calls)
        with store.transaction() as connection:
            insert_records(connection, records)
            lines = report(connection, "slot")
            by_key = report(connection, "key")
        assert lines.total.cost_nano == sum(record.cost_nano for record in calls)
        assert lines.shadow_total.cost_nano == 36_000 * sent
        assert [(line.name, line.cost_nano) for line in by_key.shadow] == [("", 36_000 * sent)]
        running.app.reports.metrics.write()
        told = shadow_budget(store, budget, running.config.spool)
        assert (told.budget_nano, told.spent_nano, told.not_sent) == (200_000, 36_000 * sent, 1)
        assert 'firstchair_shadow_dropped_total{reason="budget"} 1' in metrics_text(running.config.spool)


def test_a_budget_of_shadows_that_cannot_be_read_sends_none_and_costs_the_client_nothing(
    tmp_path, upstream, backup, monkeypatch
):
    def gone(account):
        raise UpstreamError("no database")

    with gateway(tmp_path, upstream, backup, slot=PRICED, shadow={"budget_usd": 1}) as running:
        monkeypatch.setattr(running.store, "open_account", gone)
        assert ask(running).status_code == 200
        running.wait_until(lambda: running.app.shadows.dropped["budget_unreadable"] == 1)
        assert running.worker.counters["budget_unreadable"] == 1
        assert backup.requests == []


@pytest.mark.parametrize(
    ("dialect", "body", "found"),
    [
        ("anthropic", {"tools": [{"name": "a", "input_schema": {}}, {"type": "bash_20250124"}]}, False),
        ("anthropic", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, True),
        ("anthropic", {"mcp_servers": [{"url": "https://x"}]}, True),
        ("responses", {"tools": [{"type": "function", "name": "a"}, {"type": "custom", "name": "b"}]}, False),
        ("responses", {"tools": [{"type": "mcp", "server_url": "https://x"}]}, True),
        ("openai", {"tools": [{"type": "function", "function": {"name": "a"}}]}, False),
        ("openai", {}, False),
    ],
)
def test_who_runs_a_tool(dialect, body, found):
    assert runs_elsewhere(body, dialect) is found


def call(arguments, name="look_up"):
    return ToolCall(id="x", name=name, arguments=arguments)


@pytest.mark.parametrize(
    ("primary", "shadow", "found"),
    [
        (message(text="Done."), message(text="All done."), "same"),
        (message(CALL), message(call('{ "q": "a", "n": 1 }')), "same"),  # by value, the default filled in
        (message(CALL), message(call('{"q":"b"}')), "same_tool"),
        (message(CALL), message(call('{"q":')), "same_tool"),
        (message(call('{"q":')), message(CALL), "unscored"),
        (message(CALL), message(call('{"q":"a"}', "other")), "different"),
        (message(CALL), message(text="Done."), "different"),
        (message(text="Done."), message(CALL), "different"),
        (message(CALL), message(CALL, CALL), "different"),
        (message(CALL, call('{"q":"b"}')), message(call('{"q": "b"}'), call('{"q": "a"}')), "same"),
        (message(CALL, call('{"q":"b"}')), message(CALL, CALL), "same_tool"),
        (message(CALL), None, "unscored"),
    ],
)
def test_agreement_of_two_actions(primary, shadow, found):
    assert agreement(primary, shadow, (Tool(name="look_up", description="", parameters=SCHEMA),)) == found
