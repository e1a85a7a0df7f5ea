"""Both vendors' documented event sequences, each beside the whole answer that it is the stream of.

Typed by hand after the vendors' documents and the types of their SDKs; none was recorded from a vendor's server. What
engines really send is tested against real servers in ``test_engines.py``.
"""

from __future__ import annotations

from typing import Any

import orjson

from firstchair.gateway.dialects.base import ChatAnswer, Dialect, StreamEvent, StreamWriter
from firstchair.gateway.dialects.collect import Collector
from firstchair.gateway.dialects.sse import SseParser

HEAD = {"id": "chatcmpl-1", "created": 1_700_000_000, "model": "gpt-x", "system_fingerprint": "fp_1"}
USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19}


def chunk(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish, **more}
    return {**HEAD, "object": "chat.completion.chunk", "choices": [choice], "usage": None}


def usage_chunk(usage: dict[str, Any]) -> dict[str, Any]:
    return {**HEAD, "object": "chat.completion.chunk", "choices": [], "usage": usage}


def fragment(index: int, text: str = "", call_id: str | None = None, name: str | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {"index": index, "function": {"arguments": text}}
    if call_id:
        row |= {"id": call_id, "type": "function", "function": {"name": name, "arguments": text}}
    return chunk({"tool_calls": [row]})


def completion(message: dict[str, Any], finish: str, usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    row = {"role": "assistant", "content": None, "refusal": None, **message}
    choice = {"index": 0, "message": row, "logprobs": None, "finish_reason": finish, **more}
    return {**HEAD, "object": "chat.completion", "choices": [choice], "usage": usage}


def call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


ROLE = chunk({"role": "assistant", "content": "", "refusal": None})
OPENAI: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "text": (
        [ROLE, chunk({"content": "Hel"}), chunk({"content": "lo"}), chunk({}, "stop"), usage_chunk(USAGE)],
        completion({"content": "Hello"}, "stop"),
    ),
    "empty": ([ROLE, chunk({}, "stop"), usage_chunk(USAGE)], completion({"content": ""}, "stop")),
    "parallel calls": (
        [
            chunk({"role": "assistant", "content": None}),
            fragment(0, "", "call_a", "read"),
            fragment(0, '{"p'),
            fragment(0, '": 1}'),
            fragment(1, "", "call_b", "list"),
            fragment(1, "{}"),
            chunk({}, "tool_calls"),
            usage_chunk(USAGE),
        ],
        completion({"tool_calls": [call("call_a", "read", '{"p": 1}'), call("call_b", "list", "{}")]}, "tool_calls"),
    ),
    "interleaved calls": (
        [
            chunk({"role": "assistant", "content": "I look."}),
            fragment(0, "", "call_a", "read"),
            fragment(1, '{"q":', "call_b", "list"),
            fragment(0, '{"p":'),
            fragment(1, '"x"}'),
            fragment(0, "[1,2]}"),
            chunk({}, "tool_calls"),
            usage_chunk(USAGE),
        ],
        completion(
            {
                "content": "I look.",
                "tool_calls": [call("call_a", "read", '{"p":[1,2]}'), call("call_b", "list", '{"q":"x"}')],
            },
            "tool_calls",
        ),
    ),
    "reasoning, also late": (
        [
            chunk({"role": "assistant", "content": ""}),
            chunk({"reasoning": "hm"}),
            chunk({"content": "a"}),
            chunk({"reasoning": "m"}),
            chunk({"content": "b"}),
            chunk({}, "stop", stop_reason="END"),
            usage_chunk(USAGE),
        ],
        completion({"content": "ab", "reasoning": "hmm"}, "stop", stop_reason="END"),
    ),
    "refusal": (
        [ROLE, chunk({"refusal": "I can"}), chunk({"refusal": "not."}), chunk({}, "stop"), usage_chunk(USAGE)],
        completion({"refusal": "I cannot."}, "stop"),
    ),
    "cut call": (
        [ROLE, fragment(0, '{"p": "a', "call_a", "read"), chunk({}, "length"), usage_chunk(USAGE)],
        completion({"tool_calls": [call("call_a", "read", '{"p": "a')]}, "length"),
    ),
    "calls that end with stop": (
        [ROLE, fragment(0, "{}", "call_a", "read"), chunk({}, "stop"), usage_chunk(USAGE)],
        completion({"tool_calls": [call("call_a", "read", "{}")]}, "stop"),
    ),
    "malformed call": (
        [ROLE, fragment(0, '{"p": 1, "p": 2}', "call_a", "read"), chunk({}, "tool_calls"), usage_chunk(USAGE)],
        completion({"tool_calls": [call("call_a", "read", '{"p": 1, "p": 2}')]}, "tool_calls"),
    ),
}


def openai_bytes(name: str) -> bytes:
    rows = OPENAI[name][0]
    return b"".join(b"data: " + orjson.dumps(row) + b"\n\n" for row in rows) + b"data: [DONE]\n\n"


# --- Anthropic --------------------------------------------------------------------------------------------------

START_USAGE = {
    "input_tokens": 5,
    "cache_creation_input_tokens": 1253,
    "cache_read_input_tokens": 128_955,
    "cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 253},
    "output_tokens": 1,
    "service_tier": "standard",
}
A_USAGE = {**START_USAGE, "output_tokens": 89}


def start(**more: Any) -> dict[str, Any]:
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": START_USAGE,
        **more,
    }
    return {"type": "message_start", "message": message}


def block(index: int, opened: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": opened},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def text_delta(text: str) -> dict[str, Any]:
    return {"type": "text_delta", "text": text}


def json_delta(text: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": text}


def end(stop_reason: str, stop_sequence: str | None = None) -> list[dict[str, Any]]:
    delta = {"stop_reason": stop_reason, "stop_sequence": stop_sequence}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 89}},
        {"type": "message_stop"},
    ]


def message(content: list[dict[str, Any]], stop_reason: str, stop_sequence: str | None = None) -> dict[str, Any]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": A_USAGE,
    }


TEXT_BLOCK = {"type": "text", "text": ""}
PING = {"type": "ping"}
CITATION = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": None,
            "start_char_index": 0, "end_char_index": 1, "file_id": None}  # fmt: skip
CITED = {"type": "citations_delta", "citation": CITATION}
ANTHROPIC: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "text": (
        [start(), *block(0, TEXT_BLOCK, text_delta("Hel"), text_delta("lo"))[:2], PING, {"type": "new_kind"},
         *block(0, TEXT_BLOCK, text_delta("lo"))[1:], *end("stop_sequence", "END")],
        message([{"type": "text", "text": "Hello"}], "stop_sequence", "END"),
    ),
    "thinking and tools": (
        [
            start(),
            *block(
                0,
                {"type": "thinking", "thinking": "", "signature": ""},
                {"type": "thinking_delta", "thinking": "Let me "},
                {"type": "thinking_delta", "thinking": "see"},
                {"type": "signature_delta", "signature": "EqQB"},
            ),
            *block(1, {"type": "redacted_thinking", "data": "opaque"}),
            *block(2, TEXT_BLOCK, text_delta("Okay")),
            *block(
                3,
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {}},
                json_delta(""),
                json_delta('{"location":'),
                json_delta(' "SF'),
                json_delta(', CA"}'),
            ),
            *block(4, {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}}, json_delta("")),
            *end("tool_use"),
        ],
        message(
            [
                {"type": "thinking", "thinking": "Let me see", "signature": "EqQB"},
                {"type": "redacted_thinking", "data": "opaque"},
                {"type": "text", "text": "Okay"},
                {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"location": "SF, CA"}},
                {"type": "tool_use", "id": "toolu_2", "name": "list", "input": {}},
            ],
            "tool_use",
        ),
    ),
    "hosted search with citations": (
        [
            start(container=None),
            *block(
                0,
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
                json_delta('{"query":'),
                json_delta('"x"}'),
            ),
            *block(1, {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}),
            *block(2, {**TEXT_BLOCK, "citations": []}, text_delta("x"), CITED),
            *block(3, {**TEXT_BLOCK, "citations": None}, text_delta(" and more")),
            *end("end_turn"),
        ],
        message(
            [
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
                {"type": "text", "text": "x", "citations": [CITATION]},
                {"type": "text", "text": " and more", "citations": None},
            ],
            "end_turn",
        ),
    ),
    "text between calls": (
        [
            start(),
            *block(0, {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {}}, json_delta('{"x":1}')),
            *block(1, TEXT_BLOCK, text_delta("then")),
            *block(2, {"type": "tool_use", "id": "toolu_2", "name": "b", "input": {}}, json_delta('{"y": [2.50]}')),
            *end("end_turn"),
        ],
        message(
            [
                {"type": "tool_use", "id": "toolu_1", "name": "a", "input": {"x": 1}},
                {"type": "text", "text": "then"},
                {"type": "tool_use", "id": "toolu_2", "name": "b", "input": {"y": [2.5]}},
            ],
            "end_turn",
        ),
    ),
    "paused": ([start(), *block(0, TEXT_BLOCK, text_delta("x")), *end("pause_turn")],
               message([{"type": "text", "text": "x"}], "pause_turn")),
    "nothing": ([start(), *end("end_turn")], message([], "end_turn")),
}  # fmt: skip


def anthropic_bytes(name: str) -> bytes:
    rows = ANTHROPIC[name][0]
    return b"".join(b"event: " + row["type"].encode() + b"\ndata: " + orjson.dumps(row) + b"\n\n" for row in rows)


# --- reading and writing ----------------------------------------------------------------------------------------


def read_events(dialect: Dialect, raw: bytes) -> list[StreamEvent]:
    parser, reader = SseParser(), dialect.reader()
    events: list[StreamEvent] = []
    for name, data in (*parser.feed(raw), *parser.close()):
        events += reader.feed(name, data)
    reader.close()
    return events


def collect(events: list[StreamEvent]) -> ChatAnswer:
    collector = Collector()
    for event in events:
        collector.add(event)
    return collector.answer()


def written(writer: StreamWriter, events: list[StreamEvent]) -> bytes:
    return b"".join(writer.write(event) for event in events)
