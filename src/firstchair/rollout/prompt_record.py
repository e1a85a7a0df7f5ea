"""A prompt for reinforcement learning: what the model sees at one decision, and what would be right there."""

from __future__ import annotations

from typing import Any

import msgspec

from firstchair.chat.actions import Action
from firstchair.chat.messages import Message, Tool
from firstchair.traces.decisions import Accepted, DecisionPoint


class PromptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One decision as a task of ``DecisionEnvironment``."""

    id: str
    messages: tuple[Message, ...]
    """The prompt: everything before the decision, nothing after."""
    tools: tuple[Tool, ...] = ()
    gold: Action
    """For the verifier, never for the model."""
    accept: tuple[Accepted, ...] = ()
    """What counts as well."""
    known_bad: tuple[Action, ...] = ()
    """Recorded mistakes."""
    matchers: dict[str, dict[str, str]] = {}
    """Tool → field path below the arguments → how it is compared with gold's; by equality where none is named."""
    category: str = ""
    """What rewards are routed by."""
    meta: dict[str, Any] = {}

    @property
    def task_id(self) -> str:
        """As a task it is named by its id."""
        return self.id

    def decision(self) -> DecisionPoint:
        """The decision that it was made from, as far as scoring needs it."""
        return DecisionPoint(
            dp_id=self.id,
            session_id="",
            turn=-1,
            seq=0,
            context_end=len(self.messages),
            observed=self.gold,
            gold=self.gold,
            accept=self.accept,
            known_bad=self.known_bad,
        )
