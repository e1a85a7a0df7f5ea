"""The scripted expert: follows the routing policy over the same interface as a model, from messages alone.

With ``mistake_rate`` 0 it is the oracle: its action is right in any state. With a rate above 0 it breaks the
policy now and then, as a real orchestrator does, so that recordings hold what corrections must fix.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from random import Random

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.core.errors import ConfigError
from firstchair.rollout.desk.mistakes import mistaken
from firstchair.rollout.desk.plans import Step
from firstchair.rollout.desk.routing import Decision, decide, read_turn


class Teacher:
    """The expert. It keeps no state: equal messages get equal actions, whatever was asked before."""

    def __init__(self, mistake_rate: float = 0.0, seed: int = 0):
        """``mistake_rate`` is the share of decisions that break the policy. Raises ``ConfigError`` outside 0 to 1."""
        if not 0.0 <= mistake_rate <= 1.0:
            raise ConfigError(f"mistake_rate: found {mistake_rate}; expected a share from 0 to 1")
        self.mistake_rate, self.seed = mistake_rate, seed

    def act(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> Action:
        """The next action after ``messages``. ``tools`` are what is on offer; a tool that is not is never called."""
        turn = read_turn(messages)
        decision = decide(turn)
        if self.mistake_rate:
            rng = Random(f"{self.seed}:{_fingerprint(messages)}")
            if rng.random() < self.mistake_rate:
                decision = mistaken(turn, decision, rng)
        offered = {tool.name for tool in tools}
        if tools and isinstance(decision.wanted, Step) and decision.wanted.tool not in offered:
            return Action(kind="final_reply", text="Sorry, I have no tool for that.", thinking=decision.reason)
        return action_for(decision, messages)


def oracle(messages: Sequence[Message]) -> Decision:
    """The right next action in this context, with the policy row and the evidence for it."""
    return decide(read_turn(messages))


def action_for(decision: Decision, messages: Sequence[Message]) -> Action:
    """A decision as an action; call ids count the calls of the conversation."""
    wanted = decision.wanted
    if not isinstance(wanted, Step):
        return Action(kind="final_reply", text=wanted.text, thinking=decision.reason)
    number = sum(len(message.tool_calls) for message in messages)
    call = ToolCall.of(f"call_{number}", wanted.tool, dict(wanted.arguments))
    return Action(kind="tool_call", calls=(call,), thinking=decision.reason)


def _fingerprint(messages: Sequence[Message]) -> int:
    """A number that depends on what was said and done, not on ids or on how a wire carried it."""
    value = 0
    for message in messages:
        value = zlib.crc32(message.text.strip().encode("utf-8", "surrogatepass"), value)
        for call in message.tool_calls:
            value = zlib.crc32(f"{call.name}{call.arguments}".encode("utf-8", "surrogatepass"), value)
    return value
