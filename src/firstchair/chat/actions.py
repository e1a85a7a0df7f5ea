"""What a model does at a decision point: it calls tools, or it gives the turn's final reply."""

from __future__ import annotations

from typing import Literal

import msgspec

from firstchair.chat.messages import Message, ToolCall, assistant_message

ActionKind = Literal["tool_call", "final_reply"]


class Action(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One action. ``calls`` is empty exactly when ``kind`` is ``final_reply``."""

    kind: ActionKind
    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    thinking: str = ""

    def to_message(self) -> Message:
        """The assistant message that carries this action."""
        return assistant_message(self.text, thinking=self.thinking, calls=self.calls)


def action_of(message: Message) -> Action:
    """The action that an assistant message carries."""
    kind: ActionKind = "tool_call" if message.tool_calls else "final_reply"
    return Action(kind=kind, calls=message.tool_calls, text=message.text, thinking=message.thinking)


ProblemKind = Literal[
    "malformed_json",
    "unknown_tool",
    "schema_violation",
    "duplicate_call",
    "text_after_call",
    "unclosed_call",
    "unclosed_thinking",
    "truncated",
]

FATAL_PROBLEMS: frozenset[ProblemKind] = frozenset(
    {"malformed_json", "schema_violation", "unclosed_call", "unclosed_thinking"}
)
"""Problems that make the whole action ``malformed``; an unknown tool is a readable, wrong call.

Reasoning that never ends is no action at all: read as an empty reply it would count as a stop.
"""


class Problem(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is wrong with a model's text; ``path`` is a JSON path into the arguments for schema violations."""

    kind: ProblemKind
    message: str
    call: int | None = None
    path: str | None = None


class ParsedReply(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A model's raw text read in one tool-call syntax. Reading never raises."""

    calls: tuple[ToolCall, ...] = ()
    text: str = ""
    thinking: str = ""
    problems: tuple[Problem, ...] = ()
    salvaged: bool = False

    @property
    def malformed(self) -> bool:
        """Whether any problem is fatal."""
        return any(problem.kind in FATAL_PROBLEMS for problem in self.problems)

    def action(self) -> Action:
        """The action read, as far as it could be read."""
        kind: ActionKind = "tool_call" if self.calls else "final_reply"
        return Action(kind=kind, calls=self.calls, text=self.text, thinking=self.thinking)
