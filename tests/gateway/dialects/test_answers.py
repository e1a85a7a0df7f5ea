"""Whole and streamed answers of both wires: equal objects, and equal again on the other wire."""

from __future__ import annotations

from typing import Any

import msgspec
import orjson
import pytest
from tests.gateway.dialects.streams import (
    ANTHROPIC,
    HEAD,
    OPENAI,
    ROLE,
    USAGE,
    anthropic_bytes,
    block,
    chunk,
    collect,
    completion,
    end,
    fragment,
    json_delta,
    message,
    openai_bytes,
    read_events,
    start,
    text_delta,
    written,
)

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import TextPart, ThinkingPart
from firstchair.chat.wire_request import Finish
from firstchair.core.errors import DataError
from firstchair.gateway.dialects.anthropic import AnthropicMessages
from firstchair.gateway.dialects.base import (
    BlockDelta,
    BlockEnd,
    BlockStart,
    ChatAnswer,
    ChatRequest,
    End,
    EngineTokens,
    Failure,
    FailureKind,
    Start,
    StreamFault,
    Target,
)
from firstchair.gateway.dialects.collect import Collector, events_of
from firstchair.gateway.dialects.openai_chat import OpenAIChat

OPEN, A = OpenAIChat(), AnthropicMessages()
REQUESTS = {
    "openai": OPEN.read_request({"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True,
                              "stream_options": {"include_usage": True}}),
    "anthropic": A.read_request({"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 9}),
}  # fmt: skip
CASES = [(OPEN, openai_bytes(name), body, name) for name, (_, body) in OPENAI.items()]
CASES += [(A, anthropic_bytes(name), body, name) for name, (_, body) in ANTHROPIC.items()]  # type: ignore[misc]
EACH = pytest.mark.parametrize(("dialect", "raw", "body"), [c[:3] for c in CASES], ids=[c[3] for c in CASES])


@EACH
def test_a_stream_and_the_whole_answer_are_one_object(dialect, raw, body):
    whole = dialect.read_answer(body)
    assert collect(read_events(dialect, raw)) == whole
    assert collect(list(events_of(whole))) == whole


@EACH
@pytest.mark.parametrize("target", [OPEN, A], ids=["to openai", "to anthropic"])
def test_a_client_gets_the_same_answer_streamed_and_whole(dialect, raw, body, target):
    events, request = read_events(dialect, raw), REQUESTS[target.name]
    whole = target.write_answer(dialect.read_answer(body), request, model="asked").body
    writer = target.writer(request, model="asked")
    streamed = collect(read_events(target, written(writer, events)))
    assert parsed(streamed) == parsed(target.read_answer(whole))
    assert streamed.model == "asked"
    assert streamed.finish == dialect.read_answer(body).finish
    assert streamed.usage == dialect.read_answer(body).usage


def parsed(answer: ChatAnswer) -> ChatAnswer:
    """The answer with arguments as one text for each value: a stream forwards the model's own spacing. Reasoning and
    text in turns, which no whole answer of Chat Completions can tell, stand joined.
    """
    replace, content = msgspec.structs.replace, answer.message.content
    calls = tuple(replace(c, arguments=str(c.parsed() or c.arguments)) for c in answer.message.tool_calls)
    if sum(isinstance(part, ThinkingPart) for part in content) > 1:
        content = (ThinkingPart(text=answer.message.thinking, signature=""), TextPart(text=answer.message.text))
    message = msgspec.structs.replace(answer.message, tool_calls=calls, content=content)
    return msgspec.structs.replace(answer, message=message)


@EACH
def test_an_answer_in_its_own_dialect_loses_nothing(dialect, raw, body):
    answer = dialect.read_answer(body)
    out = dialect.write_answer(answer, REQUESTS[dialect.name], model=answer.model)
    assert out.dropped == ()
    back = dialect.read_answer(out.body)
    # The word for the ending may be put right: calls that came with a stop.
    assert msgspec.structs.replace(back, native_finish=answer.native_finish) == answer


def test_usage_with_cache_and_both_lifetimes_crosses_the_wires_unchanged():
    answer = A.read_answer(ANTHROPIC["text"][1])
    counts = TokenCounts(input=5, cache_read=128_955, cache_write_5m=1000, cache_write_1h=253, output=89)
    assert answer.usage == counts
    usage = OPEN.write_answer(answer, REQUESTS["openai"], model="m").body["usage"]
    assert usage["prompt_tokens"] == 5 + 128_955 + 1253
    assert usage["prompt_tokens_details"]["cached_tokens"] == 128_955
    assert OPEN.read_answer(completion({"content": "x"}, "stop", usage)).usage == counts


@pytest.mark.parametrize(
    "usage",
    [
        None,
        {},
        {"prompt_tokens": -1},
        {"prompt_tokens": 10**30, "completion_tokens": 1},
        {"prompt_tokens": "5"},
        {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 6}},
        {"prompt_tokens": 5, "prompt_tokens_details": 7},
    ],
)
def test_absurd_usage_fails_no_answer_and_counts_as_nothing_said(usage):
    answer = OPEN.read_answer(completion({"content": "x"}, "stop", usage))
    assert answer.usage in (None, TokenCounts())
    assert answer.raw_usage == usage


def test_a_missing_usage_is_told_to_a_client_whose_wire_demands_one():
    answer = OPEN.read_answer(completion({"content": "x"}, "stop", None))
    out = A.write_answer(answer, REQUESTS["anthropic"], model="m")
    assert out.body["usage"] == {"input_tokens": 0, "output_tokens": 0}
    assert out.dropped == ("usage", "system_fingerprint")
    assert "usage" not in OPEN.write_answer(answer, REQUESTS["openai"], model="m").body


@pytest.mark.parametrize(
    ("word", "finish", "openai", "native"),
    [
        ("end_turn", Finish.STOP, "stop", None),
        ("max_tokens", Finish.LENGTH, "length", None),
        ("stop_sequence", Finish.STOP_SEQUENCE, "stop", "stop_sequence"),
        ("refusal", Finish.REFUSAL, "content_filter", None),
        ("pause_turn", Finish.PAUSE, "length", "pause_turn"),
        ("model_context_window_exceeded", Finish.CONTEXT_WINDOW, "length", "model_context_window_exceeded"),
    ],
)
def test_every_ending_crosses_and_comes_back(word, finish, openai, native):
    answer = A.read_answer(message([{"type": "text", "text": "x"}], word))
    body = OPEN.write_answer(answer, REQUESTS["openai"], model="m").body
    assert body["choices"][0]["finish_reason"] == openai
    assert body["choices"][0].get("native_finish_reason") == native
    back = OPEN.read_answer(body)
    assert back.finish is answer.finish is finish
    assert A.write_answer(back, REQUESTS["anthropic"], model="m").body["stop_reason"] == word


def test_calls_that_end_with_stop_are_calls_and_the_providers_word_is_kept():
    answer = OPEN.read_answer(OPENAI["calls that end with stop"][1])
    assert (answer.finish, answer.native_finish) == (Finish.TOOL_CALLS, "stop")
    assert A.write_answer(answer, REQUESTS["anthropic"], model="m").body["stop_reason"] == "tool_use"


def test_an_ending_of_calls_without_calls_is_a_stop():
    answer = OPEN.read_answer(completion({"content": "x"}, "tool_calls"))
    assert (answer.finish, answer.native_finish) == (Finish.STOP, "tool_calls")


def test_a_call_that_the_limit_cut_says_so_by_its_ending():
    cut = OPEN.read_answer(OPENAI["cut call"][1])
    assert cut.finish is Finish.LENGTH
    assert cut.message.tool_calls[0].parsed() is None
    assert OPEN.read_answer(OPENAI["malformed call"][1]).finish is not Finish.LENGTH


@pytest.mark.parametrize("name", ["malformed call", "cut call"])
def test_malformed_arguments_reach_an_anthropic_client_as_declared_text(name):
    raw = written(A.writer(REQUESTS["anthropic"], model="m"), read_events(OPEN, openai_bytes(name)))
    deltas = [row["delta"] for row in rows_of(raw) if row["type"] == "content_block_delta"]
    (arguments,) = [delta["partial_json"] for delta in deltas]
    text = OPENAI[name][1]["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]
    assert orjson.loads(arguments) == {"__malformed_arguments__": text}
    body = A.write_answer(OPEN.read_answer(OPENAI[name][1]), REQUESTS["anthropic"], model="m").body
    assert body["content"][0]["input"] == {"__malformed_arguments__": text}


def rows_of(raw: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line[6:]) for line in raw.split(b"\n") if line.startswith(b"data: {")]


def test_interleaved_fragments_become_blocks_one_after_the_other():
    raw = written(A.writer(REQUESTS["anthropic"], model="m"), read_events(OPEN, openai_bytes("interleaved calls")))
    rows = rows_of(raw)
    assert [row["type"] for row in rows if row["type"] != "content_block_delta"] == [
        "message_start",
        *["content_block_start", "content_block_stop"] * 3,
        "message_delta",
        "message_stop",
    ]
    assert [row["index"] for row in rows if "index" in row] == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_text_goes_out_as_it_arrives():
    writer = A.writer(REQUESTS["anthropic"], model="m")
    events = read_events(OPEN, openai_bytes("text"))
    assert [type(e) for e in events] == [Start, BlockStart, BlockDelta, BlockDelta, BlockEnd, End]
    assert all(writer.write(event) for event in events)


def test_several_texts_of_one_answer_become_one_text_for_an_openai_client():
    answer = A.read_answer(ANTHROPIC["hosted search with citations"][1])
    out = OPEN.write_answer(answer, REQUESTS["openai"], model="m")
    assert out.body["choices"][0]["message"]["content"] == "x and more"
    assert set(out.dropped) >= {"content.server_tool_use", "content.citations"}
    writer = OPEN.writer(REQUESTS["openai"], model="m")
    written(writer, read_events(A, anthropic_bytes("hosted search with citations")))
    assert {"content.server_tool_use", "content.citations"} <= set(writer.dropped)


def test_a_signature_lost_on_the_way_is_listed():
    answer = A.read_answer(ANTHROPIC["thinking and tools"][1])
    assert "content.signature" in OPEN.write_answer(answer, REQUESTS["openai"], model="m").dropped
    writer = OPEN.writer(REQUESTS["openai"], model="m")
    written(writer, read_events(A, anthropic_bytes("thinking and tools")))
    assert "content.signature" in writer.dropped


def test_an_openai_client_gets_the_usage_only_when_it_asked():
    events = read_events(A, anthropic_bytes("text"))
    quiet = ChatRequest(dialect="openai", model="m", messages=(), stream=True, received_s=77)
    rows = rows_of(written(OPEN.writer(quiet, model="m"), events))
    assert not any("usage" in row for row in rows)
    assert {row["created"] for row in rows} == {77}
    rows = rows_of(written(OPEN.writer(REQUESTS["openai"], model="m"), events))
    assert rows[-1]["choices"] == []
    assert rows[-1]["usage"]["completion_tokens"] == 89


def test_nothing_goes_out_before_the_first_block():
    writer = OPEN.writer(REQUESTS["openai"], model="m")
    assert writer.write(Start(id="x", model="y")) == b""


# --- engine tokens ----------------------------------------------------------------------------------------------

SCORES = {"content": [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]}


def test_token_ids_and_logprobs_of_the_engine_are_read_whole_and_streamed():
    body = completion({"content": "ab"}, "stop", token_ids=[7, 8])
    body["prompt_token_ids"] = [1, 2, 3]
    body["choices"][0]["logprobs"] = {**SCORES, "refusal": None}
    rows = [{**ROLE, "prompt_token_ids": [1, 2, 3]}]
    for text, token_id, score in (("a", 7, SCORES["content"][0]), ("b", 8, SCORES["content"][1])):
        rows.append(chunk({"content": text}, token_ids=[token_id], logprobs={"content": [score]}))
    rows += [chunk({}, "stop", token_ids=[]), {**HEAD, "choices": [], "usage": USAGE}]
    raw = b"".join(b"data: " + orjson.dumps(row) + b"\n\n" for row in rows) + b"data: [DONE]\n\n"
    whole = OPEN.read_answer(body)
    assert whole.tokens == EngineTokens(prompt_ids=(1, 2, 3), completion_ids=(7, 8), logprobs=(-0.5, -1.0))
    assert collect(read_events(OPEN, raw)) == whole
    # A client that did not ask for scores gets none.
    assert OPEN.write_answer(whole, REQUESTS["openai"], model="m").body["choices"][0]["logprobs"] is None


@pytest.mark.parametrize("ids", [[7], [7, 8, 9], [7, "8"], [7, True], None])
def test_ids_that_do_not_match_their_logprobs_are_no_tokens(ids):
    body = completion({"content": "ab"}, "stop", token_ids=ids)
    body["prompt_token_ids"] = [1]
    body["choices"][0]["logprobs"] = SCORES
    assert OPEN.read_answer(body).tokens is None


# --- faults -----------------------------------------------------------------------------------------------------


def data(*rows: Any) -> bytes:
    return b"".join(b"data: " + (row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n\n" for row in rows)


STOP = chunk({}, "stop")
DONE = b"[DONE]"


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (data(ROLE, chunk({"content": "x"}), STOP), "without \\[DONE\\]"),
        (data(ROLE, chunk({"content": "x"}), DONE), "before a finish reason"),
        (b"", "without \\[DONE\\]"),
        (data(ROLE, b'{"id": 1'), "not JSON"),
        (data([1]), "a list as an event"),
        (data(ROLE, STOP, chunk({"content": "late"}), DONE), "after its finish reason"),
        (data(ROLE, chunk({}, "weird"), DONE), "unknown ending"),
        (data(ROLE, STOP, DONE, ROLE), "after \\[DONE\\]"),
        (data(ROLE, chunk({"content": 3}), STOP, DONE), "a number as content"),
        (data(ROLE, chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x"}}]}), STOP, DONE), "id or name"),
        (data(ROLE, chunk({"tool_calls": [{"index": 0, "id": 5}]}), STOP, DONE), "not text"),
        (data({**HEAD, "choices": [7]}), "as a choice"),
        (data({**HEAD, "choices": 7}), "as choices"),
        (data(chunk(7)), "as a delta"),  # type: ignore[arg-type]
    ],
)
def test_a_broken_openai_stream_is_a_fault_never_a_short_success(raw, says):
    with pytest.raises(StreamFault, match=says) as caught:
        read_events(OPEN, raw)
    assert caught.value.failure.kind is FailureKind.BAD_ANSWER


def named(*rows: dict[str, Any]) -> bytes:
    return b"".join(b"event: " + str(row.get("type")).encode() + b"\n" + data(row) for row in rows)


HALF = block(0, {"type": "text", "text": ""}, text_delta("x"))


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (named(start(), *HALF, *end("end_turn")[:1]), "without message_stop"),
        (named(*HALF), "block 0|before message_start"),
        (named(start(), start()), "second message_start"),
        (named(start(), HALF[1]), "not open"),
        (named(start(), *HALF, HALF[1]), "which is closed"),
        (named(start(), *HALF, HALF[2]), "which is closed"),
        (named(start(), *HALF, *HALF), "twice"),
        (named(start(), *HALF[:2], *end("end_turn")), "while a block was open"),
        (named(start(), *HALF, {"type": "message_stop"}), "unknown ending"),
        (named(start(), *HALF, *end("odd")), "unknown ending"),
        (
            named(start(), HALF[0], {"type": "content_block_delta", "index": 0, "delta": json_delta("{")}),
            "for a block",
        ),
        (named(start(), HALF[0], {"type": "content_block_delta", "index": [], "delta": json_delta("{")}), "not open"),
        (named(start(), *end("end_turn"), HALF[0]), "after message_stop"),
        (data(b"nope"), "not JSON"),
    ],
)
def test_a_broken_anthropic_stream_is_a_fault_never_a_short_success(raw, says):
    with pytest.raises(StreamFault, match=says) as caught:
        read_events(A, raw)
    assert caught.value.failure.kind is FailureKind.BAD_ANSWER


@pytest.mark.parametrize(
    ("dialect", "raw", "kind"),
    [
        (A, named({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}), "overloaded"),
        (A, named(start(), {"type": "error", "error": {"type": "api_error", "message": "x"}}), "server_error"),
        (A, named({"type": "error", "error": {"type": "brand_new_error", "message": "x"}}), "bad_answer"),
        (OPEN, data({"error": {"message": "x", "type": "BadRequestError", "code": 400}}), "bad_request"),
        (OPEN, data(ROLE, {"error": {"message": "x", "type": "server_error", "code": None}}), "server_error"),
        (OPEN, data(ROLE, {"error": {"message": "x", "code": 429}, "choices": []}), "rate_limit"),
        (OPEN, b"event: error\n" + data({"message": "x"}), "bad_answer"),
    ],
)
def test_an_error_event_is_the_failure_that_its_words_say(dialect, raw, kind):
    with pytest.raises(StreamFault) as caught:
        read_events(dialect, raw)
    assert caught.value.failure.kind == kind


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"choices": []},
        {"choices": [{}]},
        {"choices": [{"message": {"role": "assistant", "content": "x"}}]},
        {"choices": [{"message": {"role": "user", "content": "x"}, "finish_reason": "stop"}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": ["stop"]}]},
        completion({"content": "x"}, "brand_new"),
        {"error": {"message": "x"}},
        [],
    ],
)
def test_what_is_no_answer_is_refused(body):
    with pytest.raises(DataError):
        OPEN.read_answer(body)
    with pytest.raises(DataError):
        A.read_answer(body)


EVENTS = list(events_of(ChatAnswer(id="x", model="m", finish=Finish.STOP, message=A.read_answer(
    ANTHROPIC["text"][1]).message)))  # fmt: skip


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ([1], "before its start"),
        ([0, 0], "second start"),
        ([0, 2], "not open"),
        ([0, 1, 1], "twice"),
        ([0, 1, 3, 2], "closed"),
        ([0, 1, 3, 3], "closed"),
        ([0, 1, 4], "while a block was open"),
        ([0, 4, 1], "after its end"),
    ],
)
def test_a_block_opens_once_and_closes_once(order, says):
    collector = Collector()
    with pytest.raises(StreamFault, match=says):
        for position in order:
            collector.add(EVENTS[position])


def test_a_stream_that_broke_still_gives_what_came():
    collector = Collector()
    for event in EVENTS[:3]:
        collector.add(event)
    assert collector.has_content
    assert collector.message().text == "Hello"
    with pytest.raises(StreamFault, match="without its terminal event"):
        collector.answer()


def test_servers_that_leave_out_or_repeat_the_index_are_understood():
    def odd(**row: Any) -> dict[str, Any]:
        return chunk({"tool_calls": [row]})

    one = {"id": "a", "function": {"name": "f", "arguments": "{}"}}
    two = {"id": "b", "function": {"name": "g", "arguments": "{}"}}
    for rows in ([odd(**one), odd(**two)], [odd(index=0, **one), odd(index=0, **two)]):
        answer = collect(read_events(OPEN, data(*rows, chunk({}, "tool_calls"), DONE)))
        assert [c.id for c in answer.message.tool_calls] == ["a", "b"]
    later = [odd(index=0, id="a"), odd(index=0, function={"name": "f"}), odd(index=0, function={"arguments": "{}"})]
    answer = collect(read_events(OPEN, data(*later, chunk({}, "tool_calls"), DONE)))
    assert answer.message.tool_calls[0].arguments == "{}"


def test_further_choices_are_noted_not_mixed_in():
    rows = [ROLE, chunk({"content": "x"}), {**HEAD, "choices": [{"index": 1, "delta": {"content": "y"}}]}, STOP, DONE]
    answer = collect(read_events(OPEN, data(*rows)))
    assert answer.message.text == "x"
    assert answer.extra["n"] == 2
    body = completion({"content": "x"}, "stop", None)
    body["choices"].append(body["choices"][0])
    assert OPEN.read_answer(body) == answer


def test_unsigned_reasoning_reaches_both_wires():
    answer = OPEN.read_answer(OPENAI["reasoning, also late"][1])
    part = answer.message.content[0]
    assert isinstance(part, ThinkingPart)
    assert part.text == "hmm"
    body = A.write_answer(answer, REQUESTS["anthropic"], model="m").body
    assert body["content"][0] == {"type": "thinking", "thinking": "hmm", "signature": ""}
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "END")
    # On its way back it is no proof of ours, and is not sent as one.
    history = [{"role": "assistant", "content": body["content"]}, {"role": "user", "content": "x"}]
    request = A.read_request({"model": "m", "max_tokens": 9, "messages": history})
    out = A.write_request(request, Target(model="m"))
    assert [kind["type"] for kind in out.body["messages"][0]["content"]] == ["text"]
    assert out.dropped == ("messages[0].content[0]",)
    assert OPEN.write_request(request, Target(model="m")).body["messages"][0]["reasoning"] == "hmm"


def test_the_error_event_of_each_wire_ends_its_stream():
    failure = Failure(kind=FailureKind.OVERLOADED, message="busy")
    assert rows_of(A.writer(REQUESTS["anthropic"], model="m").fail(failure)) == [
        {"type": "error", "error": {"type": "overloaded_error", "message": "busy"}}
    ]
    (row,) = rows_of(OPEN.writer(REQUESTS["openai"], model="m").fail(failure))
    assert row["error"]["message"] == "busy"


def test_an_answer_of_text_parts_keeps_its_first_key():
    answer = OPEN.read_answer(OPENAI["text"][1])
    assert answer.message.content == (TextPart(text="Hello"),)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=ChatAnswer) == answer


def test_fragments_before_the_name_are_kept():
    rows = [fragment(0, '{"a":'), fragment(0, "1}", "call_a", "f"), chunk({}, "tool_calls"), DONE]
    assert collect(read_events(OPEN, data(*rows))).message.tool_calls[0].arguments == '{"a":1}'
