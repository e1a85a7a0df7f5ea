"""Every format in its own words, read into the same sessions."""

import gzip
import json
from pathlib import Path

import pytest

from firstchair.chat.messages import ImagePart, ThinkingPart
from firstchair.core.errors import ConfigError, DataError
from firstchair.core.jsonl import SkipBad
from firstchair.testing.sessions import trip_session, trip_tools
from firstchair.traces.decisions import decision_points
from firstchair.traces.importers import ImportOptions, importer
from firstchair.traces.importing import import_file
from firstchair.traces.session import catalog_id_of
from firstchair.traces.session_file import write_sessions
from firstchair.traces.store import TraceStore

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
OPENAI_TOOLS = [
    {"type": "function", "function": {"name": "look", "description": "Look it up. " * 20, "parameters": SCHEMA}}
]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city":  "Oslo"}'}}
ROLES = ["system", "user", "assistant", "tool", "assistant"]
OPENAI = [
    {"role": "system", "content": "be good"},
    {"role": "user", "content": "weather?\u2028now"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "content": "Error: no such city"},
    {"role": "assistant", "content": "I do not know."},
]


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def read(format_name: str, path: Path, **options: object) -> list:
    return list(importer(format_name)(path, ImportOptions(**options)))


def test_openai_conversations_keep_arguments_tools_and_labels(tmp_path):
    row = {"id": 7, "messages": OPENAI, "tools": OPENAI_TOOLS, "labels": {"reward": 1.0}, "created_at": 1_700_000_000}
    (found,) = read("openai", write(tmp_path / "a.jsonl", {**row, "model": "m", "api_key": "x"}))
    session = found.session
    assert session.session_id == "7"
    assert session.source == "production"
    assert session.created_at == "2023-11-14T22:13:20.000000Z"
    assert session.labels == {"reward": 1.0}
    assert session.meta == {"model": "m", "api_key": "[redacted]"}
    assert session.messages[2].tool_calls[0].arguments == '{"city":  "Oslo"}'
    assert [turn.start for turn in session.turns] == [1]
    assert found.tools[0].parameters == SCHEMA
    assert session.catalog_id == catalog_id_of(found.tools)
    assert found.received == json.dumps(OPENAI_TOOLS)
    assert found.origin.endswith("a.jsonl:1")


def test_records_without_an_id_are_named_by_their_content(tmp_path):
    rows = [{"messages": OPENAI}, {"messages": OPENAI}, {"messages": OPENAI[:2]}]
    first, again, other = (found.session for found in read("openai", write(tmp_path / "a.jsonl", *rows)))
    assert first == again
    assert first.session_id.startswith("openai-")
    assert other.session_id != first.session_id


def test_error_results_are_known_by_the_wires_mark_or_a_given_prefix(tmp_path):
    marked = [*OPENAI[:3], {"role": "tool", "tool_call_id": "c1", "content": "[tool_error] boom"}]
    path = write(tmp_path / "a.jsonl", {"messages": OPENAI}, {"messages": marked})
    flags = lambda **options: [found.session.messages[3].is_error for found in read("openai", path, **options)]  # noqa: E731
    assert flags() == [False, True]
    assert flags(error_prefixes=("Error:",)) == [True, True]


def test_tools_source_and_labels_can_be_laid_over(tmp_path):
    tools = tmp_path / "tools.json"
    tools.write_text("\ufeff" + json.dumps(OPENAI_TOOLS), encoding="utf-8")
    path = write(tmp_path / "a.jsonl", {"messages": OPENAI, "labels": {"a": 1}})
    (found,) = read("openai", path, tools_path=tools, source="synthetic", labels={"a": "x", "b": "y"})
    assert found.tools[0].name == "look"
    assert found.session.source == "synthetic"
    assert found.session.labels == {"a": 1, "b": "y"}
    tools.write_text("[1]")
    with pytest.raises(DataError, match=r"tools\.json: tools\[0\]"):
        read("openai", path, tools_path=tools)


def test_openai_exchanges_become_conversations_with_calls_and_usage(tmp_path):
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 5}}
    answer = lambda message: {"id": "r", "model": "m", "choices": [{"message": message}], "usage": usage}  # noqa: E731
    base = {"session_id": "s 1", "headers": {"authorization": "Bearer canary"}}
    rows = [
        {**base, "timestamp": "2026-01-01T00:00:02Z", "request": {"messages": OPENAI[:4], "tools": OPENAI_TOOLS},
         "response": answer({**OPENAI[4], "refusal": None, "tool_calls": None})},
        {**base, "timestamp": "2026-01-01T00:00:01Z", "request": {"messages": OPENAI[:2], "tools": OPENAI_TOOLS},
         "response": answer(OPENAI[2]), "latency_ms": 12},
        {**base, "timestamp": "2026-01-01T00:00:03Z", "request": {"messages": OPENAI[:2], "tools": OPENAI_TOOLS},
         "response": {"error": {"type": "rate_limit_error", "message": "key sk-secret"}}},
    ]  # fmt: skip
    found = [item.session for item in read("openai", write(tmp_path / "a.jsonl", *rows))]
    session, failed = found
    assert session.session_id == "s-1"
    assert len(session.messages) == 5
    assert [call.message_index for call in session.calls] == [2, 4]
    assert session.calls[0].usage.input == 7
    assert session.calls[0].latency_ms == 12
    assert session.meta["headers"] == {"authorization": "[redacted]"}
    assert failed.calls[0].error == "rate_limit_error"
    assert len(decision_points(failed)) == 0


def test_exchanges_without_ids_are_put_together_by_how_they_begin(tmp_path):
    rows = [
        {"request": {"messages": OPENAI[:2]}, "response": {"choices": [{"message": OPENAI[2]}]}},
        {"request": {"messages": OPENAI[:4]}, "response": {"choices": [{"message": OPENAI[4]}]}},
    ]
    (found,) = read("openai", write(tmp_path / "a.jsonl", *rows))
    (again,) = read("openai", write(tmp_path / "b.jsonl", *rows))
    assert len(found.session.messages) == 5
    assert found.session == again.session


def test_anthropic_conversations_and_exchanges(tmp_path):
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {"city": "Oslo"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "nothing there", "is_error": True}
    messages = [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "sig"}, use]},
        {"role": "user", "content": [result]},
        {"role": "assistant", "content": [{"type": "text", "text": "I do not know."}]},
    ]
    tools = [{"name": "look", "description": "d", "input_schema": SCHEMA}]
    row = {"messages": messages, "system": "be good", "tools": tools}
    usage = {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7}
    exchange = {
        "request": {**row, "messages": messages[:3]},
        "response": {"id": "m", "model": "c", "content": messages[3]["content"], "role": "assistant", "usage": usage},
        "conversation_id": "x",
    }
    whole, traced = (item.session for item in read("anthropic", write(tmp_path / "a.jsonl", row, exchange)))
    assert [message.text for message in whole.messages] == [message.text for message in traced.messages]
    assert whole.messages[2].thinking == "hm"
    assert isinstance(whole.messages[2].content[0], ThinkingPart)
    assert whole.messages[3].is_error
    assert "recovery" in decision_points(whole)[1].tags
    used = traced.calls[0].usage
    assert (used.input, used.output, used.cache_read, used.cache_write) == (5, 2, 100, 7)
    assert traced.context_end == 4, "the first call was not recorded, so its action is context"
    assert len(decision_points(traced)) == 1


@pytest.mark.parametrize("style", ["sharegpt", "roles", "calls", "tags"])
def test_conversations_in_every_usual_spelling(tmp_path, style):
    call = {"name": "look", "arguments": {"city": "Oslo"}}
    rows = {
        "sharegpt": [
            {"from": "human", "value": "weather?"},
            {"from": "function_call", "value": json.dumps(call)},
            {"from": "observation", "value": "sun"},
            {"from": "gpt", "value": "It is sunny."},
        ],
        "roles": [
            {"role": "user", "content": "weather?"},
            {"role": "function_call", "content": call},
            {"role": "tool", "content": "sun"},
            {"role": "assistant", "content": "It is sunny."},
        ],
        "calls": [
            {"role": "user", "content": "weather?"},
            {"role": "assistant", "content": None, "loss": True, "tool_calls": [{**CALL, "id": "call_0"}]},
            {"role": "tool", "tool_call_id": "call_0", "name": "look", "content": "sun"},
            {"role": "assistant", "content": "It is sunny."},
        ],
        "tags": [
            {"from": "human", "value": "weather?"},
            {"from": "gpt", "value": f"<tool_call>\n{json.dumps(call)}\n</tool_call>"},
            {"from": "tool", "value": "<tool_response>\nsun\n</tool_response>"},
            {"from": "gpt", "value": "It is sunny."},
        ],
    }[style]
    record = {"conversations": rows, "system": "be good", "tools": json.dumps(OPENAI_TOOLS)}
    (found,) = read("conversations", write(tmp_path / "a.jsonl", record))
    session = found.session
    assert [message.role for message in session.messages] == ROLES
    assert session.messages[2].tool_calls[0].name == "look"
    assert session.messages[2].tool_calls[0].parsed() == {"city": "Oslo"}
    assert session.messages[3].text == "sun"
    assert session.messages[3].name == "look"
    assert found.received == json.dumps(OPENAI_TOOLS)
    assert session.source == "synthetic"


def test_parallel_calls_are_answered_in_order_and_malformed_ones_are_kept(tmp_path):
    calls = [{"name": "a", "arguments": "{not json"}, {"name": "b", "arguments": {}}]
    rows = [
        {"from": "human", "value": "go"},
        {"from": "function_call", "value": json.dumps(calls)},
        {"from": "observation", "value": "first"},
        {"from": "observation", "value": "second", "is_error": True},
        {"from": "function_call", "value": '{"name": "a", "arg'},
        {"from": "observation", "value": "Error: could not read that"},
        {"from": "gpt", "value": '<tool_call>{"name": "b", "arguments": {"x": }}</tool_call>'},
    ]
    path = write(tmp_path / "a.jsonl", {"conversations": rows})
    (found,) = read("conversations", path, error_prefixes=("Error:",))
    messages = found.session.messages
    assert [call.arguments for call in messages[1].tool_calls] == ["{not json", "{}"]
    assert [(m.name, m.is_error) for m in messages[2:4]] == [("a", False), ("b", True)]
    assert messages[4].tool_calls[0].arguments == '{"name": "a", "arg'
    assert messages[4].tool_calls[0].parsed() is None
    assert messages[5].is_error
    assert messages[6].tool_calls[0].parsed() is None
    assert '{"x": }' in messages[6].tool_calls[0].arguments


TAU = {"task_id": 3, "trial": 1, "reward": 0.5, "info": {"task": {"user_id": "ann"}}, "traj": OPENAI}


@pytest.mark.parametrize("form", ["list", "lines", "gzip"])
def test_tau_trajectories_carry_task_trial_and_reward(tmp_path, form):
    path = tmp_path / ("t.json.gz" if form == "gzip" else "t.json")
    text = json.dumps([TAU, {**TAU, "trial": 2}]) if form != "lines" else f"{json.dumps(TAU)}\n{json.dumps(TAU)}\n"
    path.write_bytes(gzip.compress(text.encode()) if form == "gzip" else text.encode())
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(OPENAI_TOOLS))
    found = read("tau", path, tools_path=tools)
    assert found[0].session.labels == {"task_id": 3, "trial": 1, "reward": 0.5}
    assert found[0].session.session_id.startswith("tau-3-1-")
    assert found[0].session.meta == {"info": {"task": {"user_id": "ann"}}}
    assert found[0].session.messages[3].is_error, "τ-bench reports failures as 'Error: …'"
    assert found[0].tools[0].name == "look"
    assert found[1].origin == (f"{path}:2" if form == "lines" else f"{path}[1]:1")
    assert (found[0].session == found[1].session) == (form == "lines")


def test_the_same_tau_run_under_another_file_name_is_the_same_session(tmp_path):
    first, second = (read("tau", write(tmp_path / name, TAU))[0].session for name in ("a.json", "b.json"))
    assert first == second
    other = {**TAU, "traj": OPENAI[:2]}
    assert read("tau", write(tmp_path / "c.json", other))[0].session.session_id != first.session_id


def test_an_export_is_imported_as_it_was(tmp_path):
    session = trip_session(1)
    write_sessions(tmp_path / "out", [session], {session.catalog_id: trip_tools()}, received=lambda _: "[ wire ]")
    (found,) = read("firstchair", tmp_path / "out")
    assert found.session == session
    assert found.received == "[ wire ]"
    (found,) = read("firstchair", tmp_path / "out" / "sessions.jsonl", labels={"wave": "2"})
    assert found.session.labels["wave"] == "2"
    (tmp_path / "out" / "catalogs.jsonl").unlink()
    with pytest.raises(DataError, match="no such tool list"):
        read("firstchair", tmp_path / "out")


def span(number: int, prompt: list, reply: list | None, **attributes: object) -> dict:
    content = {"gen_ai.input.messages": prompt, "gen_ai.output.messages": reply} if reply else {}
    return {
        "name": "chat m",
        "trace_id": "t1",
        "span_id": f"s{number}",
        "start_time": f"2026-01-01T00:00:0{number}Z",
        "end_time": f"2026-01-01T00:00:0{number}.500Z",
        "attributes": {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "m",
            "gen_ai.usage.input_tokens": 130,
            "gen_ai.usage.output_tokens": 4,
            "gen_ai.usage.cache_read.input_tokens": 100,
            "gen_ai.usage.cache_creation.input_tokens": 10,
            "http.request.header.authorization": ["Bearer canary-7"],
            **content,
            **attributes,
        },
    }


USER = {"role": "user", "parts": [{"type": "text", "content": "weather?"}]}
ASKS = {
    "role": "assistant",
    "parts": [
        {"type": "reasoning", "content": "look it up"},
        {"type": "tool_call", "id": "c1", "name": "look", "arguments": {"city": "Oslo"}},
    ],
}
ANSWER = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": {"sky": "clear"}}]}
SAYS = {"role": "assistant", "parts": [{"type": "text", "content": "Clear."}], "finish_reason": "stop"}
DEFINITIONS = [{"type": "function", "name": "look", "description": "d", "parameters": SCHEMA}]


def otlp(spans: list[dict]) -> dict:
    """Flat spans as an OTLP document."""

    def value(item: object) -> dict:
        if isinstance(item, bool):
            return {"boolValue": item}
        if isinstance(item, int):
            return {"intValue": str(item)}
        if isinstance(item, str):
            return {"stringValue": item}
        if isinstance(item, list):
            return {"arrayValue": {"values": [value(inner) for inner in item]}}
        return {"kvlistValue": {"values": [{"key": key, "value": value(inner)} for key, inner in item.items()]}}

    made = [
        {
            "traceId": item["trace_id"],
            "spanId": item["span_id"],
            "name": item["name"],
            "startTimeUnixNano": str(1_767_225_600_000_000_000 + int(item["span_id"][1:]) * 10**9),
            "endTimeUnixNano": str(1_767_225_600_500_000_000 + int(item["span_id"][1:]) * 10**9),
            "attributes": [{"key": key, "value": value(inner)} for key, inner in item["attributes"].items()],
        }
        for item in spans
    ]
    return {"resourceSpans": [{"scopeSpans": [{"spans": made[:1]}, {"spans": made[1:]}]}]}


@pytest.mark.parametrize("form", ["flat", "lines", "otlp", "text"])
def test_otel_spans_become_sessions(tmp_path, form):
    instructions = {"gen_ai.system_instructions": [{"type": "text", "content": "be good"}]}
    more = {**instructions, "gen_ai.tool.definitions": DEFINITIONS, "gen_ai.conversation.id": "conv/1"}
    spans = [
        span(2, [USER, ASKS, ANSWER], [SAYS], **more),
        span(1, [USER], [ASKS], **more),
        {"name": "execute_tool look", "attributes": {"gen_ai.operation.name": "execute_tool"}},
    ]
    if form == "text":
        for item in spans:
            item["attributes"] = {
                key: json.dumps(value) if isinstance(value, list) and "header" not in key else value
                for key, value in item["attributes"].items()
            }
    path = tmp_path / "spans.json"
    if form == "lines":
        write(path, *spans)
    else:
        path.write_text(json.dumps(otlp(spans[:2]) if form == "otlp" else spans, indent=2))
    (found,) = read("otel", path)
    session = found.session
    assert session.session_id == "conv/1"
    assert [message.role for message in session.messages] == ROLES
    assert session.messages[2].thinking == "look it up"
    assert session.messages[3].text == '{"sky": "clear"}'
    assert found.tools[0].parameters == SCHEMA
    first = session.calls[0]
    assert (first.call_id, first.provider, first.latency_ms) == ("s1", "openai", 500)
    assert (first.usage.input, first.usage.cache_read, first.usage.cache_write) == (20, 100, 10)
    assert session.created_at == "2026-01-01T00:00:01.000000Z"
    assert "canary" not in json.dumps(session.meta)
    assert session.context_end == 0


def test_otel_events_of_the_older_convention_are_read(tmp_path):
    arguments = json.dumps({"city": "Oslo"})
    older = {
        "name": "chat",
        "context": {"trace_id": "t9", "span_id": "s"},
        "start_time": 1_767_225_600_000_000_000,
        "status": {"status_code": "OK"},
        "attributes": {"gen_ai.system": "openai", "gen_ai.usage.prompt_tokens": 3},
        "events": [
            {"name": "gen_ai.system.message", "attributes": {"content": "be good"}},
            {"name": "gen_ai.user.message", "body": {"content": "weather?"}},
            {
                "name": "gen_ai.assistant.message",
                "attributes": {"tool_calls": [{**CALL, "function": {"name": "look", "arguments": {"city": "Oslo"}}}]},
            },
            {"name": "gen_ai.tool.message", "attributes": {"id": "c1", "content": "sun"}},
            {"name": "gen_ai.choice", "attributes": {"index": 0, "message": json.dumps({"content": "Sunny."})}},
            {"name": "gen_ai.choice", "attributes": {"index": 1, "message": {"content": "second choice"}}},
        ],
    }
    (found,) = read("otel", write(tmp_path / "a.json", older))
    assert [message.role for message in found.session.messages] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert found.session.messages[2].tool_calls[0].arguments == arguments
    assert found.session.messages[4].text == "Sunny."
    assert found.session.calls[0].provider == "openai"
    assert found.session.session_id == "t9"


def test_otel_details_events_images_and_calls_without_ids(tmp_path):
    def without_id(message: dict) -> dict:
        return {**message, "parts": [{k: v for k, v in part.items() if k != "id"} for part in message["parts"]]}

    image = {"type": "uri", "modality": "image", "uri": "https://x/y.png", "mime_type": "image/png"}
    blob = {"type": "blob", "modality": "image", "content": "aGk=", "mime_type": "image/png"}
    twice = {**ASKS, "parts": [*ASKS["parts"], ASKS["parts"][1]]}
    prompt = [
        {"role": "user", "parts": [image, blob, {"type": "odd", "x": 1}]},
        without_id(twice),
        without_id(ANSWER),
        without_id(ANSWER),
    ]
    details = {
        "name": "gen_ai.client.inference.operation.details",
        "attributes": {"gen_ai.input.messages": prompt, "gen_ai.output.messages": [SAYS]},
    }
    item = {"trace_id": "t", "attributes": {"gen_ai.operation.name": "chat"}, "events": [details]}
    (found,) = read("otel", write(tmp_path / "a.json", item))
    first = found.session.messages[0]
    assert isinstance(first.content[0], ImagePart)
    assert first.content[1].url == "data:image/png;base64,aGk="
    assert first.content[2].data == {"type": "odd", "x": 1}
    assert [call.id for call in found.session.messages[1].tool_calls] == ["call_0", "call_1"]
    assert [message.tool_call_id for message in found.session.messages[2:4]] == ["call_0", "call_1"]


def test_otel_without_content_says_what_to_switch_on(tmp_path):
    path = write(tmp_path / "a.json", span(1, [], None))
    with pytest.raises(DataError, match="switch on content"):
        read("otel", path)


def test_otel_faults_are_named_by_span_and_field(tmp_path):
    bad = span(1, [{"role": "user", "parts": [{"type": "text", "content": 5}]}], [SAYS])
    path = tmp_path / "a.json"
    path.write_text(json.dumps(otlp([span(2, [USER], [SAYS]), bad])))
    with pytest.raises(DataError) as caught:
        read("otel", path)
    assert "a.json:1: resourceSpans[0]" in str(caught.value)
    assert "resourceSpans[0].scopeSpans[1].spans[0].gen_ai.input.messages[0].parts[0].content" in str(caught.value)


def test_an_unknown_format_is_refused():
    with pytest.raises(ConfigError, match="openai, anthropic"):
        importer("yaml")


def test_conversations_faults_are_named(tmp_path):
    cases = [
        ({"conversations": [{"from": "alien", "value": "x"}]}, "conversations[0]"),
        ({"conversations": [{"from": "observation", "value": "x"}]}, "conversations[0]"),
        ({"conversations": ["x"]}, "conversations[0]"),
        ({"conversations": [{"from": "human", "value": 5}]}, "conversations[0]"),
        ({"conversations": "x"}, "conversations"),
        ({"conversations": [], "system": 1}, "system"),
        ({"conversations": []}, "messages"),
        ({"text": "x"}, "conversations"),
        ({"conversations": [{"from": "human", "value": "x"}], "tools": "[oops"}, "tools"),
    ]
    skip = SkipBad(allowed=len(cases))
    read("conversations", write(tmp_path / "a.jsonl", *(row for row, _ in cases)), skip=skip)
    assert [error.field for error in skip.skipped] == [field for _, field in cases]


@pytest.mark.parametrize(
    ("word", "tags"),
    [
        ("stop", ("stop",)),
        ("length", ("truncated",)),
        ("MAX_TOKENS", ("truncated",)),
        ("content_filter", ("refused",)),
        ("refusal", ("refused",)),
        ("error", ("unfinished",)),
    ],
)
@pytest.mark.parametrize("format_name", ["openai", "anthropic", "otel"])
def test_a_reply_that_was_cut_or_refused_is_no_stop(tmp_path, format_name, word, tags):
    user, request = [{"role": "user", "content": "hi"}], {"model": "m"}
    rows = {
        "openai": {
            "request": {**request, "messages": user},
            "response": {"choices": [{"message": {"role": "assistant", "content": "I"}, "finish_reason": word}]},
        },
        "anthropic": {
            "request": {**request, "messages": user},
            "response": {"role": "assistant", "content": [{"type": "text", "text": "I"}], "stop_reason": word},
        },
        "otel": span(1, [USER], [{**SAYS, "finish_reason": word}]),
    }
    (found,) = read(format_name, write(tmp_path / "a.jsonl", rows[format_name]))
    assert [point.tags for point in decision_points(found.session)] == [tags]
    assert found.session.calls[0].finish_reason == word


def test_otel_finish_reasons_of_the_span_win(tmp_path):
    for reasons in (["length"], '["length"]', "length"):
        row = span(1, [USER], [SAYS], **{"gen_ai.response.finish_reasons": reasons})
        (found,) = read("otel", write(tmp_path / "a.jsonl", row))
        assert decision_points(found.session)[0].tags == ("truncated",)


def test_the_echo_of_a_cut_reply_in_the_next_prompt_is_the_same_message(tmp_path):
    cut = {"role": "assistant", "content": "I would"}
    rows = [
        {"request": {"messages": OPENAI[:2]}, "response": {"choices": [{"message": cut, "finish_reason": "length"}]}},
        {"request": {"messages": [*OPENAI[:2], cut, OPENAI[1]]}, "response": {"choices": [{"message": OPENAI[4]}]}},
    ]
    (found,) = read("openai", write(tmp_path / "a.jsonl", *rows))
    assert [point.tags for point in decision_points(found.session)] == [("truncated",), ("stop",)]


ASKED = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("description", ["é", "é" * 300], ids=["short", "long"])
@pytest.mark.parametrize("form", ["openai", "said before", "exchange", "anthropic", "conversations", "otel", "file"])
def test_the_wire_text_of_a_tool_list_is_kept_byte_for_byte(tmp_path, form, description):
    said = json.dumps(ASKED)
    tools = f'{{"name":  "look", "description": "{description}", "parameters": {{"b": 1.0, "a": {{}}}}}}'
    if form == "anthropic":
        tools = tools.replace("parameters", "input_schema")
    else:
        tools = f'{{"type": "function", "function": {tools}}}'
    tools = f"[ {tools} ]"
    lines = {
        "openai": f'{{"messages": {said}, "tools": {tools}}}',
        "said before": f'{{"m": {tools}, "messages": {said}, "tools": {tools}}}',
        "exchange": f'{{"request": {{"messages": {said}, "tools": {tools}}}, "response": null}}',
        "anthropic": f'{{"messages": {said}, "tools": {tools}}}',
        "conversations": f'{{"messages": {said}, "tools": {tools}}}',
        "otel": json.dumps(span(1, [USER], [SAYS], **{"gen_ai.tool.definitions": tools})),
        "file": f'{{"task_id": 1, "traj": {said}}}',
    }
    path = tmp_path / "a.jsonl"
    path.write_text(lines[form] + "\n", encoding="utf-8")
    options = ImportOptions()
    if form == "file":
        options.tools_path = tmp_path / "tools.json"
        options.tools_path.write_text(f"\ufeff{tools}\n", encoding="utf-8")
    name = {"said before": "openai", "exchange": "openai", "file": "tau"}.get(form, form)
    with TraceStore.open(tmp_path / "t.db") as store:
        import_file(store, path, name, options)
        (catalog_id,) = store.catalog_ids()
        assert store.received(catalog_id) == tools


def told(prompt: list[int], completion: list[int], **changes: object) -> dict:
    """What vLLM adds to a response, and the choice's own part of it."""
    content = [{"token": "x", "logprob": -0.5 * number, "bytes": [120]} for number in range(len(completion))]
    return {"prompt_token_ids": prompt, "token_ids": completion, "logprobs": {"content": content}, **changes}


def vllm_log(path: Path, *calls: tuple[list, dict, dict]) -> Path:
    rows = []
    for messages, reply, extra in calls:
        choice = {"message": reply, **{name: extra[name] for name in ("token_ids", "logprobs") if name in extra}}
        response = {"choices": [choice], "prompt_token_ids": extra.get("prompt_token_ids")}
        rows.append({"session_id": "s", "request": {"messages": messages}, "response": response})
    return write(path, *rows)


def test_token_ids_and_logprobs_of_vllm_are_kept(tmp_path):
    calls = [(OPENAI[:2], OPENAI[2], told([1, 2], [3, 4])), (OPENAI[:4], OPENAI[4], told([1, 2, 3, 4, 5], [6]))]
    (found,) = read("openai", vllm_log(tmp_path / "a.jsonl", *calls))
    first, second = (call.tokens for call in found.session.calls)
    assert (first.prompt_ids, first.completion_ids, first.logprobs) == ((1, 2), (3, 4), (0.0, -0.5))
    assert second.prompt_ids == (1, 2, 3, 4, 5)
    (bare,) = read("openai", vllm_log(tmp_path / "b.jsonl", (OPENAI[:2], OPENAI[2], {"token_ids": None})))
    assert bare.session.calls[0].tokens is None


def test_a_prompt_whose_ids_do_not_continue_the_last_ones_is_a_branch(tmp_path):
    calls = [(OPENAI[:2], OPENAI[2], told([1, 2], [3, 4])), (OPENAI[:4], OPENAI[4], told([1, 2, 9, 4, 5], [6]))]
    found = [item.session for item in read("openai", vllm_log(tmp_path / "a.jsonl", *calls))]
    assert [session.session_id for session in found] == ["s", "s#1"]
    assert [len(decision_points(session)) for session in found] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"logprobs": {"content": [{"logprob": -1}]}}, r"logprobs: found 1 logprobs for 2 completion ids"),
        ({"token_ids": [1, "x"]}, r"token_ids: not token ids"),
        ({"logprobs": {"content": [{}, {}]}}, r"token_ids: not token ids"),
    ],
)
def test_ids_and_logprobs_that_do_not_belong_together_are_refused(tmp_path, changes, words):
    path = vllm_log(tmp_path / "a.jsonl", (OPENAI[:2], OPENAI[2], told([1], [2, 3], **changes)))
    with pytest.raises(DataError, match=rf"a\.jsonl:1: response\.choices\[0\]\.{words}"):
        read("openai", path)
