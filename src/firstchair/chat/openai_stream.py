"""A Chat Completions answer as the chunks of its stream.

Buffered and streamed are two forms of one object: this module cuts the object into chunks, so that what a client
puts together again can only be what a buffered client gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

PIECE = 32
"""Characters in one delta; a cut never falls inside a character."""

DONE = b"data: [DONE]\n\n"


def chunks(response: dict[str, Any], *, include_usage: bool = False) -> Iterator[dict[str, Any]]:
    """The ``chat.completion.chunk`` objects of a ``chat.completion`` with one choice.

    Each tool call opens once, gets its argument text while it is open, and is followed by the next; the last
    chunk with a choice carries ``finish_reason``; ``usage`` comes after it, alone, when asked for.
    """
    (choice,) = response["choices"]
    head = {key: value for key, value in response.items() if key not in ("choices", "usage")}
    head["object"] = "chat.completion.chunk"

    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        out = {**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]}
        return {**out, "usage": None} if include_usage else out

    message = choice["message"]
    yield chunk({"role": "assistant", "content": "" if message.get("content") is not None else None})
    for key in ("reasoning_content", "content", "refusal"):
        for piece in pieces(message.get(key) or ""):
            yield chunk({key: piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opened = {"index": index, "id": call["id"], "type": "function"}
        yield chunk({"tool_calls": [{**opened, "function": {"name": function["name"], "arguments": ""}}]})
        for piece in pieces(function["arguments"]):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if include_usage:
        yield {**head, "choices": [], "usage": response["usage"]}


def pieces(text: str) -> Iterator[str]:
    """``text`` in pieces of ``PIECE`` characters; none for empty text."""
    for start in range(0, len(text), PIECE):
        yield text[start : start + PIECE]


def encode(response: dict[str, Any], *, include_usage: bool = False) -> Iterator[bytes]:
    """The server-sent events of the stream, ``[DONE]`` at the end."""
    for chunk in chunks(response, include_usage=include_usage):
        yield b"data: " + orjson.dumps(chunk) + b"\n\n"
    yield DONE
