"""Finished calls for tests, as a worker would write them down."""

import itertools
import json

from firstchair.chat.messages import Message, ToolCall, assistant_message
from firstchair.gateway.dialects.openai_chat import OpenAIChat
from firstchair.gateway.records import CallRecord, Outcome

READERS = {"openai": OpenAIChat().read_request}
_numbers = itertools.count(1)
START_US = 1_780_000_000_000_000

SYSTEM = {"role": "system", "content": "be good"}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}]


def user(text):
    return {"role": "user", "content": text}


def called(call_id="c1", arguments='{"x": 1}'):
    """An answer with one call, and what a client sends of it in the next prompt with its result."""
    answer = assistant_message(calls=(ToolCall(id=call_id, name="look", arguments=arguments),))
    call = {"id": call_id, "type": "function", "function": {"name": "look", "arguments": arguments}}
    echo = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "seen"},
    ]
    return answer, echo


def said(text):
    """An answer of text, and its echo."""
    return assistant_message(text), [{"role": "assistant", "content": text}]


def body_of(rows, **fields):
    return json.dumps({"model": "big", "messages": rows, **fields}).encode()


def record(rows, answer: Message | None, *, at_s=None, body=None, tools=None, **fields):
    """One call with the prompt ``rows``; calls follow one another by a second unless told otherwise."""
    number = next(_numbers)
    extra = {"tools": tools} if tools else {}
    return CallRecord(
        **{
            "call_id": f"call-{number:06}",
            "received_us": START_US + int((number if at_s is None else at_s) * 1_000_000),
            "worker": "w0",
            "slot": "main",
            "dialect": "openai",
            "requested_model": "big",
            "key_id": "k1",
            "provider": "up",
            "provider_model": "big-1",
            "outcome": Outcome.OK,
            "status": 200,
            "finish": "stop",
            "native_finish": "stop",
            "latency_ms": 100.0,
            "request": body_of(rows, **extra) if body is None else body,
            "answer": answer,
            **fields,
        }
    )
