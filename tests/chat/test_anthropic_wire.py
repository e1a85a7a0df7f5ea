import copy

import pytest
from hypothesis import given

from firstchair.chat.anthropic_blocks import MALFORMED_KEY
from firstchair.chat.anthropic_wire import (
    message_from_anthropic_response,
    message_to_anthropic_response,
    messages_from_anthropic,
    messages_to_anthropic,
    tools_from_anthropic,
    tools_to_anthropic,
)
from firstchair.chat.messages import (
    CallMark,
    Message,
    TextPart,
    ThinkingPart,
    Tool,
    ToolCall,
    assistant_message,
    text_message,
    tool_result,
)
from firstchair.chat.openai_wire import messages_from_openai, messages_to_openai
from firstchair.core.errors import DataError
from firstchair.testing.wire_strategies import anthropic_conversations, common_conversations

CALL = ToolCall.of("t1", "Read", {"path": "a"})


def use(call_id="t1", value=None):
    return {"type": "tool_use", "id": call_id, "name": "Read", "input": value or {}}


def result(call_id="t1", content="x", **more):
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **more}


@given(anthropic_conversations())
def test_every_anthropic_conversation_comes_back_as_it_was(conversation):
    system, rows = conversation
    before = copy.deepcopy(rows)
    messages = messages_from_anthropic(rows, system)
    prompt = messages_to_anthropic(messages)
    assert prompt.messages == before
    assert prompt.system == system
    assert rows == before
    assert messages_from_anthropic(prompt.messages, prompt.system) == messages


@given(common_conversations())
def test_the_common_subset_survives_the_other_wire_and_back(rows):
    canonical = messages_from_openai(rows)
    prompt = messages_to_anthropic(canonical)
    assert messages_to_openai(messages_from_anthropic(prompt.messages, prompt.system)) == rows
    assert messages_to_anthropic(messages_from_openai(messages_to_openai(canonical))) == prompt


@given(anthropic_conversations())
def test_whatever_does_not_survive_the_openai_wire_is_listed(conversation):
    system, rows = conversation
    canonical = messages_from_anthropic(rows, system)
    dropped: list[str] = []
    back = messages_from_openai(messages_to_openai(canonical, dropped=dropped))
    assert [(m.role, m.text, m.is_error, [(c.id, c.arguments) for c in m.tool_calls]) for m in back] == [
        (m.role, m.text, m.is_error, [(c.id, c.arguments) for c in m.tool_calls]) for m in canonical
    ]
    for index, message in enumerate(canonical):
        for part in message.content:
            if isinstance(part, ThinkingPart) and part.signature:
                assert any(entry.startswith(f"messages[{index}].content[") for entry in dropped)


def test_results_come_before_the_users_text_in_both_directions():
    rows = [
        {"role": "assistant", "content": [use()]},
        {"role": "user", "content": [{"type": "text", "text": "now"}, result()]},
    ]
    messages = messages_from_anthropic(rows)
    assert [m.role for m in messages] == ["assistant", "tool", "user"]
    assert messages_to_openai(messages)[1:] == [
        {"role": "tool", "tool_call_id": "t1", "content": "x"},
        {"role": "user", "content": "now"},
    ]
    assert [block["type"] for block in messages_to_anthropic(messages).messages[1]["content"]] == [
        "tool_result",
        "text",
    ]


def test_a_missing_result_is_refused_by_id_or_declared():
    messages = (assistant_message(calls=(CALL,)), text_message("user", "well?"))
    with pytest.raises(DataError, match="'t1' has no result") as caught:
        messages_to_anthropic(messages)
    assert caught.value.field == "messages[0].tool_calls[0].id"
    inserted = messages_to_anthropic(messages, missing_result="insert").messages[1]["content"]
    assert inserted[0]["is_error"] is True
    assert inserted[1] == {"type": "text", "text": "well?"}
    assert messages_to_anthropic(messages[:1]).messages[0]["content"][0]["type"] == "tool_use"


def test_text_between_calls_keeps_its_place():
    content = [{"type": "text", "text": "a"}, use("t1"), {"type": "text", "text": "b"}, use("t2")]
    (message,) = messages_from_anthropic([{"role": "assistant", "content": content}])
    assert [type(part).__name__ for part in message.content] == ["TextPart", "CallMark", "TextPart", "CallMark"]
    assert messages_to_anthropic([message]).messages[0]["content"] == content
    dropped: list[str] = []
    messages_to_openai([message], dropped=dropped)
    assert dropped
    assert dropped[0].startswith("messages[0].content[1]")
    bad = Message(role="assistant", content=(CallMark(index=1),), tool_calls=(CALL,))
    with pytest.raises(DataError, match=r"messages\[0\].content"):
        messages_to_anthropic([bad])


def test_signed_and_redacted_reasoning_is_kept_verbatim_and_unsigned_is_not_sent():
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "opaque"},
        {"type": "text", "text": "a"},
    ]
    (message,) = messages_from_anthropic([{"role": "assistant", "content": content}])
    assert message.thinking == "hm"
    assert messages_to_anthropic([message]).messages[0]["content"] == content
    unsigned = assistant_message("a", thinking="hm")
    with pytest.raises(DataError, match="without a signature"):
        messages_to_anthropic([unsigned])
    dropped: list[str] = []
    assert messages_to_anthropic([unsigned], dropped=dropped).messages[0]["content"] == [
        {"type": "text", "text": "a"}
    ]
    assert dropped[0].startswith("messages[0].content[0]: reasoning")


def test_malformed_arguments_are_refused_or_carried_by_the_declared_key():
    broken = ToolCall(id="t1", name="Read", arguments='{"path": ')
    with pytest.raises(DataError) as caught:
        messages_to_anthropic([assistant_message(calls=(broken,))])
    assert caught.value.field == "messages[0].tool_calls[0].arguments"
    prompt = messages_to_anthropic([assistant_message(calls=(broken,))], malformed="carry")
    assert prompt.messages[0]["content"][0]["input"] == {MALFORMED_KEY: broken.arguments}
    assert messages_from_anthropic(prompt.messages)[0].tool_calls == (broken,)
    empty = ToolCall(id="t1", name="Read", arguments=" ")
    assert messages_to_anthropic([assistant_message(calls=(empty,))]).messages[0]["content"][0]["input"] == {}
    reserved = ToolCall.of("t1", "Read", {MALFORMED_KEY: "x"})
    with pytest.raises(DataError, match="reserved"):
        messages_to_anthropic([assistant_message(calls=(reserved,))], malformed="carry")


def test_several_leading_system_messages_merge_in_order_and_later_ones_keep_their_place():
    messages = (
        text_message("system", "one"),
        text_message("system", "two"),
        text_message("user", "hi"),
        text_message("system", "three"),
    )
    prompt = messages_to_anthropic(messages)
    assert prompt.system == [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert prompt.messages[1] == {"role": "system", "content": "three"}
    marked = messages_to_anthropic(messages, mid_system="user").messages[1]
    assert marked == {"role": "user", "content": "<system-message>\nthree\n</system-message>"}
    with pytest.raises(DataError, match=r"messages\[3\]"):
        messages_to_anthropic(messages, mid_system="refuse")


def test_a_cache_mark_inside_an_input_or_a_schema_is_data():
    value = {"cache_control": {"type": "ephemeral"}}
    rows = [{"role": "assistant", "content": [use(value=value)]}]
    messages = messages_from_anthropic(rows)
    assert messages_to_openai(messages)[0]["tool_calls"][0]["function"]["arguments"] == (
        '{"cache_control": {"type": "ephemeral"}}'
    )
    tools = tools_from_anthropic([{"name": "f", "input_schema": {"properties": value}, **value}])
    dropped: list[str] = []
    from firstchair.chat.openai_wire import tools_to_openai

    (row,) = tools_to_openai(tools, dropped=dropped)
    assert row["function"]["parameters"] == {"properties": value}
    assert [entry.partition(": ")[0] for entry in dropped] == ["tools[0].cache_control"]


def test_a_cache_mark_that_came_over_the_openai_wire_is_carried():
    part = {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}
    prompt = messages_to_anthropic(messages_from_openai([{"role": "user", "content": [part]}]))
    assert prompt.messages == [{"role": "user", "content": [part]}]


def test_what_only_openai_has_is_listed_or_refused():
    rows = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio", "input_audio": {}}]},
        {"role": "assistant", "content": "no", "refusal": "I will not", "name": "bot"},
    ]
    messages = messages_from_openai(rows)
    dropped: list[str] = []
    messages_to_anthropic(messages, dropped=dropped)
    assert [entry.partition(": ")[0] for entry in dropped] == [
        "messages[0].content[1]",
        "messages[1].name",
        "messages[1].refusal",
    ]
    with pytest.raises(DataError, match="input_audio"):
        messages_to_anthropic(messages)


def test_base64_and_url_images_become_data_and_plain_urls():
    rows = [
        {
            "role": "user",
            "content": [
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}},
                {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
            ],
        }
    ]
    (row,) = messages_to_openai(messages_from_anthropic(rows))
    assert [part["image_url"]["url"] for part in row["content"]] == ["data:image/png;base64,AAAA", "https://x/y.png"]
    bad = messages_from_openai(
        [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x"}}]}]
    )
    with pytest.raises(DataError, match="ftp"):
        messages_to_anthropic(bad)


@pytest.mark.parametrize(
    ("rows", "field"),
    [
        ([{"role": "tool", "content": "x"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": ["x"]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [use()]}], "messages[0].content[0]"),
        ([{"role": "assistant", "content": [result()]}], "messages[0].content[0]"),
        ([{"role": "assistant", "content": [{**use(), "input": "{}"}]}], "messages[0].content[0].input"),
        (
            [{"role": "assistant", "content": [{**use(), "input": {"a": float("nan")}}]}],
            "messages[0].content[0].input",
        ),
        ([{"role": "assistant", "content": [{**use(), "id": 3}]}], "messages[0].content[0].id"),
        ([{"role": "user", "content": [result()]}], "messages[0].content.tool_use_id"),
        (
            [{"role": "assistant", "content": [use()]}, {"role": "user", "content": [result("t2")]}],
            "messages[1].content.tool_use_id",
        ),
        ([{"role": "assistant", "content": [use(), use()]}], "messages[0].content"),
        (
            [{"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": 3}]}],
            "messages[0].content[0].signature",
        ),
        ([{"role": "user", "content": [{**result(), "is_error": "yes"}]}], "messages[0].content[0].is_error"),
        ([{"role": "user", "content": [{**result(), "tool_use_id": None}]}], "messages[0].content[0].tool_use_id"),
    ],
)
def test_bad_messages_are_refused_with_their_field(rows, field):
    with pytest.raises(DataError) as caught:
        messages_from_anthropic(rows)
    assert caught.value.field == field


def test_results_that_answer_nothing_are_refused_on_the_way_out():
    for messages, field in [
        ((tool_result(CALL, "x"),), "messages[0].tool_call_id"),
        (
            (assistant_message(calls=(CALL,)), tool_result(CALL, "x"), tool_result(CALL, "x")),
            "messages[2].tool_call_id",
        ),
    ]:
        with pytest.raises(DataError) as caught:
            messages_to_anthropic(messages)
        assert caught.value.field == field


@pytest.mark.parametrize(
    "row",
    [
        {"name": "f", "description": "d", "input_schema": {"type": "object", "b": 1, "a": 2}},
        {"name": "f", "input_schema": {}, "type": "custom", "strict": True, "cache_control": {"type": "ephemeral"}},
        {"type": "web_search_20250305", "name": "web_search", "max_uses": 3},
    ],
)
def test_tools_come_back_as_they_were(row):
    assert tools_to_anthropic(tools_from_anthropic([row])) == [row]


def test_a_tool_without_parameters_gets_the_schema_the_api_demands():
    assert tools_to_anthropic([Tool(name="f")]) == [
        {"name": "f", "input_schema": {"type": "object", "properties": {}}}
    ]


def test_a_response_becomes_a_message_and_back():
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "a", "citations": None},
        {**use(value={"path": "a"}), "caller": None},
    ]
    usage = {"input_tokens": 1, "output_tokens": 2}
    message = message_from_anthropic_response({"content": content, "usage": usage})
    assert (message.thinking, message.text, message.tool_calls) == ("hm", "a", (CALL,))
    made = message_to_anthropic_response(message, model="m", response_id="r", stop_reason="tool_use", usage=usage)
    assert [block["type"] for block in made["content"]] == ["thinking", "text", "tool_use"]
    from anthropic.types import Message as Theirs

    assert Theirs.model_validate(made).content[2].input == {"path": "a"}
    unsigned = message_to_anthropic_response(
        assistant_message("a", thinking="hm"), model="m", response_id="r", stop_reason="end_turn", usage=usage
    )
    assert unsigned["content"][0] == {"type": "thinking", "thinking": "hm", "signature": ""}
    with pytest.raises(DataError) as caught:
        message_from_anthropic_response({"content": [{**use(), "input": 3}]})
    assert caught.value.field == "content[0].input"


def test_plain_text_is_sent_as_text():
    messages = (
        text_message("system", "s"),
        text_message("user", "hi"),
        Message(role="assistant", content=(TextPart(text="ok"),)),
    )
    prompt = messages_to_anthropic(messages)
    assert (prompt.system, prompt.messages) == (
        "s",
        [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ok"}],
    )
