"""What acts in an environment: a model behind an engine, a scripted expert, or an API."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from firstchair.chat.actions import Action, Problem
from firstchair.chat.messages import Message, Tool
from firstchair.chat.token_conversation import TokenConversation
from firstchair.engines.base import ErrorKind, Stop
from firstchair.traces.session import ModelCall


@dataclass(frozen=True)
class PolicyRequest:
    """One decision to take."""

    episode_id: str
    """Equal for all decisions of an episode: a prefix shared, a cache key."""
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...]
    seed: int | None = None
    """Of the whole episode's sampling; ``None`` leaves it to the policy."""
    max_tokens: int | None = None
    """The most tokens that this action may have; ``None`` leaves it to the policy."""
    left_out: int = 0
    """How many messages of the conversation the environment no longer shows: they are not among ``messages``."""

    @property
    def request_id(self) -> str:
        """Names the decision: the conversation only grows, so its length does."""
        return f"{self.episode_id}:{len(self.messages) + self.left_out}"


@dataclass(frozen=True)
class PolicyReply:
    """One decision taken, or why there is none. Exactly one of three holds: ``error`` is set (nothing is said about
    the model), ``malformed`` is true (the model wrote what cannot be read), or ``action`` is to be carried out.
    """

    action: Action | None = None
    """As far as it could be read when ``malformed``."""
    malformed: bool = False
    problems: tuple[Problem, ...] = ()
    raw_text: str = ""
    """What the model wrote, where the engine gives text."""
    message: Message | None = None
    """The model's message verbatim (signatures, provider fields); ``action.to_message()`` when ``None``."""
    stop: Stop = Stop.END
    error: str | None = None
    error_kind: ErrorKind | None = None
    call: ModelCall | None = None
    """Model, latency and usage, for the session's record."""


class Policy(Protocol):
    """Takes decisions for many episodes, each as it comes; many calls are under way at once.

    ``name`` goes into the record.
    """

    name: str

    async def act(self, requests: Sequence[PolicyRequest]) -> list[PolicyReply]:
        """One reply per request, in the same order. What fails is a reply with ``error``, not an exception."""
        ...


@dataclass(frozen=True)
class EpisodeTokens:
    """What the model read and wrote in one episode, token by token."""

    segments: tuple[TokenConversation, ...] = ()
    """Each ends with a sampled token. More than one where the template or the environment rewrote the history; every
    sampled token is trained in exactly one of them."""
    revisions: tuple[str, ...] = ()
    """The weights (``Generation.revision``) of each call, in the order of the sampled spans of all segments. A call
    whose tokens or log-probabilities the engine did not tell is missing here."""


@runtime_checkable
class TokenPolicy(Policy, Protocol):
    """A policy that keeps the tokens of every episode it acts in."""

    def take(self, episode_id: str) -> EpisodeTokens:
        """Hand over the tokens of an episode that is over, and forget it. Nothing for an unknown one."""
        ...


class Actor(Protocol):
    """A scripted expert: a plain function of what a model would see."""

    def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The action at the end of ``messages``."""
        ...


class AsyncActor(Protocol):
    """A model as an actor: the same, with waiting in between."""

    async def act(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Action:
        """The action at the end of ``messages``."""
        ...
