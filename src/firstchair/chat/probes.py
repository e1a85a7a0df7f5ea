"""What a chat template does, found out by rendering small conversations with known words in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from firstchair.chat.template import ChatTemplate, without_spans
from firstchair.chat.turns import STYLES, TurnStyle, turn_start
from firstchair.core.errors import DataError

_RAW = '{"probe_key":  "probe_value"}'
"""Two spaces: only a template that passes text through can reproduce them."""
_TOOL: Mapping[str, Any] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "probe",
        "parameters": {"type": "object", "properties": {"probe_key": {"type": "string"}}},
    },
}
_USER: Mapping[str, Any] = {"role": "user", "content": "probe_user"}
_RESULT: Mapping[str, Any] = {
    "role": "tool",
    "content": "probe_result",
    "tool_call_id": "call00001",
    "name": "probe_tool",
}
_MARKERS: Mapping[str, str] = MappingProxyType(
    {"[TOOL_CALLS]": "mistral", "<function=": "qwen_xml", "<tool_call>": "hermes"}
)
"""What stands around a rendered call → its syntax; the first that matches."""


@dataclass(frozen=True)
class TemplateFacts:
    """What was found."""

    style: TurnStyle | None
    """``None``: turns are found by the template's generation marks."""
    suffix: str
    """What the generation prompt holds after the assistant header."""
    arguments_as: str
    """See ``prompt_view.ArgumentsAs``."""
    call_syntax: str | None
    shows_tools: bool
    shows_results: bool


def probe(template: ChatTemplate) -> TemplateFacts:
    """Look at how ``template`` renders turns, tools and calls."""
    opening = _try(template, [_USER], [], True)
    closed = _try(template, [_USER], [], False)
    style, suffix = None, ""
    if opening is not None and closed is not None and opening.startswith(closed):
        prompt = opening[len(closed) :]
        for candidate in STYLES:
            if candidate.header in prompt:
                style, suffix = candidate, prompt.partition(candidate.header)[2]
                break
    arguments_as, written = _how_calls_are_written(template)
    tools = _try(template, [_USER], [_TOOL], True)
    answered = _try(template, [_USER, _call(_form(arguments_as)), _RESULT], [_TOOL], True)
    return TemplateFacts(
        style=style,
        suffix=suffix,
        arguments_as=arguments_as,
        call_syntax=_syntax(written),
        shows_tools=tools is not None and "probe_tool" in tools,
        shows_results=answered is not None and "probe_result" in answered,
    )


def _form(arguments_as: str) -> Any:
    return {"probe_key": "probe_value"} if arguments_as == "object" else _RAW


def _call(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "probe_tool", "arguments": arguments}
    calls = [{"type": "function", "id": "call00001", "function": function}]
    return {"role": "assistant", "content": "", "tool_calls": calls, **more}


def _how_calls_are_written(template: ChatTemplate) -> tuple[str, str]:
    as_text = _try(template, [_USER, _call(_RAW), _RESULT], [_TOOL], False)
    if as_text is not None and _RAW in as_text:
        return "text", as_text
    as_object = _try(template, [_USER, _call({"probe_key": "probe_value"}), _RESULT], [_TOOL], False)
    if as_object is not None and "probe_value" in as_object:
        return "object", as_object
    return "content", ""


def _syntax(written: str) -> str | None:
    # Instructions before the user's message may mention other syntaxes.
    written = written.partition("probe_user")[2]
    for marker, name in _MARKERS.items():
        if marker in written:
            return name
    # Llama writes a bare object, with its own word for the arguments.
    return "llama_json" if '"parameters": {"probe_key"' in written else None


Render = Callable[[Sequence[Mapping[str, Any]], bool], str]


def is_append_only(template: ChatTemplate, arguments_as: str) -> bool:
    """Whether every prompt of a set of varied conversations is a prefix of the rendered whole."""
    call = _call(_form(arguments_as)) if arguments_as != "content" else {"role": "assistant", "content": "as text"}
    for messages in _conversations(call):
        whole = _try(template, messages, [_TOOL], False)
        if whole is None:
            continue
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            prompt = _try(template, messages[:index], [_TOOL], True)
            upto = _try(template, messages[: index + 1], [_TOOL], False)
            if prompt is None or upto is None or not (whole.startswith(upto) and upto.startswith(prompt)):
                return False
    return True


def is_local(template: ChatTemplate, arguments_as: str) -> bool:
    """Whether what is added after an assistant turn reads the same when all before its user turn is left out.

    The tools are left out too. Found on the conversations of ``is_append_only``, which the template must be.
    """
    call = _call(_form(arguments_as)) if arguments_as != "content" else {"role": "assistant", "content": "as text"}
    for messages in _conversations(call):
        roles = [message["role"] for message in messages]
        for last, role in enumerate(roles):
            follows = last + 1 < len(roles) and roles[last + 1] != "assistant"
            if role != "assistant" or not follows:
                continue
            end = next((index for index in range(last + 1, len(roles)) if roles[index] == "assistant"), len(roles))
            whole, own = messages[:end], messages[turn_start(roles, last) : end]
            if _added(template, whole, [_TOOL], end - last) != _added(template, own, [], end - last):
                return False
    return True


def _added(
    template: ChatTemplate, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], count: int
) -> str | None:
    """The text that the last ``count`` − 1 messages and the next prompt add to the assistant turn before them."""
    upto = _try(template, messages[: len(messages) - count + 1], tools, False)
    full = _try(template, messages, tools, True)
    return None if upto is None or full is None or not full.startswith(upto) else full[len(upto) :]


def _conversations(call: dict[str, Any]) -> list[list[Mapping[str, Any]]]:
    system = {"role": "system", "content": "probe_system"}
    thought = {"reasoning_content": "probe_thought"}
    reply = {"role": "assistant", "content": "probe_reply"}
    again = {"role": "user", "content": "again"}
    spaced = {"role": "assistant", "content": "\n probe </think> reply \n"}
    return [
        [_USER, reply, again, reply, again, reply],
        [system, _USER, {**call, **thought}, _RESULT, {**reply, **thought}, again, {**reply, **thought}],
        [
            system,
            _USER,
            call,
            _RESULT,
            {**call, "content": "probe_text"},
            _RESULT,
            _RESULT,
            reply,
            again,
            call,
            _RESULT,
            reply,
        ],
        [_USER, spaced, again, spaced],
    ]


def _try(
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
    add_generation_prompt: bool,
) -> str | None:
    try:
        return without_spans(template.render_marked(messages, tools, add_generation_prompt))
    except DataError:
        return None
