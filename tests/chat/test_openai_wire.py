import copy

import pytest
from hypothesis import given

from firstchair.chat.messages import ImagePart, Message, RawPart, TextPart, ThinkingPart, ToolCall, text_message
from firstchair.chat.openai_wire import (
    message_from_openai_response,
    message_to_openai_response,
    messages_from_openai,
    messages_to_openai,
    tools_from_openai,
    tools_to_openai,
)
from firstchair.core.errors import DataError
from firstchair.testing.wire_strategies import openai_conversations


def call(call_id="c1", arguments="{}", name="Read"):
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@given(openai_conversations())
def test_every_openai_conversation_comes_back_as_it_was(rows):
    before = copy.deepcopy(rows)
    messages = messages_from_openai(rows)
    assert messages_to_openai(messages) == before
    assert rows == before
    assert messages_from_openai(messages_to_openai(messages)) == messages


def test_null_empty_absent_and_listed_content_stay_apart():
    for content in (None, "", [], [{"type": "text", "text": ""}], [{"type": "text", "text": "x"}], "x"):
        for calls in ({}, {"tool_calls": [call()]}):
            row = {"role": "assistant", "content": content, **calls}
            assert messages_to_openai(messages_from_openai([row])) == [row]
    row = {"role": "assistant", "tool_calls": [call()]}
    assert messages_to_openai(messages_from_openai([row])) == [row]
    assert (
        messages_to_openai((Message(role="assistant", tool_calls=(ToolCall(id="c", name="f"),)),))[0]["content"]
        is None
    )


def test_parallel_calls_keep_their_order_and_arguments_their_bytes():
    rows = [
        {"role": "assistant", "content": None, "tool_calls": [call("b", '{"z":1,  "a":2}'), call("a", "not json")]}
    ]
    (message,) = messages_from_openai(rows)
    assert [c.id for c in message.tool_calls] == ["b", "a"]
    assert message.tool_calls[0].arguments == '{"z":1,  "a":2}'
    assert message.tool_calls[1].parsed() is None
    assert messages_to_openai([message]) == rows


@pytest.mark.parametrize(
    "content", ["gone", "", [{"type": "text", "text": "gone"}], [{"type": "text", "text": ""}], []]
)
def test_an_error_is_told_by_its_prefix_and_read_back(content):
    parts = tuple(TextPart(text=part["text"]) for part in content) if isinstance(content, list) else ()
    if isinstance(content, str) and content:
        parts = (TextPart(text=content),)
    failed = Message(role="tool", content=parts, tool_call_id="c1", is_error=True)
    rows = messages_to_openai([failed])
    assert "[tool_error] " in str(rows[0]["content"])
    (back,) = messages_from_openai(rows, strict=False)
    assert (back.is_error, back.text) == (True, failed.text)


def test_an_error_before_an_image_gets_a_part_of_its_own():
    failed = Message(role="tool", content=(ImagePart(url="https://x/y.png"),), tool_call_id="c1", is_error=True)
    rows = messages_to_openai([failed])
    assert rows[0]["content"][0] == {"type": "text", "text": "[tool_error] "}
    assert messages_from_openai(rows, strict=False)[0].content == failed.content


def test_successful_text_that_looks_like_an_error_is_escaped():
    row = {"role": "tool", "tool_call_id": "c1", "content": "\\[tool_error] quoted"}
    (message,) = messages_from_openai([row], strict=False)
    assert (message.text, message.is_error) == ("[tool_error] quoted", False)
    assert messages_to_openai([message]) == [row]


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{"role": "user"}, {"role": "king", "content": "x"}], "messages[1].role"),
        ([{"content": "x"}], "messages[0].role"),
        (["x"], "messages[0]"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"text": "x"}]}], "messages[0].content[0].type"),
        ([{"role": "user", "content": "x", "name": 3}], "messages[0].name"),
        ([{"role": "user", "content": "x", "tool_call_id": "c"}], "messages[0].tool_call_id"),
        ([{"role": "user", "content": "x", "tool_calls": [call()]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": "x"}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{**call(), "id": None}]}], "messages[0].tool_calls[0].id"),
        ([{"role": "assistant", "tool_calls": [call(name=3)]}], "messages[0].tool_calls[0].function.name"),
        ([{"role": "assistant", "tool_calls": [call(arguments=3)]}], "messages[0].tool_calls[0].function.arguments"),
        ([{"role": "assistant", "tool_calls": [call(), call()]}], "messages[0].tool_calls"),
        ([{"role": "assistant", "function_call": {"name": "f"}}], "messages[0].function_call"),
        ([{"role": "assistant", "content": "", "reasoning_content": 3}], "messages[0].reasoning_content"),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
        ([{"role": "tool", "content": "x", "tool_call_id": "c"}], "messages[0].tool_call_id"),
        (
            [{"role": "assistant", "tool_calls": [call()]}, {"role": "tool", "content": "x", "tool_call_id": "c2"}],
            "messages[1].tool_call_id",
        ),
        (
            [{"role": "assistant", "tool_calls": [call()]}]
            + [{"role": "tool", "content": "x", "tool_call_id": "c1"}] * 2,
            "messages[2].tool_call_id",
        ),
        ({"role": "user"}, "messages"),
    ],
)
def test_bad_messages_are_refused_with_their_field(rows, field):
    with pytest.raises(DataError) as caught:
        messages_from_openai(rows)
    assert caught.value.field == field


def test_importers_may_take_orphan_results():
    rows = [{"role": "tool", "content": "x", "tool_call_id": "c"}]
    assert messages_to_openai(messages_from_openai(rows, strict=False)) == rows


def test_arguments_given_as_an_object_are_read_and_written_back_so():
    row = {"role": "assistant", "content": None, "tool_calls": [call(arguments={"b": 1, "a": [True]})]}
    (message,) = messages_from_openai([row])
    assert message.tool_calls[0].arguments == '{"b": 1, "a": [true]}'
    assert messages_to_openai([message]) == [row]


def test_what_only_anthropic_has_is_listed_or_refused_never_lost():
    message = Message(
        role="assistant",
        content=(
            ThinkingPart(text="hm", signature="sig"),
            TextPart(text="a", extra={"anthropic": {"cache_control": {"type": "ephemeral"}}}),
            RawPart(provider="anthropic", data={"type": "redacted_thinking", "data": "x"}),
        ),
    )
    dropped: list[str] = []
    rows = messages_to_openai([message], dropped=dropped)
    assert rows == [{"role": "assistant", "content": "a", "reasoning_content": "hm"}]
    assert [entry.partition(": ")[0] for entry in dropped] == [
        "messages[0].content[0].signature",
        "messages[0].content[2]",
        "messages[0].content[0].cache_control",
    ]
    with pytest.raises(DataError, match="signature"):
        messages_to_openai([message])


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "both"])
def test_reasoning_goes_under_the_name_that_the_server_reads_and_comes_back(key):
    message = Message(role="assistant", content=(ThinkingPart(text="hm"), TextPart(text="a")))
    (row,) = messages_to_openai([message], reasoning_key=key)
    names = {"reasoning_content", "reasoning"} if key == "both" else {key}
    assert {name for name in row if name.startswith("reasoning")} == names
    (back,) = messages_from_openai([row])
    assert back.thinking == "hm"
    assert messages_to_openai([back]) == [row]


def test_images_in_tool_results_follow_the_slots_rule():
    image = ImagePart(url="data:image/png;base64,AAAA")
    result = Message(role="tool", content=(TextPart(text="see"), image), tool_call_id="c1")
    passed = messages_to_openai([result])
    assert passed[0]["content"][1]["image_url"]["url"] == image.url
    moved = messages_to_openai([result, text_message("user", "go on")], tool_images="user")
    assert [row["role"] for row in moved] == ["tool", "user", "user"]
    assert all(part["type"] == "text" for part in moved[0]["content"])
    assert moved[1]["content"][1]["image_url"]["url"] == image.url
    assert moved[0]["content"][1]["text"] == moved[1]["content"][0]["text"]
    with pytest.raises(DataError, match=r"messages\[0\].content\[1\]"):
        messages_to_openai([result], tool_images="refuse")


@pytest.mark.parametrize(
    "row",
    [
        {"type": "function", "function": {"name": "f", "description": "", "parameters": {"b": 1, "a": 2}}},
        {"type": "function", "function": {"name": "f"}},
        {"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": True}},
        {"type": "function", "function": {"name": "f", "parameters": {}}, "cache_control": {"type": "ephemeral"}},
        {"type": "custom", "custom": {"name": "grammar", "format": {"type": "text"}}},
        {"type": "web_search", "x": 1},
    ],
)
def test_tools_come_back_as_they_were(row):
    tools = tools_from_openai([row])
    (back,) = tools_to_openai(tools)
    assert back == row
    if row["type"] == "function":
        assert list(back["function"]) == list(row["function"])


def test_a_bad_tool_is_refused_with_its_field():
    for row, field in [
        ({"type": "function", "function": {"parameters": {}}}, "tools[0].function.name"),
        ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools[0].function.parameters"),
        ({"name": "f"}, "tools[0].type"),
    ]:
        with pytest.raises(DataError) as caught:
            tools_from_openai([row])
        assert caught.value.field == field


def test_a_response_becomes_a_message_and_back():
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    message = {"role": "assistant", "content": None, "refusal": None, "annotations": [], "tool_calls": [call()]}
    response = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}], "usage": usage}
    read = message_from_openai_response(response)
    assert read.extra == {}
    assert read.tool_calls[0].name == "Read"
    made = message_to_openai_response(
        read, model="m", response_id="r", created=1, finish_reason="tool_calls", usage=usage
    )
    assert made["choices"][0]["message"] == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [call()],
    }
    from openai.types.chat import ChatCompletion

    assert ChatCompletion.model_validate(made).choices[0].message.tool_calls[0].id == "c1"
    for broken, field in [({}, "choices"), ({"choices": []}, "choices"), ({"choices": [{}]}, "choices[0].message")]:
        with pytest.raises(DataError) as caught:
            message_from_openai_response(broken)
        assert caught.value.field == field
