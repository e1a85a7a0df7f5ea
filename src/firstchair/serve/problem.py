"""A client's conversation as the one problem that the policy is shown, and the system message beside it.

one user message          Problem: <its text>, as in every rollout that a policy has learnt from
an earlier conversation   the turns before, each with its speaker, then what the user says now
system messages           behind our instructions, as rules of the answer
budget, preference        a line each, behind the problem
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from firstchair.chat.messages import Message
from firstchair.rollout.orchestration import prompt

_SPEAKERS = MappingProxyType({"user": "User", "assistant": "Assistant", "tool": "Result"})


def system_of(messages: Sequence[Message]) -> str:
    """Our instructions, and behind them what the client's system messages ask of the answer."""
    wanted = "\n\n".join(message.text for message in messages if message.role == "system" and message.text)
    if not wanted:
        return prompt.SYSTEM
    return f"{prompt.SYSTEM}\n\nWhoever asks has set these rules for the answer; keep to them:\n{wanted}"


def problem_of(messages: Sequence[Message], *, budget_usd: float | None, preference: Mapping[str, float]) -> str:
    """What stands behind ``Problem: ``."""
    *before, last = [message for message in messages if message.role != "system"]
    parts = [last.text]
    if before:
        turns = "\n\n".join(_turn(message) for message in before)
        parts = [f"The conversation so far:\n\n{turns}", f"Now the user says:\n\n{last.text}"]
    if preference:
        parts.append(prompt.wish(preference))
    if budget_usd is not None:
        parts.append(f"All models together may cost at most ${budget_usd:.6f}".rstrip("0").rstrip(".") + ".")
    return "\n\n".join(parts)


def _turn(message: Message) -> str:
    speaker = _SPEAKERS[message.role]
    calls = [f"{speaker} called {call.name}: {call.arguments}" for call in message.tool_calls]
    return "\n".join([*([f"{speaker}: {message.text}"] if message.text or not calls else []), *calls])
