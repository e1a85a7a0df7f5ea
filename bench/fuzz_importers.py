"""Broken recordings by the hundred thousand: every importer either yields a session that the store can hold, or says
what is wrong with a ``DataError``. Anything else is a finding, printed with the record that caused it.

    python bench/fuzz_importers.py --inputs 100000 --seed 0
"""

from __future__ import annotations

import argparse
import collections
import copy
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from firstchair.core.errors import DataError, FirstchairError
from firstchair.core.jsonl import SkipBad
from firstchair.traces.importers import IMPORTERS, ImportOptions
from firstchair.traces.rows import rows_of, session_of

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "look", "description": "d " * 200, "parameters": SCHEMA}}]
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Oslo"}'}}
OPENAI = [
    {"role": "system", "content": "be good"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}, {"type": "image_url", "image_url": {"url": "x"}}]},
    {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "c1", "name": "look", "content": "Error: none"},
    {"role": "assistant", "content": "I do not know.", "refusal": None},
]
USAGE = {"prompt_tokens": 5, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 2}}
BLOCKS = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "look", "input": {"city": "Oslo"}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x", "is_error": True}]},
    {"role": "assistant", "content": [{"type": "text", "text": "so"}]},
]
PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "hi"}, {"type": "uri", "modality": "image", "uri": "x"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "look", "arguments": {"city": "Oslo"}}]},
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": [1]}]},
]
SPAN = {
    "name": "chat",
    "trace_id": "t",
    "span_id": "s",
    "start_time": "2026-01-01T00:00:00Z",
    "status": {"code": 2},
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": PARTS,
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "so"}]}]),
        "gen_ai.system_instructions": [{"type": "text", "content": "be good"}],
        "gen_ai.tool.definitions": [{"type": "function", "name": "look", "parameters": SCHEMA}],
        "gen_ai.usage.input_tokens": 3,
        "http.request.header.authorization": ["Bearer x"],
    },
}
EVENTS = [
    {"name": "gen_ai.user.message", "attributes": {"content": "hi"}},
    {"name": "gen_ai.assistant.message", "body": {"tool_calls": [CALL]}},
    {"name": "gen_ai.tool.message", "attributes": {"id": "c1", "content": "x"}},
    {"name": "gen_ai.choice", "attributes": {"index": 0, "message": json.dumps({"content": "so"})}},
]
OTLP = {
    "resourceSpans": [
        {
            "scopeSpans": [
                {
                    "spans": [
                        {
                            "traceId": "t",
                            "startTimeUnixNano": "1767225600000000000",
                            "attributes": [
                                {"key": "gen_ai.input.messages", "value": {"stringValue": json.dumps(PARTS)}},
                                {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "7"}},
                            ],
                        }
                    ]
                }
            ]
        }
    ]
}
SHAREGPT = [
    {"from": "human", "value": "hi"},
    {"from": "function_call", "value": json.dumps({"name": "look", "arguments": {"city": "Oslo"}})},
    {"from": "observation", "value": "<tool_response>\nx\n</tool_response>"},
    {"from": "gpt", "value": "<think>hm</think>so"},
]
HEAD = {"id": "a", "created_at": "2026-01-01", "labels": {"reward": 1.0}, "headers": {"authorization": "x"}}
EXPORTED = {
    "session_id": "s",
    "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    "turns": [{"start": 0, "end": 1}],
    "calls": [
        {
            "call_id": "m",
            "usage": {"input": 1},
            "tokens": {"prompt_ids": [1], "completion_ids": [2], "logprobs": [-0.5]},
        }
    ],
}

SEEDS: dict[str, list[dict[str, Any]]] = {
    "openai": [
        {**HEAD, "messages": OPENAI, "tools": TOOLS},
        {"session_id": "s", "request": {"messages": OPENAI[:2], "tools": TOOLS, "n": 1},
         "response": {"choices": [{"message": OPENAI[2], "finish_reason": "tool_calls"}], "usage": USAGE}},
    ],
    "anthropic": [
        {**HEAD, "messages": BLOCKS, "system": [{"type": "text", "text": "x"}],
         "tools": [{"name": "look", "input_schema": SCHEMA}]},
        {"request": {"messages": BLOCKS[:1]},
         "response": {"content": BLOCKS[1]["content"], "usage": {"input_tokens": 1}}},
    ],
    "conversations": [
        {**HEAD, "conversations": SHAREGPT, "system": "x", "tools": json.dumps(TOOLS)},
        {"messages": OPENAI},
    ],
    "tau": [{"task_id": 1, "trial": 0, "reward": 1.0, "info": {"task": {}}, "traj": OPENAI}],
    "otel": [SPAN, OTLP, {"trace_id": "u", "attributes": {}, "events": EVENTS}],
    "firstchair": [EXPORTED],
}  # fmt: skip

JUNK: list[Any] = [
    None, True, 0, -1, 1.5, 2**70, 1e308, "", "x", "c1", "user", "\u2028\x00", "[", "{}", [], {}, [[]], [None],
    {"": {}},
    {"type": "text"}, {"role": "tool"}, "2026-13-01", "a" * 600, [1, "x"], {"name": 3, "value": {}}, "\U0001f600",
]  # fmt: skip


def mutate(rng: random.Random, value: Any) -> Any:
    """``value`` with a few of its nodes replaced, removed, doubled, swapped or renamed."""
    value = copy.deepcopy(value)
    for _ in range(rng.randrange(1, 4)):
        holders = [node for node in nodes(value) if isinstance(node, dict | list) and node]
        if not holders:
            break
        holder = rng.choice(holders)
        key = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
        kind = rng.randrange(6)
        if kind <= 2:
            holder[key] = copy.deepcopy(rng.choice(JUNK))
        elif kind == 3:
            del holder[key]
        elif kind == 4:
            holder[key] = copy.deepcopy(rng.choice(nodes(value)))
        elif isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[f"{key}{rng.choice('sX ')}"] = holder.pop(key)
    return value


def nodes(value: Any) -> list[Any]:
    """``value`` and everything in it."""
    found = [value]
    for node in found:
        found.extend(node.values() if isinstance(node, dict) else node if isinstance(node, list) else ())
    return found


def text_of(rng: random.Random, value: Any) -> bytes:
    """One line of JSON, now and then with a byte changed."""
    try:
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5).encode()
    except (ValueError, RecursionError):
        return b"{}"
    if rng.random() < 0.15:
        at = rng.randrange(len(text))
        text = text[:at] + bytes([rng.choice(b'"{}[]\\,:x0\xff ')]) + text[at + rng.randrange(3) :]
    return text.replace(b"\n", b" ")


def run_file(format_name: str, lines: list[bytes], path: Path) -> tuple[int, int, list[str]]:
    """Import one file of records; ``(sessions, bad records, findings)``."""
    path.write_bytes(b"\n".join(lines) + b"\n")
    skip = SkipBad(allowed=len(lines) * 10)
    sessions = 0
    try:
        for imported in IMPORTERS[format_name](path, ImportOptions(skip=skip)):
            rows = rows_of(imported.session, origin=imported.origin, stored_at="")
            if session_of(rows.session) != imported.session:
                return sessions, len(skip.skipped), [f"{imported.origin}: changed by the store"]
            sessions += 1
    except DataError as error:
        # The record scanner cannot go on after a byte that is no record; lines can.
        if format_name not in ("tau", "otel"):
            return sessions, len(skip.skipped), [f"stopped: {error}"]
        skip.skipped.append(error)
    except FirstchairError as error:
        return sessions, len(skip.skipped), [f"not a DataError: {error!r}"]
    except Exception as error:  # noqa: BLE001 - this is what the script looks for
        return sessions, len(skip.skipped), [f"{type(error).__name__}: {error}"]
    return sessions, len(skip.skipped), []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-file", type=int, default=25)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    began, totals = time.perf_counter(), collections.Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "in.jsonl"
        while totals["inputs"] < options.inputs:
            name = rng.choice(list(SEEDS))
            lines = [text_of(rng, mutate(rng, rng.choice(SEEDS[name]))) for _ in range(options.per_file)]
            sessions, bad, findings = run_file(name, lines, path)
            totals += {"inputs": len(lines), "sessions": sessions, "bad": bad}
            if findings:
                # Down to the one record that does it, so that it can be read.
                culprits = [line for line in lines if run_file(name, [line], path)[2]] or [b"only together"]
                print(f"{name}: {findings[0]}\n  {culprits[0][:400]!r}")
                totals["findings"] += 1
                if totals["findings"] >= 10:
                    break
    took = time.perf_counter() - began
    print(", ".join(f"{count:,} {name}" for name, count in totals.items()) + f" in {took:,.0f} s")
    sys.exit(1 if totals["findings"] else 0)


if __name__ == "__main__":
    main()
