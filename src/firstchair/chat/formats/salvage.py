"""Wrong habits that can be read with good will. Off by default; what was read so is marked ``salvaged``."""

from __future__ import annotations

import re

from firstchair.chat.formats.base import Reader
from firstchair.chat.formats.json_call import read_call, skip_space
from firstchair.chat.messages import ToolCall
from firstchair.core.jsontext import JsonProblem, dumps

_BOXED = re.compile(r"\\boxed\{\s*([A-Za-z_][\w.-]*)\s*:\s*([^{}]*)\}")
_FENCE = re.compile(r"```(?:json|tool_call|tool)?[ \t]*\n(.*?)\n?```", re.DOTALL)


def salvage_calls(reader: Reader) -> None:
    """Turn a doubled call, a fenced JSON call or ``\\boxed{tool: query}`` into proper calls, in place."""
    _drop_doubled(reader)
    if reader.calls:
        return
    text = "".join(reader.texts)
    for pattern, take in ((_FENCE, _take_fenced), (_BOXED, _take_boxed)):
        match = pattern.search(text)
        if match is not None and take(match, reader):
            left = (text[: match.start()] + text[match.end() :]).strip()
            reader.texts = [left] if left else []
            reader.salvaged = True
            return


def _drop_doubled(reader: Reader) -> None:
    doubled = {problem.call for problem in reader.problems if problem.kind == "duplicate_call"}
    if not doubled:
        return
    kept = [index for index in range(len(reader.calls)) if index not in doubled]
    place = {old: new for new, old in enumerate(kept)}
    reader.calls = [
        ToolCall(id=f"{reader.id_prefix}{place[index]}", name=call.name, arguments=call.arguments, extra=call.extra)
        for index, call in enumerate(reader.calls)
        if index in place
    ]
    old_problems, reader.problems = reader.problems, []
    for problem in old_problems:
        if problem.kind == "duplicate_call" or problem.call in doubled:
            continue
        call = place[problem.call] if problem.call is not None else None
        reader.problem(problem.kind, problem.message, call=call, path=problem.path)
    reader.salvaged = True


def _take_fenced(match: re.Match[str], reader: Reader) -> bool:
    body = match[1]
    try:
        call = read_call(body, skip_space(body, 0))
    except JsonProblem:
        return False
    if body[call.end :].strip():
        return False
    reader.call(call.name, call.arguments, call.value, call.call_id)
    return True


def _take_boxed(match: re.Match[str], reader: Reader) -> bool:
    name, query = match[1], match[2].strip()
    tool = reader.tools.get(name)
    if tool is None:
        return False
    required = tool.parameters.get("required") or list(tool.parameters.get("properties", {}))
    if len(required) != 1:
        return False
    value = {required[0]: query}
    reader.call(name, dumps(value), value)
    return True
