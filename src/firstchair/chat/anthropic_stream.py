"""An Anthropic message as the events of its stream; the counterpart of ``openai_stream``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import orjson

from firstchair.chat.openai_stream import pieces
from firstchair.core.jsontext import dumps

_DELTAS = {"text": ("text", "text_delta"), "thinking": ("thinking", "thinking_delta")}


def events(response: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The events of a complete ``message`` object: each block opens once, gets its deltas, and closes once."""
    usage = response["usage"]
    yield {
        "type": "message_start",
        "message": {
            **response,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**usage, "output_tokens": 0},
        },
    }
    for index, block in enumerate(response["content"]):
        start, deltas = _block(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    yield {
        "type": "message_delta",
        "delta": {"stop_reason": response["stop_reason"], "stop_sequence": response.get("stop_sequence")},
        "usage": {"output_tokens": usage["output_tokens"]},
    }
    yield {"type": "message_stop"}


def _block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it opens, and its deltas. A block that is not streamed in parts opens whole."""
    kind = block["type"]
    if kind == "tool_use":
        text = dumps(block["input"]) if block["input"] else ""
        return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(text)]
    if kind not in _DELTAS:
        return block, []
    key, delta = _DELTAS[kind]
    start = {**block, key: ""}
    out = [{"type": delta, key: piece} for piece in pieces(block[key])]
    if kind == "thinking":
        start["signature"] = ""
        out.append({"type": "signature_delta", "signature": block.get("signature") or ""})
    return start, out


def encode(response: dict[str, Any]) -> Iterator[bytes]:
    """The server-sent events of the stream."""
    for event in events(response):
        yield b"event: " + event["type"].encode() + b"\ndata: " + orjson.dumps(event) + b"\n\n"
