"""Conversations on which renderers come apart: the built-in cases of ``firstchair parity``."""

from __future__ import annotations

from firstchair.chat.messages import Message, TextPart, Tool, ToolCall, assistant_message, text_message, tool_result
from firstchair.chat.parity import Case

TOOLS = (
    Tool(
        name="Read",
        description="Read a file of the user's workspace.",
        parameters={
            "type": "object",
            "properties": {"path": {"type": "string", "description": "Where it lies – “quotes” & <angles>"}},
            "required": ["path"],
        },
    ),
    Tool(
        name="web_search",
        description="Search the web.",
        parameters={"type": "object", "properties": {"query": {"type": "string"}, "limit": {"type": "integer"}}},
    ),
)


def fixture_cases() -> tuple[Case, ...]:
    """Plain talk, system messages, tools, parallel calls, errors, reasoning, odd white space and Unicode."""
    read = ToolCall.of("call_1", "Read", {"path": "notes/ü.txt"})
    search = ToolCall.of("call_2", "web_search", {"query": "weather in Łódź", "limit": 3})
    user, system = text_message("user", "What is in my notes?"), text_message("system", "You are careful.")
    parts = Message(role="user", content=(TextPart(text="one"), TextPart(text="two")))
    return (
        Case("plain", (user, assistant_message("Nothing."), text_message("user", "Sure?"))),
        Case("system", (system, user)),
        Case("two-systems", (system, text_message("system", "Today is quiet."), user)),
        Case("tools", (system, user), TOOLS),
        Case("call", (system, user, assistant_message("I look.", calls=(read,)), tool_result(read, "milk")), TOOLS),
        Case("null-content", (user, assistant_message(calls=(read,)), tool_result(read, "")), TOOLS),
        Case(
            "parallel",
            (user, assistant_message(calls=(read, search)), tool_result(read, "a\n\nb"), tool_result(search, "{}")),
            TOOLS,
        ),
        Case("error", (user, assistant_message(calls=(read,)), tool_result(read, "gone", is_error=True)), TOOLS),
        Case("thinking", (user, assistant_message("It is milk.", thinking="I know."), text_message("user", "Yes."))),
        Case(
            "thinking-with-calls",
            (user, assistant_message("", thinking="I look.", calls=(read,)), tool_result(read, "milk")),
            TOOLS,
        ),
        Case("newlines", (text_message("user", "\n\n a \n"), assistant_message("b\n\n"), text_message("user", " c"))),
        Case("unicode", (text_message("user", "é e\u0301 漢字 🙂 \u2028 \u00a0 \u200d"),)),
        Case("parts", (parts,)),
        Case("empty", (text_message("user", ""), assistant_message(""), text_message("user", "?"))),
        Case("quoted-tags", (text_message("user", "what do <tool_call> and <think> mean?"),)),
    )
