"""What every tool-call syntax shares: the protocol, think blocks, and the collector of what a reply says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from firstchair.chat.actions import ParsedReply, Problem, ProblemKind
from firstchair.chat.messages import Tool, ToolCall
from firstchair.chat.schema_check import check_arguments
from firstchair.core.jsontext import canonical

THINK_OPEN, THINK_CLOSE = "<think>", "</think>"


class ToolCallFormat(Protocol):
    """One syntax in which a model writes tool calls."""

    @property
    def name(self) -> str:
        """Key in ``FORMATS``."""
        ...

    def render(self, calls: Sequence[ToolCall]) -> str:
        """The calls as a model of this syntax writes them; arguments byte for byte."""
        ...

    def parse(
        self, text: str, tools: Sequence[Tool] = (), salvage: bool = False, *, id_prefix: str = "call_"
    ) -> ParsedReply:
        """Read a reply. Never raises: what is wrong is listed in ``problems``.

        With ``tools`` names and arguments are checked against them. ``salvage`` also reads wrong habits and
        says so in ``salvaged``. Calls without an id of their own get ``id_prefix`` and their index.
        """
        ...


class Reader:
    """Collects calls, text and problems of one reply."""

    def __init__(self, tools: Sequence[Tool], id_prefix: str):
        self.tools = {tool.name: tool for tool in tools}
        self.id_prefix = id_prefix
        self.calls: list[ToolCall] = []
        self.texts: list[str] = []
        self.problems: list[Problem] = []
        self.thinking = ""
        self.salvaged = False
        self._seen: dict[str, int] = {}

    def problem(self, kind: ProblemKind, message: str, *, call: int | None = None, path: str | None = None) -> None:
        """Note one problem."""
        self.problems.append(Problem(kind=kind, message=message, call=call, path=path))

    def call(self, name: str, arguments: str, value: Any, call_id: str | None = None) -> None:
        """Add a call that could be read, and check it. ``value`` is ``arguments`` parsed."""
        index = len(self.calls)
        self.calls.append(ToolCall(id=call_id or f"{self.id_prefix}{index}", name=name, arguments=arguments))
        if not isinstance(value, dict):
            self.problem(
                "schema_violation", f"arguments are {json_type(value)}; expected an object", call=index, path="$"
            )
            return
        if self.tools:
            tool = self.tools.get(name)
            if tool is None:
                self.problem("unknown_tool", f"no tool is named {name!r}", call=index)
            elif tool.parameters and (fault := check_arguments(tool.parameters, value)) is not None:
                self.problem("schema_violation", fault.message, call=index, path=fault.path)
        key = f"{name}\n{canonical(value)}"
        if key in self._seen:
            self.problem("duplicate_call", f"same call as number {self._seen[key]}", call=index)
        else:
            self._seen[key] = index

    def broken_call(self, name: str, arguments: str, message: str, kind: ProblemKind = "malformed_json") -> None:
        """Add a call that could not be read: its raw text is kept as its arguments."""
        index = len(self.calls)
        self.calls.append(ToolCall(id=f"{self.id_prefix}{index}", name=name, arguments=arguments))
        self.problem(kind, message, call=index)

    def take_thinking(self, text: str) -> str:
        """Take the think blocks that open ``text``; returns what follows them.

        An unclosed block is a problem and swallows the rest: nothing in it was said or done.
        """
        found: list[str] = []
        rest = text
        while (stripped := rest.lstrip()).startswith(THINK_OPEN):
            inner, closed, after = stripped[len(THINK_OPEN) :].partition(THINK_CLOSE)
            found.append(inner.strip("\n"))
            # Templates write up to two newlines between a think block and the reply.
            rest = after.removeprefix("\n").removeprefix("\n")
            if not closed:
                self.problem("unclosed_thinking", f"{THINK_OPEN} is never closed")
                rest = ""
                break
        self.thinking = "\n".join(part for part in found if part)
        return rest

    def text_between(self, piece: str, *, before_call: bool) -> None:
        """Add visible text that stands before, between or after calls."""
        if before_call:
            piece = piece.removesuffix("\n")
        if not piece.strip():
            return
        if self.calls:
            self.problem("text_after_call", f"text after a call: {piece.strip()[:80]!r}")
        self.texts.append(piece)

    def reply(self) -> ParsedReply:
        """Everything collected."""
        return ParsedReply(
            calls=tuple(self.calls),
            text="".join(self.texts),
            thinking=self.thinking,
            problems=tuple(self.problems),
            salvaged=self.salvaged,
        )


def json_type(value: Any) -> str:
    """The JSON word for a parsed value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    return {"str": "a string", "list": "an array", "dict": "an object"}.get(type(value).__name__, "not JSON")
