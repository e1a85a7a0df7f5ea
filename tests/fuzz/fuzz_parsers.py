"""Throw broken input at everything that reads what others wrote: tool-call syntaxes, both wires, JSON Lines.

    python tests/fuzz/fuzz_parsers.py --n 120000 --seed 1

Every input comes from one seed, which is printed; a finding stops the run with the input that shows it. What must
hold: ``parse`` never raises, wires and readers raise ``DataError`` alone, what a wire accepts comes back as it was,
and no input takes a second of processor time.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from firstchair.chat.anthropic_wire import messages_from_anthropic, messages_to_anthropic, tools_from_anthropic
from firstchair.chat.formats import FORMATS
from firstchair.chat.messages import Tool, ToolCall
from firstchair.chat.openai_wire import (
    message_from_openai_response,
    messages_from_openai,
    messages_to_openai,
    tools_from_openai,
)
from firstchair.chat.schema_check import check_arguments
from firstchair.core.errors import DataError
from firstchair.core.jsonl import SkipBad, parse_line, read_jsonl

SLOW_S = 1.0
TOOLS = (
    Tool(
        name="Read",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string"}, "n": {"type": ["integer", "null"], "minimum": 0}},
            "required": ["path"],
        },
    ),
    Tool(name="odd", parameters={"type": "any", "properties": 3, "$ref": "#/nowhere"}),
    Tool(name="deep", parameters={"properties": {"a": {"pattern": "^x+$", "not": {"const": "xx"}}}}),
)
PIECES = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>"),
    *("<function=Read>", "<parameter=path>", "</parameter>", "</function>", "<function=", "```json\n", "```"),
    *("\\boxed{Read: x}", "{", "}", "[", "]", '"', ":", ",", ";", '"name"', '"arguments"', '"parameters"', '"input"'),
    *(
        '"Read"',
        '"odd"',
        "\\u0000",
        "\\ud800",
        "\ud800",
        "NaN",
        "-Infinity",
        "1e999",
        "9" * 400,
        "\u2028",
        "\x00",
        "\n",
    ),
    *(
        " ",
        "é",
        "🙂",
        "\ufdd0",
        "\ufffd",
        '{"name": "Read", "arguments": ',
        '{"path": "a"}',
        "[[[[",
        "]]]]",
        "null",
        "true",
    ),
]
CALL = ToolCall.of("call_0", "Read", {"path": "a", "n": 3})
TEXTS = [
    "Done.",
    *(
        thinking + text + syntax.render((CALL,) * count) + after
        for syntax in FORMATS.values()
        for thinking in ("", "<think>\nhm\n</think>\n\n")
        for text in ("", "I look.\n")
        for count in (1, 2)
        for after in ("", " ok")
    ),
]
OPENAI: list[Any] = [
    {"role": "system", "content": "s"},
    {
        "role": "user",
        "content": [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": "data:,"}}],
    },
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "r",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "Read", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "[tool_error] x"},
    {"role": "assistant", "content": "done", "refusal": None},
]
ANTHROPIC: list[Any] = [
    {"role": "user", "content": [{"type": "text", "text": "u", "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "text", "text": "a"},
            {"type": "tool_use", "id": "c", "name": "Read", "input": {"path": "a"}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "x"}], "is_error": True}
        ],
    },
]
TOOL_ROWS: list[Any] = [
    {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}},
    {"name": "f", "description": "d", "input_schema": {"type": "object"}},
]
ODD: list[Any] = [
    *(None, True, 0, -1, 1.5, "", "x", [], {}, [[]], {"type": "text"}, "tool", "assistant", "\ud800", 10**30),
    *({"role": "user"}, {"type": "tool_result"}, [None], {"": {}}, "[tool_error] ", "text", "tool_use", "c"),
]


def broken_text(rng: random.Random) -> str:
    """A reply: a sound one with pieces cut out, doubled, swapped or put in, or a heap of pieces."""
    if rng.random() < 0.3:
        return "".join(rng.choice(PIECES) for _ in range(rng.randrange(40)))
    text = rng.choice(TEXTS)
    for _ in range(rng.randrange(1, 5)):
        place, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        text = rng.choice(
            [
                text[:place] + rng.choice(PIECES) + text[place:],
                text[:place] + text[end:],
                text[:place],
                text[:end] + text[place:],
                text[:place] + rng.choice(PIECES) * rng.randrange(1, 80) + text[place:],
            ]
        )
    return text


def broken_value(rng: random.Random, value: Any) -> Any:
    """A copy of ``value`` with something in it removed, replaced, added or doubled."""
    if rng.random() < 0.12:
        return rng.choice(ODD)
    if isinstance(value, dict) and value:
        out = dict(value)
        key = rng.choice(list(out))
        choice = rng.random()
        if choice < 0.15:
            del out[key]
        elif choice < 0.25:
            out[rng.choice(["role", "type", "content", "x_new", "id", "text", "name"])] = rng.choice(ODD)
        else:
            out[key] = broken_value(rng, out[key])
        return out
    if isinstance(value, list) and value:
        rows = list(value)
        index = rng.randrange(len(rows))
        choice = rng.random()
        if choice < 0.1:
            del rows[index]
        elif choice < 0.2:
            rows.insert(index, rows[rng.randrange(len(rows))])
        elif choice < 0.3:
            other = rng.randrange(len(rows))
            rows[index], rows[other] = rows[other], rows[index]
        else:
            rows[index] = broken_value(rng, rows[index])
        return rows
    return rng.choice(ODD) if rng.random() < 0.6 else value


def check_format(rng: random.Random) -> Callable[[], str]:
    """One syntax reads one broken reply."""
    name, text, salvage = rng.choice(list(FORMATS)), broken_text(rng), rng.random() < 0.3

    def run() -> str:
        reply = FORMATS[name].parse(text, TOOLS if len(text) % 3 else (), salvage)
        assert salvage or not reply.salvaged
        assert all(problem.call is None or problem.call < len(reply.calls) for problem in reply.problems)
        assert all(call.parsed() is not None for call in reply.calls) or reply.malformed
        return "malformed" if reply.malformed else "read"

    run.__doc__ = f"{name} {text!r}"
    return run


def check_openai(rng: random.Random) -> Callable[[], str]:
    """The OpenAI wire reads broken messages; what it takes comes back."""
    rows = broken_value(rng, OPENAI)

    def run() -> str:
        messages = messages_from_openai(rows, strict=rng.random() < 0.5)
        assert messages_to_openai(messages) == list(rows)
        messages_to_anthropic_or_refuse(messages)
        return "read"

    run.__doc__ = f"openai {rows!r}"
    return run


def messages_to_anthropic_or_refuse(messages: Any) -> None:
    """What came over one wire goes over the other, or is refused by name."""
    try:
        messages_to_anthropic(messages, dropped=[], malformed="carry")
    except DataError as error:
        if not error.field:
            raise AssertionError(f"refused without a field: {error}") from error


def check_anthropic(rng: random.Random) -> Callable[[], str]:
    """The Anthropic wire reads broken messages; what it takes and gives is stable."""
    rows = broken_value(rng, ANTHROPIC)

    def run() -> str:
        messages = messages_from_anthropic(rows, rng.choice([None, "s", [{"type": "text", "text": "s"}]]))
        messages_to_openai(messages, dropped=[])
        prompt = messages_to_anthropic(messages, dropped=[], missing_result="insert")
        again = messages_from_anthropic(prompt.messages, prompt.system)
        assert messages_to_anthropic(again, dropped=[], missing_result="insert") == prompt
        return "read"

    run.__doc__ = f"anthropic {rows!r}"
    return run


def check_tools(rng: random.Random) -> Callable[[], str]:
    """Tool lists and responses of both wires."""
    rows = broken_value(rng, TOOL_ROWS)
    response = broken_value(rng, {"choices": [{"message": OPENAI[2], "finish_reason": "stop"}]})

    def run() -> str:
        for read, value in (
            (tools_from_openai, rows),
            (tools_from_anthropic, rows),
            (message_from_openai_response, response),
        ):
            try:
                read(value)  # type: ignore[operator]
            except DataError:
                continue
        return "read"

    run.__doc__ = f"tools {rows!r} response {response!r}"
    return run


def check_line(rng: random.Random) -> Callable[[], str]:
    """One line of a JSON Lines file, as bytes."""
    text = json.dumps(broken_value(rng, OPENAI[2]), ensure_ascii=rng.random() < 0.5)
    raw = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(rng.randrange(4)):
        place = rng.randrange(len(raw) + 1)
        if rng.random() < 0.5 and place < len(raw):
            raw[place] = rng.randrange(256)
        else:
            raw[place:place] = rng.choice(PIECES).encode("utf-8", "surrogatepass") * rng.randrange(1, 90)
    line = bytes(raw)

    def run() -> str:
        assert isinstance(parse_line(line), dict)
        return "read"

    run.__doc__ = f"line {line!r}"
    return run


def check_file(rng: random.Random) -> Callable[[], str]:
    """A whole file of such lines: good ones are read, bad ones are named with their number."""
    lines = [json.dumps({"n": n}).encode() if rng.random() < 0.5 else rng.randbytes(20) for n in range(50)]
    blob = rng.choice([b"", b"\xef\xbb\xbf"]) + rng.choice([b"\n", b"\r\n"]).join(lines)

    def run() -> str:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory) / "rows.jsonl"
            path.write_bytes(blob)
            skip = SkipBad(allowed=10**9)
            count = sum(1 for _ in read_jsonl(path, skip=skip))
            assert all(error.line is not None and error.path for error in skip.skipped)
            assert count + len(skip.skipped) > 0
        return "read"

    run.__doc__ = f"file {blob!r}"
    return run


KINDS = [
    (check_format, 50),
    (check_openai, 20),
    (check_anthropic, 15),
    (check_tools, 4),
    (check_line, 10),
    (check_file, 1),
]


def say(line: str) -> None:
    """To stdout, at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> int:
    """Run; exit 1 at the first finding."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--n", type=int, default=120_000)
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    options.add_argument("--seconds", type=float, default=900.0, help="stop after this long, whatever --n says")
    chosen = options.parse_args()
    rng = random.Random(chosen.seed)
    say(f"seed {chosen.seed}")
    for tool in TOOLS:  # the first use of a schema imports jsonschema
        check_arguments(tool.parameters, {"path": 3})
    seen: Counter[str] = Counter()
    slowest, started = 0.0, time.perf_counter()
    makers, weights = zip(*KINDS, strict=True)
    for number in range(chosen.n):
        case = rng.choices(makers, weights)[0](rng)
        kind = (case.__doc__ or "").split(" ", 1)[0]
        begun = time.process_time()
        try:
            seen[f"{kind} {case()}"] += 1
        except DataError:
            seen[f"{kind} refused"] += 1
            if kind in FORMATS:
                say(f"input {number} of seed {chosen.seed}: parse raised\n{case.__doc__}")
                return 1
        except Exception as error:  # noqa: BLE001 - a finding is any other exception, shown with its input
            say(f"input {number} of seed {chosen.seed}: {error!r}\n{case.__doc__}")
            return 1
        took = time.process_time() - begun
        slowest = max(slowest, took)
        if took > SLOW_S:
            say(f"input {number} of seed {chosen.seed} took {took:.1f} s\n{case.__doc__[:2000]}")
            return 1
        if time.perf_counter() - started > chosen.seconds:
            break
    total, elapsed = sum(seen.values()), time.perf_counter() - started
    for name, count in sorted(seen.items()):
        say(f"{name:24} {count:8,}")
    say(f"{total:,} inputs in {elapsed:.1f} s, {total / elapsed:,.0f}/s, slowest {slowest * 1000:.1f} ms, no finding")
    return 0


if __name__ == "__main__":
    sys.exit(main())
