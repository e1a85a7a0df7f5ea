"""What a scripted upstream says, as the server-sent events of each vendor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import orjson

from firstchair.chat import anthropic_stream, openai_stream
from firstchair.chat.anthropic_blocks import MALFORMED_KEY
from firstchair.testing import scripted_responses
from firstchair.testing.scripted_answers import Reply, Wire, anthropic_body, openai_body, said_of


def events_of(reply: Reply, wire: Wire, ask: Mapping[str, Any]) -> list[bytes]:
    """The answer as server-sent events."""
    if wire == "responses":
        return scripted_responses.events(said_of(reply, ask))
    return openai_events(reply, ask) if wire == "openai" else anthropic_events(reply, ask)


def openai_events(reply: Reply, ask: Mapping[str, Any]) -> list[bytes]:
    """The server-sent events, ``[DONE]`` last."""
    body = openai_body(reply, ask)
    wanted = bool((ask.get("stream_options") or {}).get("include_usage")) and "usage" in body
    ids, prompt = body["choices"][0].pop("token_ids", None), body.pop("prompt_token_ids", None)
    logprobs = body["choices"][0]["logprobs"]
    chunks: Iterable[dict[str, Any]] = openai_stream.chunks(body, include_usage=wanted)
    if reply.interleaved:
        chunks = _in_turn(chunks, _openai_call)
    out = list(chunks)
    if ids is not None:
        out[0]["prompt_token_ids"] = prompt
        _spread(out, ids, logprobs)
    return [b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in out] + [openai_stream.DONE]


def _spread(chunks: list[dict[str, Any]], ids: list[int], logprobs: dict[str, Any] | None) -> None:
    """Give every chunk with content its share of the token ids; the last one takes what is left."""
    carriers = [
        chunk["choices"][0]
        for chunk in chunks
        if chunk["choices"]
        and set(chunk["choices"][0]["delta"]) - {"role"}
        and "role" not in chunk["choices"][0]["delta"]
    ]
    for place, choice in enumerate(carriers):
        last = place == len(carriers) - 1
        part = slice(place, None if last else place + 1)
        choice["token_ids"] = ids[part]
        if logprobs is not None:
            choice["logprobs"] = {"content": logprobs["content"][part]}


def _openai_call(chunk: Mapping[str, Any]) -> int | None:
    calls = chunk["choices"][0]["delta"].get("tool_calls") if chunk["choices"] else None
    return int(calls[0]["index"]) if calls else None


def anthropic_events(reply: Reply, ask: Mapping[str, Any]) -> list[bytes]:
    """The server-sent events, with the ``ping`` that the API sends after the start."""
    body = anthropic_body(reply, ask)
    usage = body.get("usage")
    out = []
    for event in anthropic_stream.events({**body, "usage": {"output_tokens": 0}}):
        if event["type"] == "message_start":
            event["message"] = _start(event["message"], usage)
        elif event["type"] == "message_delta":
            event.pop("usage")
            if usage is not None and "output_tokens" in usage:
                event["usage"] = {"output_tokens": usage["output_tokens"]}
        out.append(event)
    _as_written(out, reply)
    events: Iterable[dict[str, Any]] = out
    if reply.interleaved:
        tools = {event["index"] for event in out if event.get("content_block", {}).get("type") == "tool_use"}
        events = _in_turn(out, lambda event: event.get("index") if event.get("index") in tools else None)
    blocks = [_named(event) for event in events]
    return [blocks[0], _named({"type": "ping"}), *blocks[1:]]


def _start(begun: dict[str, Any], usage: Mapping[str, Any] | None) -> dict[str, Any]:
    begun = {key: value for key, value in begun.items() if key != "usage"}
    if usage is None:
        return begun
    return {**begun, "usage": {**usage, **({"output_tokens": 1} if "output_tokens" in usage else {})}}


def _as_written(events: list[dict[str, Any]], reply: Reply) -> None:
    """Arguments that are no JSON object, as the model wrote them: one delta for the carried form."""
    broken = {call.arguments for call in reply.calls if call.parsed() is None}
    first = len(events)
    for place, event in enumerate(events):
        if event.get("content_block", {}).get("type") == "tool_use":
            first = min(first, event["index"])
            call = reply.calls[event["index"] - first]
            if call.arguments not in broken or not call.arguments.strip():
                continue
            index, end = event["index"], place + 1
            while events[end]["type"] == "content_block_delta":
                end += 1
            delta = {"type": "input_json_delta", "partial_json": call.arguments}
            events[place + 1 : end] = [{"type": "content_block_delta", "index": index, "delta": delta}]
            assert MALFORMED_KEY not in call.arguments


def _named(event: dict[str, Any]) -> bytes:
    return b"event: " + str(event["type"]).encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"


def _in_turn(
    events: Iterable[dict[str, Any]], key: Callable[[dict[str, Any]], int | None]
) -> Iterator[dict[str, Any]]:
    """The events of different keys one after the other in turn; those without a key keep their place."""
    groups: dict[int, list[dict[str, Any]]] = {}
    for event in events:
        index = key(event)
        if index is not None:
            groups.setdefault(index, []).append(event)
            continue
        yield from _round(groups)
        groups = {}
        yield event
    yield from _round(groups)


def _round(groups: Mapping[int, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for place in range(max(map(len, groups.values()), default=0)):
        for group in groups.values():
            if place < len(group):
                yield group[place]
