from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson
from hypothesis import given
from hypothesis import strategies as st

from firstchair.chat import anthropic_stream, openai_stream

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=100)
CALLS = st.lists(
    st.tuples(st.text("abc", min_size=1, max_size=5), st.dictionaries(TEXT, TEXT, max_size=2)), max_size=3
)


def openai_response(text: str, thinking: str, calls: list[tuple[str, dict[str, str]]]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text or (None if calls else "")}
    if thinking:
        message["reasoning_content"] = thinking
    if calls:
        message["tool_calls"] = [
            {
                "id": f"c{n}",
                "type": "function",
                "function": {"name": name, "arguments": orjson.dumps(arguments).decode()},
            }
            for n, (name, arguments) in enumerate(calls)
        ]
    finish = "tool_calls" if calls else "stop"
    return {
        "id": "x",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": message, "logprobs": None, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7},
    }


def join_openai(stream: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """As a careful client puts chunks together."""
    message: dict[str, Any] = {"role": None, "content": None}
    calls: list[dict[str, Any]] = []
    finish, usage, head = None, None, {}
    for chunk in stream:
        head = {key: value for key, value in chunk.items() if key not in ("choices", "usage")}
        usage = chunk.get("usage") or usage
        for choice in chunk["choices"]:
            assert finish is None, "nothing follows the finish reason"
            finish = choice["finish_reason"]
            for key, value in choice["delta"].items():
                if key == "tool_calls":
                    (part,) = value
                    if part["index"] == len(calls):
                        calls.append({"id": part["id"], "type": part["type"], "function": dict(part["function"])})
                    else:
                        assert part["index"] == len(calls) - 1, "a closed call gets nothing more"
                        calls[-1]["function"]["arguments"] += part["function"]["arguments"]
                elif key == "role":
                    message["role"] = value
                elif value is not None:
                    message[key] = (message.get(key) or "") + value
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": usage}


@given(TEXT, TEXT, CALLS)
def test_an_openai_stream_joins_to_the_buffered_answer(text: str, thinking: str, calls: Any) -> None:
    whole = openai_response(text, thinking, calls)
    assert join_openai(openai_stream.chunks(whole, include_usage=True)) == whole


def test_openai_usage_is_sent_only_when_asked_for_and_done_ends_the_stream() -> None:
    whole = openai_response("hi", "", [])
    assert all("usage" not in chunk for chunk in openai_stream.chunks(whole))
    lines = list(openai_stream.encode(whole))
    assert lines[-1] == b"data: [DONE]\n\n"
    assert all(line.startswith(b"data: {") for line in lines[:-1])


def join_anthropic(stream: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """As a careful client puts events together; every block opens and closes once, in order."""
    message: dict[str, Any] = {}
    opened: int | None = None
    partial = ""
    for event in stream:
        kind = event["type"]
        if kind == "message_start":
            message = {**event["message"], "content": []}
        elif kind == "content_block_start":
            assert opened is None
            opened, partial = event["index"], ""
            assert opened == len(message["content"])
            message["content"].append(dict(event["content_block"]))
        elif kind == "content_block_delta":
            assert event["index"] == opened
            delta, block = event["delta"], message["content"][-1]
            if delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
            else:
                key = delta["type"].removesuffix("_delta")
                block[key] += delta[key]
        elif kind == "content_block_stop":
            assert event["index"] == opened
            opened = None
            if partial:
                message["content"][-1]["input"] = orjson.loads(partial)
        elif kind == "message_delta":
            message |= event["delta"]
            message["usage"] = {**message["usage"], **event["usage"]}
    assert opened is None
    assert kind == "message_stop"
    return message


@given(TEXT, TEXT, CALLS)
def test_an_anthropic_stream_joins_to_the_buffered_answer(text: str, thinking: str, calls: Any) -> None:
    content: list[dict[str, Any]] = []
    if thinking:
        content.append({"type": "thinking", "thinking": thinking, "signature": "s"})
    content.append({"type": "redacted_thinking", "data": "opaque"})
    if text:
        content.append({"type": "text", "text": text})
    content += [
        {"type": "tool_use", "id": f"c{n}", "name": name, "input": value} for n, (name, value) in enumerate(calls)
    ]
    whole = {
        "id": "x",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": content,
        "stop_reason": "tool_use" if calls else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 3, "output_tokens": 4},
    }
    assert join_anthropic(anthropic_stream.events(whole)) == whole
    for line in anthropic_stream.encode(whole):
        assert line.startswith(b"event: ")
        assert line.endswith(b"\n\n")
