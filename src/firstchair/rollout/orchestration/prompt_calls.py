"""The second way to call tools: inside the text. For a model that was trained on it, behind an API that is not told.

    native   tools= and tool_calls on the wire; the server's template writes and reads them
    prompt   the tools in the system message, calls and results as text; nothing about tools on the wire

The two never mix: in this mode no request carries a tool, a call or a tool message, and an answer in which the server
has parsed a call itself is an error. The text is what our pinned ``qwen3`` template writes, so that a model that was
trained with it reads what it has learnt. A model whose template is rendered here (``EnginePolicy`` with a
``Renderer``) gets exactly that already and needs no such wrapper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec

from firstchair.chat.formats.hermes import Hermes
from firstchair.chat.messages import Message, Tool, assistant_message, text_message
from firstchair.chat.openai_wire import tools_to_openai
from firstchair.chat.prompt_view import visible_text
from firstchair.chat.template import ChatTemplate, pinned
from firstchair.chat.tool_error import mark_error
from firstchair.engines.base import ErrorKind, Stop
from firstchair.rollout.engine_policy import truncated
from firstchair.rollout.policy import EpisodeTokens, Policy, PolicyReply, PolicyRequest, TokenPolicy

TEMPLATE = "qwen3"
FORMAT = Hermes()
_OPEN, _CLOSE = "<|im_start|>system\n", "<|im_end|>\n"


class PromptCalls:
    """``policy``, which is asked in plain text; itself a policy like any other."""

    def __init__(self, policy: Policy):
        self._policy, self.name = policy, policy.name

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """One reply per request."""
        asked = [replace(one, messages=as_text(one.messages, one.tools), tools=()) for one in requests]
        replies = await self._policy.act(asked)
        return [_read(reply, one.tools) for reply, one in zip(replies, requests, strict=True)]

    def take(self, episode_id: str) -> EpisodeTokens:
        """The tokens that the policy kept, where it keeps any."""
        return self._policy.take(episode_id) if isinstance(self._policy, TokenPolicy) else EpisodeTokens()


def as_text(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[Message, ...]:
    """The conversation in which tools, calls and results are text of system, assistant and user messages.

    Raises ``DataError`` for a message that text cannot show.
    """
    has_system = bool(messages) and messages[0].role == "system"
    system = with_tools(messages[0].text if has_system else "", tuple(tools))
    found = [text_message("system", system)] if system else []
    results: list[str] = []
    for index, message in enumerate(messages[has_system:], start=int(has_system)):
        if message.role == "tool":
            text = mark_error(visible_text(message, f"messages[{index}]"), message.is_error)
            results.append(f"<tool_response>\n{text}\n</tool_response>")
            continue
        if results:
            found.append(text_message("user", "\n".join(results)))
            results = []
        if message.tool_calls:
            written = FORMAT.render(message.tool_calls)
            text = f"{message.text}\n{written}" if message.text else written
            message = assistant_message(text, thinking=message.thinking)
        found.append(message)
    if results:
        found.append(text_message("user", "\n".join(results)))
    return tuple(found)


def with_tools(system: str, tools: tuple[Tool, ...]) -> str:
    """The system text with the tools, and how to call them, behind it."""
    rows = [{"role": "system", "content": system}]
    text = _template().render_marked(rows, tools_to_openai(tools), add_generation_prompt=False)
    return text.removeprefix(_OPEN).removesuffix(_CLOSE)


@lru_cache(maxsize=1)
def _template() -> ChatTemplate:
    return ChatTemplate(pinned(TEMPLATE), source=f"template {TEMPLATE}")


def _read(reply: PolicyReply, tools: Sequence[Tool]) -> PolicyReply:
    if reply.error is not None:
        return reply
    if reply.message is not None and reply.message.tool_calls:
        return PolicyReply(
            error="bad_request: the server parses tool calls itself; use native calling, or switch its parser off",
            error_kind=ErrorKind.BAD_REQUEST,
            call=reply.call,
        )
    parsed = FORMAT.parse(reply.raw_text, tools)
    action = parsed.action()
    if reply.action is not None and not action.thinking:
        action = msgspec.structs.replace(action, thinking=reply.action.thinking)
    return replace(
        reply,
        action=action,
        malformed=parsed.malformed or reply.stop is Stop.LENGTH,
        problems=parsed.problems + truncated(reply.stop),
        message=None,
    )
