"""A model of ours as an actor, so that ``build_app`` serves it over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import RunFailed
from firstchair.core.jsontext import content_id
from firstchair.engines.base import Engine, Sampling
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.policy import PolicyRequest

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer


class EngineActor:
    """Asks the engine for every action; requests that come together are generated together.

    It keeps nothing between requests: each prompt is rendered from the messages that came with it.
    """

    def __init__(self, engine: Engine, renderer: Renderer | None = None, sampling: Sampling | None = None):
        self._engine, self._renderer, self._sampling = engine, renderer, sampling

    async def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """What the model does at the end of ``messages``. Text that cannot be read as an action is a reply.

        Raises ``RunFailed`` when the engine cannot answer. Call ids count the calls of the conversation, so that
        none comes twice.
        """
        # Its beginning names a conversation: the engine finds what it has computed for the calls before this one.
        name = content_id(msgspec.to_builtins(messages[:2]))[:16]
        # A policy of its own, because one keeps the token streams of the episodes that it was asked about last.
        policy = EnginePolicy(self._engine, self._renderer, self._sampling, record_tokens=False)
        (reply,) = await policy.act([PolicyRequest(name, tuple(messages), tuple(tools))])
        action = reply.action
        if reply.error is not None or (action is None and not reply.malformed):
            raise RunFailed(f"the engine gave no answer: {reply.error}")
        if action is None or (reply.malformed and not action.calls):
            return Action(kind="final_reply", text=reply.raw_text)
        number = sum(len(message.tool_calls) for message in messages)
        calls = tuple(
            msgspec.structs.replace(call, id=f"call_{number + place}") for place, call in enumerate(action.calls)
        )
        return msgspec.structs.replace(action, calls=calls)
