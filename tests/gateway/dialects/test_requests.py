"""Requests of both wires: what is read, what is refused, what crosses, and what is listed as lost."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.chat.messages import Message
from firstchair.core.errors import BadRequest
from firstchair.gateway.dialects.anthropic import AnthropicMessages
from firstchair.gateway.dialects.base import ChatRequest, Target, ToolChoice, Written
from firstchair.gateway.dialects.openai_chat import OpenAIChat
from firstchair.testing.wire_strategies import (
    SOME_TEXT,
    TEXT,
    UNKNOWN,
    anthropic_conversations,
    common_conversations,
    openai_conversations,
)

OPEN, A = OpenAIChat(), AnthropicMessages()
TARGET = Target(model="theirs")
USER = [{"role": "user", "content": "hi"}]
O_TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
A_TOOLS = [{"name": "f", "input_schema": {"type": "object", "properties": {}}}]
NAMED = {"type": "function", "function": {"name": "f"}}


def openai(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": USER, **fields}


def anthropic(**fields: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": USER, **fields}


def to_anthropic(target: Target = TARGET, **fields: Any) -> dict[str, Any]:
    return A.write_request(OPEN.read_request(openai(**fields)), target).body


def to_openai(target: Target = TARGET, **fields: Any) -> dict[str, Any]:
    return OPEN.write_request(A.read_request(anthropic(**fields)), target).body


# --- reading ----------------------------------------------------------------------------------------------------

WRONG = [
    ("model", 3),
    ("model", ""),
    ("model", None),
    ("messages", []),
    ("messages", "x"),
    ("messages", [3]),
    ("messages", [{"role": ["user"], "content": "x"}]),
    ("tools", {}),
    ("tools", [3]),
    ("tool_choice", 3),
    ("temperature", "hot"),
    ("temperature", True),
    ("temperature", 10**400),
    ("temperature", -1),
    ("top_p", 2),
    ("stream", "yes"),
    ("max_tokens", 0),
    ("max_tokens", -5),
    ("max_tokens", 1.5),
    ("max_tokens", True),
    ("max_tokens", 10**30),
]


@pytest.mark.parametrize(("field", "value"), WRONG, ids=str)
@pytest.mark.parametrize(("dialect", "body"), [(OPEN, openai()), (A, anthropic())], ids=["openai", "anthropic"])
def test_a_field_of_a_wrong_type_is_refused_by_name(dialect, body, field, value):
    with pytest.raises(BadRequest) as caught:
        dialect.read_request({**body, field: value})
    assert (caught.value.param or "").startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_completion_tokens", "9"),
        ("stop", 3),
        ("stop", [3]),
        ("stream_options", []),
        ("parallel_tool_calls", 0),
        ("reasoning_effort", 3),
        ("response_format", "json"),
        ("response_format", {"type": "xml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "x", "schema": 3}}),
        ("user", {}),
        ("tool_choice", {"type": "function"}),
        ("tool_choice", "sometimes"),
    ],
    ids=str,
)
def test_a_wrong_field_of_chat_completions_is_refused_by_name(field, value):
    with pytest.raises(BadRequest) as caught:
        OPEN.read_request(openai(**{field: value}))
    assert (caught.value.param or "").startswith(field)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("system", 3),
        ("system", [{"type": "image"}]),
        ("stop_sequences", "x"),
        ("thinking", True),
        ("thinking", {}),
        ("metadata", "x"),
        ("metadata", {"user_id": 3}),
        ("tool_choice", "auto"),
        ("tool_choice", {"type": "maybe"}),
        ("tool_choice", {"type": "tool"}),
        ("tool_choice", {"type": "auto", "disable_parallel_tool_use": "no"}),
        ("output_config", 3),
        ("output_config", {"format": {"type": "json_schema"}}),
        ("temperature", 1.5),
    ],
    ids=str,
)
def test_a_wrong_field_of_messages_is_refused_by_name(field, value):
    with pytest.raises(BadRequest) as caught:
        A.read_request(anthropic(**{field: value}))
    assert (caught.value.param or "").startswith(field)


def test_both_names_of_the_token_limit_must_agree():
    assert OPEN.read_request(openai(max_tokens=5, max_completion_tokens=5)).max_tokens == 5
    assert OPEN.read_request(openai(max_completion_tokens=6)).max_tokens == 6
    with pytest.raises(BadRequest, match="send one"):
        OPEN.read_request(openai(max_tokens=5, max_completion_tokens=6))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT | st.sampled_from(
        ["user", "assistant", "tool", "system", "text", "function", "tool_use", "tool_result", "image", "c1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["role", "content", "type", "text", "function", "name", "id", "input", "tool_calls", "source",
                         "tool_call_id", "tool_use_id", "arguments", "url", "image_url", "thinking", "budget_tokens"])
        | TEXT, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
FIELDS = ["model", "messages", "system", "tools", "tool_choice", "parallel_tool_calls", "max_tokens", "stop",
          "stream", "max_completion_tokens", "temperature", "top_p", "stream_options", "reasoning_effort",
          "response_format", "user", "metadata", "thinking", "stop_sequences", "output_config", "n", "x"]  # fmt: skip
BODIES = st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=6).flatmap(
    lambda body: st.sampled_from([body, {**openai(), **body}, {**anthropic(), **body}])
)
ROWS = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": JSON},
                             optional={"tool_calls": JSON, "tool_call_id": JSON})  # fmt: skip


@given(BODIES | st.lists(ROWS, max_size=3).map(lambda rows: openai(messages=rows)))
@settings(max_examples=150, deadline=None)
def test_any_json_object_is_a_request_or_a_bad_request(body):
    for dialect in (OPEN, A):
        try:
            request = dialect.read_request(body)
        except BadRequest:
            continue
        assert isinstance(request, ChatRequest)
        for target in (OPEN, A):
            with contextlib.suppress(BadRequest):
                assert isinstance(target.write_request(request, TARGET), Written)


# --- the same dialect -------------------------------------------------------------------------------------------


@given(openai_conversations().filter(bool), UNKNOWN, st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_chat_completions_request_comes_out_as_it_went_in(rows, extra, stream):
    body = openai(messages=rows, tools=O_TOOLS, tool_choice=NAMED, max_tokens=7, temperature=0.5, user="u", **extra)
    if stream:
        body |= {"stream": True, "stream_options": {"include_obfuscation": False, "include_usage": True}}
    out = OPEN.write_request(OPEN.read_request(body), Target(model="theirs", tool_images="inline"))
    assert out.body == {**body, "model": "theirs"}
    assert out.dropped == ()


@given(anthropic_conversations().filter(lambda pair: bool(pair[1])), UNKNOWN)
@settings(max_examples=40, deadline=None)
def test_a_messages_request_comes_out_as_it_went_in(conversation, extra):
    system, rows = conversation
    body = anthropic(messages=signed(rows), tools=A_TOOLS, tool_choice={"type": "auto"}, top_k=5, **extra)
    body |= {"metadata": {"user_id": "u", "x": 1}, "cache_control": {"type": "ephemeral"}}
    if system:
        body["system"] = system
    out = A.write_request(A.read_request(body), TARGET)
    assert out.body == {**body, "model": "theirs"}
    assert out.dropped == ()


def signed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """An empty signature is nobody's proof; it is not sent back."""
    for row in rows:
        for block in row["content"] if isinstance(row["content"], list) else ():
            if block["type"] == "thinking":
                block["signature"] = block["signature"] or "s"
    return rows


# --- across -----------------------------------------------------------------------------------------------------


@st.composite
def common_requests(draw: st.DrawFn) -> dict[str, Any]:
    """Chat Completions requests of the subset that both wires carry whole."""
    rows = draw(common_conversations().filter(lambda rows: any(row["role"] != "system" for row in rows)))
    body: dict[str, Any] = {"model": "m", "messages": rows, "max_tokens": draw(st.integers(1, 9000))}
    fields: dict[str, st.SearchStrategy[Any]] = {
        "temperature": st.sampled_from([0, 0.5, 1]),
        "top_p": st.sampled_from([0.1, 1]),
        "stop": st.lists(SOME_TEXT, min_size=1, max_size=3),
        "stream": st.just(True),
        "user": SOME_TEXT,
        "response_format": st.just(
            {"type": "json_schema", "json_schema": {"name": "response", "schema": {"type": "object"}, "strict": True}}
        ),
    }
    for key, values in fields.items():
        if draw(st.booleans()):
            body[key] = draw(values)
    if draw(st.booleans()):
        body["tools"] = O_TOOLS
        choice = draw(st.sampled_from([None, "auto", "required", NAMED]))
        if choice is not None:
            body["tool_choice"] = choice
            if draw(st.booleans()):
                body["parallel_tool_calls"] = draw(st.booleans())
    if body.get("stream"):
        body["stream_options"] = {"include_usage": True}
    return body


@given(common_requests())
@settings(max_examples=60, deadline=None)
def test_what_both_wires_carry_comes_back_unchanged(body):
    there = A.write_request(OPEN.read_request(body), TARGET)
    assert there.dropped == ()
    back = OPEN.write_request(A.read_request(there.body), Target(model="m"))
    assert back.dropped == ()
    assert back.body == body
    again = A.write_request(OPEN.read_request(back.body), TARGET)
    assert again.body == there.body


@given(anthropic_conversations().filter(lambda pair: bool(pair[1])))
@settings(max_examples=40, deadline=None)
def test_what_one_wire_cannot_carry_is_listed_or_refused(conversation):
    system, rows = conversation
    body = anthropic(messages=signed(rows), **({"system": system} if system else {}))
    first = A.read_request(body)
    out = OPEN.write_request(first, Target(model="m", tool_images="inline"))
    second = OPEN.read_request(out.body)
    if not out.dropped and not any(message.role == "system" for message in second.messages[1:]):
        assert texts(first.messages) == texts(second.messages)


def texts(messages: tuple[Message, ...]) -> list[tuple[str, str, int]]:
    return [(m.role, m.text, len(m.tool_calls)) for m in messages]


# 1. tool results ------------------------------------------------------------------------------------------------

USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": "é"}}
RESULT = {"type": "tool_result", "tool_use_id": "t1", "content": "ok"}


def asked(*blocks: dict[str, Any]) -> list[dict[str, Any]]:
    return [*USER, {"role": "assistant", "content": [USE]}, {"role": "user", "content": list(blocks)}]


def test_results_stand_before_the_text_of_the_turn():
    rows = to_openai(messages=asked({"type": "text", "text": "now"}, RESULT))["messages"]
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "user"]
    assert rows[1]["tool_calls"][0]["function"]["arguments"] == '{"b": 1, "a": "é"}'


def test_a_call_without_its_result_is_refused_with_its_id():
    rows = [*USER, {"role": "assistant", "content": None, "tool_calls": [
        {"id": "c9", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, *USER]  # fmt: skip
    with pytest.raises(BadRequest, match="c9"):
        to_anthropic(messages=rows)


# 3. errors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", ["it broke", "", [{"type": "text", "text": "it broke"}], "[tool_error] x"])
@pytest.mark.parametrize("failed", [True, False])
def test_the_error_flag_crosses_and_comes_back(content, failed):
    result = {**RESULT, "content": content, **({"is_error": True} if failed else {})}
    body = to_openai(messages=asked(result))
    tool = body["messages"][2]
    text = tool["content"] if isinstance(tool["content"], str) else tool["content"][0]["text"]
    assert text.startswith("[tool_error] ") is failed
    back = A.write_request(OPEN.read_request(body), TARGET).body["messages"][2]["content"][0]
    assert back.get("is_error", False) is failed
    plain = content if isinstance(content, str) else "it broke"
    assert back.get("content", "") == plain or back["content"][0]["text"] == plain


# 4. images ------------------------------------------------------------------------------------------------------

PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def test_images_are_images_wherever_they_stand():
    assert to_openai(messages=[{"role": "user", "content": [PNG]}])["messages"][0]["content"] == [URL]
    shown = asked({**RESULT, "content": [{"type": "text", "text": "see"}, PNG]})
    rows = to_openai(Target(model="m", tool_images="inline"), messages=shown)["messages"]
    assert rows[2]["content"] == [{"type": "text", "text": "see"}, URL]
    rows = to_openai(messages=shown)["messages"]
    assert [row["role"] for row in rows] == ["user", "assistant", "tool", "user"]
    assert rows[3]["content"][1] == URL
    assert "AAAA" not in str(rows[2])
    with pytest.raises(BadRequest, match="refuses"):
        to_openai(Target(model="m", tool_images="refuse"), messages=shown)
    assert to_anthropic(messages=[{"role": "user", "content": [URL]}])["messages"][0]["content"] == [PNG]


# 6. cache_control -----------------------------------------------------------------------------------------------


def test_cache_marks_are_dropped_by_rule_and_listed_and_never_touched_in_data():
    mark = {"type": "ephemeral", "ttl": "1h"}
    schema = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
    body = anthropic(
        system=[{"type": "text", "text": "s", "cache_control": mark}],
        tools=[{"name": "f", "input_schema": schema, "cache_control": mark}],
        cache_control=mark,
        messages=[
            *USER,
            {"role": "assistant", "content": [{**USE, "input": {"cache_control": 1}, "cache_control": mark}]},
            {"role": "user", "content": [{**RESULT, "cache_control": mark}]},
        ],
    )
    assert A.write_request(A.read_request(body), Target(model="m")).body == body
    out = OPEN.write_request(A.read_request(body), TARGET)
    assert set(out.dropped) == {
        "messages[0].content[0].cache_control",
        "messages[2].tool_calls[0].cache_control",
        "messages[3].cache_control",
        "tools[0].cache_control",
        "cache_control",
    }
    assert "ttl" not in str(out.body)
    assert out.body["tools"][0]["function"]["parameters"] == schema
    assert out.body["messages"][2]["tool_calls"][0]["function"]["arguments"] == '{"cache_control": 1}'


# 7. system ------------------------------------------------------------------------------------------------------


def test_system_prompts_cross_in_every_form():
    assert to_openai(system="s")["messages"][0] == {"role": "system", "content": "s"}
    two = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert to_openai(system=two)["messages"][0] == {"role": "system", "content": two}
    rows = [{"role": "system", "content": "a"}, {"role": "developer", "content": "b"}, *USER]
    assert to_anthropic(messages=rows)["system"] == two


def test_a_system_message_in_the_middle_keeps_its_place_or_is_refused():
    rows = [*USER, {"role": "system", "content": "be brief"}, *USER]
    out = to_anthropic(messages=rows)
    assert "system" not in out
    assert out["messages"][1] == {"role": "user", "content": "<system-message>\nbe brief\n</system-message>"}
    assert A.write_request(A.read_request(anthropic(messages=rows)), TARGET).body["messages"] == rows
    for write in (to_anthropic, to_openai):
        with pytest.raises(BadRequest, match="refuses"):
            write(Target(model="m", mid_system="refuse"), messages=rows)


# 12. tool choice ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("openai_choice", "anthropic_choice", "canonical"),
    [
        ("auto", {"type": "auto"}, ToolChoice(kind="auto")),
        ("none", {"type": "none"}, ToolChoice(kind="none")),
        ("required", {"type": "any"}, ToolChoice(kind="required")),
        (NAMED, {"type": "tool", "name": "f"}, ToolChoice(kind="tool", name="f")),
    ],
)
@pytest.mark.parametrize("parallel", [None, True, False])
def test_tool_choice_and_parallel_calls_cross_by_a_total_table(openai_choice, anthropic_choice, canonical, parallel):
    ours = {"tools": O_TOOLS, "tool_choice": openai_choice}
    theirs = {"tools": A_TOOLS, "tool_choice": dict(anthropic_choice)}
    if parallel is not None:
        ours["parallel_tool_calls"] = parallel
        theirs["tool_choice"]["disable_parallel_tool_use"] = not parallel
    assert OPEN.read_request(openai(**ours)).tool_choice == canonical
    assert A.read_request(anthropic(**theirs)).tool_choice == canonical
    body = to_openai(**theirs)
    assert (body["tool_choice"], body.get("parallel_tool_calls")) == (openai_choice, parallel)
    expected = anthropic_choice if canonical.kind == "none" else theirs["tool_choice"]
    assert to_anthropic(**ours)["tool_choice"] == expected


def test_no_parallel_calls_alone_never_forces_a_tool():
    body = to_anthropic(tools=O_TOOLS, parallel_tool_calls=False)
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}


def test_without_tools_no_choice_is_sent():
    assert "tool_choice" not in to_anthropic(tool_choice="auto", parallel_tool_calls=True)
    body = to_openai(tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert body.keys() == {"model", "messages", "max_tokens"}


def test_a_forced_choice_with_thinking_is_refused_early():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    request = A.read_request(
        anthropic(max_tokens=2000, tools=A_TOOLS, thinking=thinking, tool_choice={"type": "any"})
    )
    with pytest.raises(BadRequest, match="thinking"):
        A.write_request(request, TARGET)


def test_a_choice_that_only_openai_has_passes_there_and_is_refused_elsewhere():
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NAMED]}}
    request = OPEN.read_request(openai(tools=O_TOOLS, tool_choice=choice))
    assert OPEN.write_request(request, TARGET).body["tool_choice"] == choice
    with pytest.raises(BadRequest, match="tool_choice"):
        A.write_request(request, TARGET)


def test_a_tool_without_description_has_no_such_key():
    assert to_openai(tools=A_TOOLS)["tools"] == O_TOOLS
    assert to_anthropic(tools=O_TOOLS)["tools"] == A_TOOLS


# 13. limits and thinking ----------------------------------------------------------------------------------------


def test_a_missing_limit_is_the_slots_and_a_given_one_is_kept():
    assert to_anthropic()["max_tokens"] == 4096
    assert to_anthropic(Target(model="m", max_tokens_default=8), max_completion_tokens=5)["max_tokens"] == 5
    assert to_openai()["max_tokens"] == 100
    field = Target(model="m", max_tokens_field="max_completion_tokens")
    assert to_openai(field)["max_completion_tokens"] == 100
    assert "max_tokens" not in OPEN.write_request(OPEN.read_request(openai()), TARGET).body


@pytest.mark.parametrize("budget", [1023, 2000, "1024", None])
def test_a_thinking_budget_that_cannot_be_is_refused(budget):
    request = A.read_request(anthropic(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": budget}))
    with pytest.raises(BadRequest, match="budget_tokens"):
        A.write_request(request, TARGET)


def test_thinking_and_effort_are_listed_where_they_have_no_counterpart():
    thinking = {"type": "enabled", "budget_tokens": 1024}
    request = A.read_request(anthropic(max_tokens=2000, thinking=thinking, top_k=3, output_config={"effort": "low"}))
    assert OPEN.write_request(request, TARGET).dropped == ("thinking", "top_k", "output_config")
    assert A.write_request(request, TARGET).body["thinking"] == thinking
    request = OPEN.read_request(
        openai(max_tokens=9, reasoning_effort="low", seed=3, frequency_penalty=0.5, store=None)
    )
    assert A.write_request(request, TARGET).dropped == ("reasoning_effort", "seed", "frequency_penalty")


def test_a_temperature_that_the_target_does_not_know_is_refused_not_clamped():
    with pytest.raises(BadRequest, match="temperature"):
        to_anthropic(temperature=1.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("n", 2), ("logprobs", True), ("functions", [{"name": "f"}]), ("modalities", ["audio"]),
     ("audio", {"voice": "x"}), ("web_search_options", {"x": 1}), ("response_format", {"type": "json_object"})],
)  # fmt: skip
def test_what_would_change_the_answer_is_refused_not_dropped(field, value):
    with pytest.raises(BadRequest) as caught:
        to_anthropic(**{field: value})
    assert caught.value.param == field


def test_what_asks_for_nothing_special_crosses_quietly():
    fields = {"n": 1, "logprobs": False, "modalities": ["text"], "response_format": {"type": "text"}, "seed": None}
    request = OPEN.read_request(openai(max_tokens=9, **fields))
    out = A.write_request(request, TARGET)
    assert out.dropped == ()
    assert out.body == {"model": "theirs", "max_tokens": 9, "messages": USER}


def test_hosted_tools_of_another_provider_are_refused():
    with pytest.raises(BadRequest, match="only Anthropic hosts"):
        to_openai(tools=[{"type": "web_search_20250305", "name": "web_search"}])
    with pytest.raises(BadRequest, match="mcp_servers"):
        to_openai(mcp_servers=[{"url": "x"}])
    with pytest.raises(BadRequest, match="only OpenAI knows"):
        to_anthropic(tools=[{"type": "custom", "custom": {"name": "x"}}])


# 16. arguments, and ids -----------------------------------------------------------------------------------------


def called(call_id: str, arguments: str) -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [*USER, {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call_id, "content": "x"}]  # fmt: skip


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": 1, "a": 2}', '"x"'])
def test_malformed_arguments_are_carried_as_text_and_come_back_as_they_were(text):
    body = to_anthropic(messages=called("c1", text))
    assert body["messages"][1]["content"][0]["input"] == {"__malformed_arguments__": text}
    back = OPEN.write_request(A.read_request(body), TARGET).body
    assert back["messages"][1]["tool_calls"][0]["function"]["arguments"] == text


def test_empty_arguments_are_an_empty_object():
    assert to_anthropic(messages=called("c1", ""))["messages"][1]["content"][0]["input"] == {}


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=80))
@settings(max_examples=30, deadline=None)
def test_ids_fit_the_provider_and_map_alike_in_every_turn(call_id):
    body = to_anthropic(messages=called(call_id, "{}"))
    use, result = body["messages"][1]["content"][0], body["messages"][2]["content"][0]
    assert use["id"] == result["tool_use_id"]
    assert len(use["id"]) <= 64
    assert use["id"].isascii()
    assert use["id"].replace("-", "").replace("_", "").isalnum() or set(use["id"]) <= set("-_")
    longer = to_anthropic(messages=[*called(call_id, "{}"), *called("other", "{}")])
    assert longer["messages"][1]["content"][0]["id"] == use["id"]


def test_ids_may_follow_the_rule_of_another_provider():
    body = to_openai(Target(model="m", call_ids="mistral"), messages=asked(RESULT))
    made = body["messages"][1]["tool_calls"][0]["id"]
    assert len(made) == 9
    assert body["messages"][2]["tool_call_id"] == made


# --- reasoning, streams and tokens ------------------------------------------------------------------------------


def test_earlier_reasoning_is_carried_or_dropped_as_the_target_says():
    content = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "text", "text": "x"}]
    request = A.read_request(anthropic(messages=[*USER, {"role": "assistant", "content": content}]))
    out = OPEN.write_request(request, TARGET)
    assert out.body["messages"][1] == {
        "role": "assistant",
        "content": "x",
        "reasoning_content": "hm",
        "reasoning": "hm",
    }
    out = OPEN.write_request(request, Target(model="m", reasoning="drop"))
    assert out.body["messages"][1] == {"role": "assistant", "content": "x"}
    assert out.dropped == ("messages[1].reasoning",)


def test_a_stream_always_asks_for_its_usage_and_for_tokens_when_wanted():
    body = OPEN.write_request(OPEN.read_request(openai(stream=True)), Target(model="m", want_tokens=True)).body
    assert body["stream_options"] == {"include_usage": True}
    assert (body["return_token_ids"], body["logprobs"]) == (True, True)
    assert to_anthropic(stream=True, stream_options={"include_usage": True})["stream"] is True


def test_fields_that_responses_and_chat_completions_share_are_carried():
    request = msgspec.structs.replace(
        OPEN.read_request(openai()), dialect="responses", extra={"service_tier": "flex", "truncation": "auto"}
    )
    out = OPEN.write_request(request, TARGET)
    assert out.body["service_tier"] == "flex"
    assert out.dropped == ("truncation",)


def test_every_scalar_of_a_schema_survives():
    schema = {"type": "object", "properties": {"a": {"default": None, "enum": [1, "x", 2.5, True]}}}
    tools = [{"name": "f", "description": "d", "input_schema": schema}]
    assert to_openai(tools=tools)["tools"][0]["function"]["parameters"] == schema
