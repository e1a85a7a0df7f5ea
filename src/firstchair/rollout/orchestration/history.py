"""What of a long conversation is still shown: system and problem, and the newest exchanges that fit."""

from __future__ import annotations

from firstchair.chat.messages import Message


def shown_history(messages: tuple[Message, ...], max_chars: int) -> tuple[Message, ...]:
    """``messages`` without the oldest exchanges that make the history longer than ``max_chars`` characters.

    An exchange is a message of the model's and what came back for it. What stands before the first one always stays,
    and so does the last exchange, however long it is.
    """
    starts = [index for index, message in enumerate(messages) if message.role == "assistant"]
    if len(starts) < 2:
        return messages
    sizes = [size_of(message) for message in messages]
    total = sum(sizes[starts[0] :])
    keep = 0
    while total > max_chars and keep < len(starts) - 1:
        total -= sum(sizes[starts[keep] : starts[keep + 1]])
        keep += 1
    return messages if not keep else messages[: starts[0]] + messages[starts[keep] :]


def size_of(message: Message) -> int:
    """Characters of a message: text, reasoning, and the names and arguments of calls."""
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.text) + len(message.thinking) + calls
