"""Responses: every object validates against the official SDK's types, streamed and buffered forms are one.

The items are typed by hand after the SDK's types; none was recorded from a server.
"""

import asyncio
import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import CallMark, ImagePart, Message, RawPart, TextPart, ThinkingPart, ToolCall
from firstchair.chat.wire_request import Finish
from firstchair.core.errors import BadRequest, DataError
from firstchair.gateway.dialects.anthropic import AnthropicMessages
from firstchair.gateway.dialects.base import (
    BlockStart,
    ChatAnswer,
    Failure,
    FailureKind,
    Start,
    StreamFault,
    Target,
    ToolChoice,
)
from firstchair.gateway.dialects.collect import Collector, events_of
from firstchair.gateway.dialects.openai_chat import OpenAIChat
from firstchair.gateway.dialects.openai_responses import OpenAIResponses
from firstchair.gateway.dialects.responses_items import REDACTED, SIGNED
from firstchair.testing.scripted_answers import Raw, Reply
from firstchair.testing.scripted_events import anthropic_events, openai_events
from firstchair.testing.scripted_upstream import Script, scripted_upstream

RESPONSES = OpenAIResponses()
EVENT = TypeAdapter(ResponseStreamEvent)
COUNTS = TokenCounts(input=5, cache_read=7, cache_write_5m=11, output=17, reasoning=3)
CALLS = (
    ToolCall.of("call_1", "weather", {"city": "Köln"}),
    ToolCall(id="call_2", name="time", arguments='{"zone": '),
)
TOOL = {"type": "function", "name": "weather", "description": "d", "parameters": {"type": "object"}, "strict": True}


def answer(*parts, calls=(), finish=Finish.STOP, **fields) -> ChatAnswer:
    message = Message(role="assistant", content=parts, tool_calls=calls)
    return ChatAnswer(id="msg_01AbC", model="up", message=message, finish=finish, usage=COUNTS, **fields)


THINKING = ThinkingPart(text="They greet.", signature="c2ln")
ANSWERS = {
    "text": answer(TextPart(text="Grüße 👋")),
    "calls": answer(THINKING, TextPart(text="Looking."), calls=CALLS, finish=Finish.TOOL_CALLS),
    "only a call": answer(calls=CALLS[:1], finish=Finish.TOOL_CALLS),
    "text after a call": answer(
        CallMark(index=0), TextPart(text="and"), CallMark(index=1), calls=CALLS, finish=Finish.TOOL_CALLS
    ),
    "two texts": answer(TextPart(text="a"), TextPart(text="b")),
    "empty": answer(),
    "cut": answer(TextPart(text="so far"), finish=Finish.LENGTH),
    "cut call": answer(TextPart(text="x"), calls=CALLS[1:], finish=Finish.LENGTH),
    "refused": answer(TextPart(text="I"), finish=Finish.REFUSAL),
    "a refusal": answer(RawPart(provider="openai", data={"type": "refusal", "refusal": "No."})),
    "redacted": answer(RawPart(provider="anthropic", data={"type": "redacted_thinking", "data": "xyz"})),
    "paused": answer(TextPart(text="wait"), finish=Finish.PAUSE),
    "full": answer(TextPart(text="wait"), finish=Finish.CONTEXT_WINDOW),
}
EACH_ANSWER = pytest.mark.parametrize("given", ANSWERS.values(), ids=ANSWERS)


def ask(**fields):
    return RESPONSES.read_request({"model": "slot", "input": "hi", **fields})


def buffered(given: ChatAnswer, **fields) -> dict:
    return RESPONSES.write_answer(given, ask(**fields), model="slot").body


def written(events, request) -> bytes:
    writer = RESPONSES.writer(request, model="slot")
    return b"".join(writer.write(event) for event in events)


def frames(data: bytes) -> list[tuple[str, dict]]:
    blocks = [block.split("\n", 1) for block in data.decode().split("\n\n") if block]
    return [(name.removeprefix("event: "), json.loads(line.removeprefix("data: "))) for name, line in blocks]


def collect(reader, pairs) -> ChatAnswer:
    collector = Collector()
    for name, data in pairs:
        for event in reader.feed(name, json.dumps(data) if isinstance(data, dict) else data):
            collector.add(event)
    reader.close()
    return collector.answer()


def meaning(given: ChatAnswer):
    return given.message, given.finish, given.usage


# --- answers ----------------------------------------------------------------------------------------------------


@EACH_ANSWER
def test_a_whole_answer_validates_and_reads_back(given):
    body = buffered(given)
    Response.model_validate(body)
    assert meaning(RESPONSES.read_answer(body)) == meaning(given)


@EACH_ANSWER
def test_the_stream_validates_ends_in_the_buffered_response_and_reads_back(given):
    got = frames(written(events_of(given), ask()))
    for name, data in got:
        assert data["type"] == name
        EVENT.validate_python(data)
    assert [data["sequence_number"] for _, data in got] == list(range(len(got)))
    assert [name for name, _ in got[:2]] == ["response.created", "response.in_progress"]
    assert got[-1][1]["response"] == buffered(given)
    assert got[-1][0] == f"response.{got[-1][1]['response']['status']}"
    done = [data["item"] for name, data in got if name == "response.output_item.done"]
    assert done == got[-1][1]["response"]["output"]
    assert meaning(collect(RESPONSES.reader(), got)) == meaning(given)


@EACH_ANSWER
def test_output_sent_back_as_input_is_the_message_that_was_answered(given):
    output = buffered(given)["output"]
    request = ask(input=[{"role": "user", "content": "hi"}, *output])
    assert request.messages[1:] == ((given.message,) if output else ())


def test_a_stream_tells_tools_back_with_numbers_of_any_size():
    huge = {**TOOL, "parameters": {"type": "object", "maxProperties": 10**30}}
    got = frames(written(events_of(ANSWERS["text"]), ask(tools=[huge])))
    assert got[-1][1]["response"]["tools"][0]["parameters"]["maxProperties"] == 10**30


def test_endings():
    statuses = {
        name: (body["status"], (body["incomplete_details"] or {}).get("reason"), body["output"][-1]["status"])
        for name, given in ANSWERS.items()
        if (body := buffered(given))["output"]
    }
    assert statuses["text"] == statuses["calls"] == ("completed", None, "completed")
    assert statuses["cut"] == statuses["cut call"] == ("incomplete", "max_output_tokens", "incomplete")
    assert statuses["refused"] == ("incomplete", "content_filter", "incomplete")
    assert buffered(ANSWERS["full"])["native_finish_reason"] == "model_context_window_exceeded"


def test_usage_names_every_counter():
    assert buffered(ANSWERS["text"])["usage"] == {
        "input_tokens": 23,
        "input_tokens_details": {"cached_tokens": 7, "cache_write_tokens": 11},
        "output_tokens": 17,
        "output_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 40,
    }
    silent = ChatAnswer(id="x", model="m", message=Message(role="assistant"), finish=Finish.STOP)
    assert buffered(silent)["usage"] is None


def test_the_response_tells_back_what_was_asked():
    fields = {
        "instructions": "Be brief.",
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "weather"},
        "parallel_tool_calls": False,
        "max_output_tokens": 99,
        "reasoning": {"effort": "low", "summary": "auto"},
        "metadata": {"a": "b"},
        "temperature": 0.5,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
    }
    body = buffered(ANSWERS["text"], **fields)
    Response.model_validate(body)
    assert {key: body[key] for key in fields} == fields
    assert (body["model"], body["store"]) == ("slot", False)


def test_what_no_item_can_hold_is_listed():
    image = answer(ImagePart(url="https://x/y.png"), TextPart(text="a", extra={"anthropic": {"citations": [1]}}))
    assert RESPONSES.write_answer(image, ask(), model="m").dropped == ("content.image", "content.citations")
    odd = answer(RawPart(provider="anthropic", data={"type": "server_tool_use"}), extra={"container": {"id": 1}})
    assert RESPONSES.write_answer(odd, ask(), model="m").dropped == ("content.server_tool_use", "container")
    writer = RESPONSES.writer(ask(), model="m")
    for event in events_of(odd):
        writer.write(event)
    assert sorted(writer.dropped) == ["container", "content.server_tool_use"]


def test_a_failed_response_is_no_answer():
    with pytest.raises(DataError, match="no luck"):
        RESPONSES.read_answer({"status": "failed", "error": {"message": "no luck"}, "output": []})
    with pytest.raises(DataError, match="status"):
        RESPONSES.read_answer({"status": "queued", "output": []})


# --- the SDK over a socket --------------------------------------------------------------------------------------


def served(given: ChatAnswer) -> Script:
    """A server that answers in this dialect."""

    def by(seen):
        request = RESPONSES.read_request(seen.body)
        if not request.stream:
            return Raw(body=json.dumps(RESPONSES.write_answer(given, request, model="slot").body).encode())
        writer = RESPONSES.writer(request, model="slot")
        parts = tuple(part for event in events_of(given) if (part := writer.write(event)))
        return Raw(body=parts, content_type="text/event-stream")

    return Script(by=by)


def check(response) -> None:
    assert response.output_text == "Looking."
    reasoning, _, *calls = response.output
    assert reasoning.summary[0].text == THINKING.text
    assert [(call.call_id, call.name, call.arguments) for call in calls] == [
        (c.id, c.name, c.arguments) for c in CALLS
    ]
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (23, 7)


def test_the_sdk_reads_whole_and_streamed_answers():
    fields = {"model": "slot", "input": "hi"}
    with scripted_upstream(served(ANSWERS["calls"])) as server:
        url = f"{server.base_url}/v1"
        with openai.OpenAI(base_url=url, api_key="k", max_retries=0) as client:
            check(client.responses.create(**fields))
            with client.responses.stream(**fields) as stream:
                kinds = [event.type for event in stream]
                check(stream.get_final_response())
            assert "response.function_call_arguments.delta" in kinds

        async def ask_async():
            async with openai.AsyncOpenAI(base_url=url, api_key="k", max_retries=0) as client:
                check(await client.responses.create(**fields))
                async with client.responses.stream(**fields) as stream:
                    check(await stream.get_final_response())

        asyncio.run(ask_async())


def test_the_sdk_carries_a_conversation_on_with_the_output_of_the_last_turn():
    with scripted_upstream(served(ANSWERS["calls"])) as server:
        with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key="k", max_retries=0) as client:
            first = client.responses.create(model="slot", input="hi")
            results = [{"type": "function_call_output", "call_id": call.id, "output": "ok"} for call in CALLS]
            client.responses.create(
                model="slot", input=[{"role": "user", "content": "hi"}, *first.output, *results], store=False
            )
        _, replayed, *tools = RESPONSES.read_request(server.requests[1].body).messages
    assert replayed == ANSWERS["calls"].message
    assert [(tool.tool_call_id, tool.text) for tool in tools] == [("call_1", "ok"), ("call_2", "ok")]


# --- from other dialects' streams -------------------------------------------------------------------------------


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_streams_of_both_vendors_become_valid_responses_streams(wire, interleaved):
    calls = (CALLS[0], ToolCall.of("call_2", "time", {"zone": "x" * 50}))
    reply = Reply(text="Looking.", thinking="Hm.", calls=calls, usage=COUNTS, interleaved=interleaved)
    body = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    raw = openai_events(reply, body) if wire == "openai" else anthropic_events(reply, body)
    reader = (OpenAIChat() if wire == "openai" else AnthropicMessages()).reader()
    events = [event for block in raw for event in reader.feed(None, block.decode().split("data: ", 1)[1].strip())]
    got = frames(written(events, ask()))
    for _, data in got:
        EVENT.validate_python(data)
    final = got[-1][1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message", "function_call", "function_call"]
    assert [item["arguments"] for item in final["output"][2:]] == [call.arguments for call in calls]
    assert final["usage"]["input_tokens"] == 23


# --- requests ---------------------------------------------------------------------------------------------------


def test_every_field_is_read():
    request = ask(
        instructions="Be brief.",
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        max_output_tokens=9,
        reasoning={"effort": "high"},
        text={"format": {"type": "json_object"}},
        temperature=0.1,
        top_p=0.9,
        stream=True,
        user="u",
        store=False,
    )
    assert [message.role for message in request.messages] == ["system", "user"]
    assert (request.tool_choice, request.parallel_tool_calls) == (ToolChoice(kind="required"), False)
    assert (request.max_tokens, request.reasoning_effort, request.stream, request.user) == (9, "high", True, "u")
    assert (request.response_format, request.temperature, request.top_p) == ({"type": "json_object"}, 0.1, 0.9)
    assert request.tools[0].extra == {"openai": {"strict": True}}
    assert request.extra == {}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"background": True}, "background"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 7}, "input"),
        ({"model": ""}, "model"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"tools": [TOOL, {"type": "custom", "name": "x"}]}, "tools[1].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice"),
        ({"tool_choice": {"type": "web_search_preview"}}, "tool_choice"),
        ({"tool_choice": []}, "tool_choice"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"stream": "yes"}, "stream"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
        ({"input": [{"type": "web_search_call", "id": "ws"}]}, "input[0].type"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": [{"type": "input_audio"}]}]}, "input[0].content[0].type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input[0].content[0].image_url",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
            "input[0].content[0].file_data",
        ),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "reasoning", "summary": [{}]}]}, "input[0].summary[0].text"),
        ({"input": ["x"]}, "input[0]"),
    ],
    ids=str,
)
def test_what_cannot_be_served_is_refused_by_name(fields, param):
    with pytest.raises(BadRequest) as refused:
        ask(**fields)
    assert refused.value.param == param


def test_items_of_one_turn_are_one_message():
    request = ask(
        input=[
            {"role": "developer", "content": "Rules."},
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "see"},
                    {"type": "input_image", "image_url": "https://x/y.png", "detail": "auto"},
                ],
            },
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [{"type": "summary_text", "text": "Hm."}],
                "encrypted_content": SIGNED + "sig",
            },
            {"type": "reasoning", "id": "rs_2", "summary": [], "encrypted_content": REDACTED + "red"},
            {
                "type": "message",
                "id": "msg_1",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Well.", "annotations": []}],
            },
            {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "id": "fc_2", "call_id": "c2", "name": "g", "arguments": '{"a":1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "one"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "two"}]},
            {"role": "assistant", "content": "Done."},
            {"role": "assistant", "content": "Really."},
        ]
    )
    system, user, turn, one, two, done, really = request.messages
    assert (system.role, system.text) == ("system", "Rules.")
    assert user.content == (TextPart(text="see"), ImagePart(url="https://x/y.png"))
    assert turn.content[0] == ThinkingPart(text="Hm.", signature="sig")
    assert turn.content[1].data == {"type": "redacted_thinking", "data": "red"}
    assert (turn.text, [call.id for call in turn.tool_calls]) == ("Well.", ["c1", "c2"])
    assert (one.tool_call_id, one.text, two.text) == ("c1", "one", "two")
    assert (done.text, really.text) == ("Done.", "Really.")
    assert request.extra == {"store": True}


def test_what_has_no_counterpart_is_told_by_every_target():
    request = ask(
        input=[
            {"role": "user", "content": "hi"},
            {"type": "reasoning", "summary": [], "encrypted_content": "opaque"},
        ],
        store=True,
        truncation="auto",
        reasoning={"effort": "low", "summary": "auto"},
        include=["reasoning.encrypted_content"],
        stream_options={"include_obfuscation": False},
    )
    expected = {"store", "truncation", "reasoning.summary", "include", "input[1].encrypted_content"}
    for dialect in (OpenAIChat(), AnthropicMessages()):
        assert expected <= set(dialect.write_request(request, Target(model="m")).dropped)
    own = RESPONSES.write_request(request, Target(model="m"))
    assert own.dropped == ("store", "input[1].encrypted_content")
    assert len(request.messages) == 1, "sealed reasoning alone is no message"
    assert (own.body["store"], own.body["truncation"]) == (False, "auto")
    assert own.body["reasoning"] == {"effort": "low", "summary": "auto"}


def test_a_conversation_goes_to_chat_completions_and_messages():
    request = ask(
        instructions="Be brief.",
        input=[
            {"role": "user", "content": "hi"},
            {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "ok"},
        ],
        tools=[TOOL],
        tool_choice={"type": "function", "name": "weather"},
    )
    chat = OpenAIChat().write_request(request, Target(model="m")).body
    assert [row["role"] for row in chat["messages"]] == ["system", "user", "assistant", "tool"]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "weather"}}
    messages = AnthropicMessages().write_request(request, Target(model="m")).body
    assert messages["system"] == "Be brief."
    assert messages["messages"][1]["content"][0]["type"] == "tool_use"
    assert messages["tool_choice"]["name"] == "weather"


HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 2),
        ("logprobs", True),
        ("functions", [{"name": "f"}]),
        ("function_call", {"name": "f"}),
        ("audio", {"voice": "x"}),
        ("modalities", ["text", "audio"]),
        ("web_search_options", {"x": 1}),
        ("tool_choice", {"type": "allowed_tools", "allowed_tools": {}}),
        ("stop", "x"),
    ],
)
def test_what_would_change_the_answer_of_chat_completions_is_refused(field, value):
    request = OpenAIChat().read_request({"model": "m", "messages": HI, field: value})
    with pytest.raises(BadRequest) as caught:
        RESPONSES.write_request(request, Target(model="up"))
    assert caught.value.param == field


@pytest.mark.parametrize(("field", "value"), [("mcp_servers", [{"url": "x"}]), ("stop_sequences", ["x"])])
def test_what_would_change_the_answer_of_messages_is_refused(field, value):
    request = AnthropicMessages().read_request({"model": "m", "messages": HI, field: value})
    with pytest.raises(BadRequest) as caught:
        RESPONSES.write_request(request, Target(model="up"))
    assert caught.value.param == field


def test_what_asks_for_nothing_special_crosses_quietly_and_the_rest_is_listed():
    quiet = {"n": 1, "logprobs": False, "modalities": ["text"], "function_call": "none", "seed": None, "stop": []}
    request = OpenAIChat().read_request({"model": "m", "messages": HI, **quiet, "frequency_penalty": 0.5})
    assert RESPONSES.write_request(request, Target(model="up")).dropped == ("frequency_penalty",)
    config = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    request = AnthropicMessages().read_request({"model": "m", "messages": HI, "output_config": config, "top_k": 3})
    written = RESPONSES.write_request(request, Target(model="up"))
    assert written.body["text"]["format"]["schema"] == {"type": "object"}
    assert written.dropped == ("top_k",)


def test_cache_marks_are_listed_wherever_they_stand():
    mark = {"type": "ephemeral"}
    text = {"type": "text", "text": "t", "cache_control": mark}
    use = {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, "cache_control": mark}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok", "cache_control": mark}
    request = AnthropicMessages().read_request(
        {
            "model": "m",
            "system": [text, text],
            "messages": [
                {"role": "user", "content": [text]},
                {"role": "assistant", "content": [text, use]},
                {"role": "user", "content": [result]},
            ],
            "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": mark}],
        }
    )
    written = RESPONSES.write_request(request, Target(model="up"))
    assert set(written.dropped) == {
        "messages[0].content[0].cache_control",
        "messages[0].content[1].cache_control",
        "input[0].content[0].cache_control",
        "input[1].content.cache_control",
        "input[2].cache_control",
        "tools[0].cache_control",
    }
    assert "cache_control" not in json.dumps(written.body)


def test_a_name_of_a_system_message_is_listed_when_it_becomes_instructions():
    rows = [{"role": "system", "content": "Be brief.", "name": "boss"}, *HI]
    request = OpenAIChat().read_request({"model": "m", "messages": rows})
    written = RESPONSES.write_request(request, Target(model="up"))
    assert (written.body["instructions"], written.dropped) == ("Be brief.", ("messages[0].name",))


def test_a_request_written_for_this_wire_reads_back():
    chat = OpenAIChat().read_request(
        {
            "model": "m",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "image_url", "image_url": {"url": "https://x/y"}},
                    ],
                },
                {
                    "role": "assistant",
                    "content": "b",
                    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "c", "content": "[tool_error] bad"},
            ],
            "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
            "max_tokens": 5,
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}},
            "service_tier": "flex",
        }
    )
    written = RESPONSES.write_request(chat, Target(model="up"))
    assert written.dropped == ()
    back = RESPONSES.read_request(written.body)
    assert back.messages == chat.messages
    assert (back.max_tokens, back.response_format) == (5, chat.response_format)
    assert [(tool.name, tool.parameters) for tool in back.tools] == [("f", {"type": "object"})]
    assert written.body["service_tier"] == "flex"


# --- reading streams, and failures ------------------------------------------------------------------------------


def test_a_documented_stream_with_parts_we_do_not_write():
    """Several summary parts, text without deltas, an item of a hosted tool, an event type from the future."""
    head = {"id": "resp_1", "model": "gpt"}
    summary = [{"type": "summary_text", "text": "One."}, {"type": "summary_text", "text": "Two."}]
    text = {"type": "output_text", "text": "Hi", "annotations": []}
    web = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "content": [text]}
    reasoning = {"type": "reasoning", "id": "rs_1", "summary": summary, "encrypted_content": "opaque"}
    rows = [
        {"type": "response.created", "response": head},
        {"type": "response.queued"},
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "summary": []}},
        {"type": "response.reasoning_summary_part.added", "output_index": 0},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "One."},
        {"type": "response.reasoning_summary_part.added", "output_index": 0},
        {"type": "response.reasoning_summary_text.delta", "output_index": 0, "delta": "Two."},
        {"type": "response.output_item.done", "output_index": 0, "item": reasoning},
        {"type": "response.output_item.added", "output_index": 1, "item": web},
        {"type": "response.web_search_call.searching", "output_index": 1},
        {"type": "response.output_item.done", "output_index": 1, "item": web},
        {"type": "response.output_item.added", "output_index": 2, "item": {**message, "content": []}},
        {"type": "response.content_part.added", "output_index": 2, "part": {**text, "text": ""}},
        {"type": "response.content_part.done", "output_index": 2, "part": text},
        {"type": "response.output_item.done", "output_index": 2, "item": message},
        {"type": "response.completed", "response": {**head, "status": "completed", "usage": {"input_tokens": -1}}},
    ]
    got = collect(RESPONSES.reader(), [(row["type"], row) for row in rows])
    assert got.message.content[0] == ThinkingPart(text="One.\n\nTwo.")
    assert got.message.content[1] == RawPart(provider="openai", data=web)
    assert (got.message.text, got.finish, got.usage) == ("Hi", Finish.STOP, None)
    whole = RESPONSES.read_answer({**head, "status": "completed", "output": [reasoning, web, message]})
    assert whole.message == got.message


CREATED = {"type": "response.created", "response": {"id": "r", "model": "m"}}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": ""}
ADDED = {"type": "response.output_item.added", "output_index": 0, "item": CALL}


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        ([], FailureKind.BAD_ANSWER),
        (["{broken"], FailureKind.BAD_ANSWER),
        (["[1]"], FailureKind.BAD_ANSWER),
        ([CREATED], FailureKind.BAD_ANSWER),
        ([ADDED], FailureKind.BAD_ANSWER),
        ([CREATED, CREATED], FailureKind.BAD_ANSWER),
        ([CREATED, ADDED, ADDED], FailureKind.BAD_ANSWER),
        ([CREATED, {"type": "response.output_text.delta", "output_index": 0, "delta": "x"}], FailureKind.BAD_ANSWER),
        (
            [CREATED, ADDED, {"type": "response.completed", "response": {"status": "completed"}}],
            FailureKind.BAD_ANSWER,
        ),
        ([CREATED, {"type": "response.completed", "response": {"status": "tired"}}], FailureKind.BAD_ANSWER),
        ([CREATED, {"type": "response.completed", "response": 7}], FailureKind.BAD_ANSWER),
        ([{"type": "error", "code": "rate_limit_exceeded", "message": "slow"}], FailureKind.RATE_LIMIT),
        (
            [CREATED, {"type": "response.failed", "response": {"error": {"code": "server_error", "message": "x"}}}],
            FailureKind.SERVER_ERROR,
        ),
        ([{"error": {"code": "context_length_exceeded", "message": "x"}}], FailureKind.CONTEXT_OVERFLOW),
    ],
    ids=str,
)
def test_broken_streams_are_failures(rows, kind):
    with pytest.raises(StreamFault) as fault:
        collect(RESPONSES.reader(), [(None, row) for row in rows])
    assert fault.value.failure.kind == kind


def test_a_stream_that_breaks_tells_so_in_both_ways_of_the_api():
    writer = RESPONSES.writer(ask(), model="slot")
    assert writer.write(Start(id="x", model="m")) == b""
    writer.write(BlockStart(index=0, kind="text"))
    got = frames(writer.fail(Failure(kind=FailureKind.TIMEOUT, message="too slow")))
    for _, data in got:
        EVENT.validate_python(data)
    assert [name for name, _ in got] == ["error", "response.failed"]
    assert (got[0][1]["code"], got[0][1]["message"]) == ("timeout", "too slow")
    assert got[1][1]["response"]["status"] == "failed"
    early = RESPONSES.writer(ask(), model="slot").fail(Failure(kind=FailureKind.TIMEOUT, message="x"))
    assert [name for name, _ in frames(early)] == ["error"]


def test_failures_have_openais_form():
    failure = RESPONSES.read_failure(429, {"retry-after": "3"}, b'{"error": {"message": "slow", "type": "requests"}}')
    assert (failure.kind, failure.retry_after_s) == (FailureKind.RATE_LIMIT, 3)
    status, body = RESPONSES.write_failure(failure, request_id="r")
    assert (status, body["error"]["message"]) == (429, "slow")
