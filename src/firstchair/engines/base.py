"""The one interface to a model: requests in, generations out, token ids and log-probabilities with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, Tool


class Stop(StrEnum):
    """Why a generation ended; never merged into one another."""

    END = "end"
    """The model gave its end-of-turn token."""
    LENGTH = "length"
    """``max_new_tokens`` or the context window was reached."""
    REFUSAL = "refusal"
    """The provider's filter stopped it."""
    CANCELLED = "cancelled"
    ERROR = "error"
    """No generation: ``Generation.error`` says why. Counted apart, never as a model failure."""


class ErrorKind(StrEnum):
    """What went wrong where there is no generation. None of these says anything about the model."""

    CONTEXT_OVERFLOW = "context_overflow"
    """The prompt does not fit the server's context window; shorten it, retrying cannot help."""
    RATE_LIMITED = "rate_limited"
    TIMEOUT = "timeout"
    CONNECTION = "connection"
    """Refused, reset, or closed in the middle of an answer."""
    SERVER = "server"
    """5xx and its like."""
    AUTH = "auth"
    """A key that is missing, wrong or not allowed, or an account without money."""
    BAD_REQUEST = "bad_request"
    """Any other 4xx: the request itself is at fault."""
    BAD_RESPONSE = "bad_response"
    """An answer that is not what the protocol promises."""
    ENGINE = "engine"
    """The engine's own code failed."""


@dataclass(frozen=True)
class Sampling:
    """How to sample. The default is greedy."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    seed: int | None = None


@dataclass(frozen=True)
class Request:
    """One thing to generate: from ``prompt_ids`` when given, else from ``messages`` and ``tools``."""

    request_id: str
    messages: tuple[Message, ...] = ()
    tools: tuple[Tool, ...] = ()
    prompt_ids: tuple[int, ...] | None = None
    sampling: Sampling = Sampling()
    group: str = ""
    """Requests of one group (a session, a GRPO prompt) share a prefix; engines may exploit it."""
    constrain: bool = False
    """Force tool calls to be well-formed by the schemas of ``tools``."""
    json_schema: Mapping[str, Any] | None = None
    """Ask for a reply that is one JSON value of this schema. Only servers of OpenAI's chat wire are asked; elsewhere
    ``Generation.dropped`` says that they were not. None need obey: who reads the reply must check it."""


@dataclass(frozen=True)
class Generation:
    """What came back for one request."""

    request_id: str
    stop: Stop
    text: str = ""
    """Decoded with special tokens kept (``<tool_call>`` is visible), the end-of-turn token removed."""
    message: Message | None = None
    """Set instead of ``text`` by engines whose server parses tool calls itself."""
    prompt_ids: tuple[int, ...] | None = None
    """``None`` when the server does not tell."""
    ids: tuple[int, ...] | None = None
    """Sampled ids, the end-of-turn token included when it was sampled; ``None`` when the server does not tell."""
    logprobs: tuple[float, ...] | None = None
    """Nats, one per id, of the distribution sampled from at temperature 1 (raw); ``None`` when unknown."""
    prompt_tokens: int = 0
    latency_s: float = 0.0
    error: str | None = None
    error_kind: ErrorKind | None = None
    """Set exactly when ``stop`` is ``error`` and the engine can tell."""
    output_tokens: int | None = None
    """The server's own count where ``ids`` is ``None``."""
    cached_tokens: int = 0
    """How many of ``prompt_tokens`` the server took from its prefix cache."""
    dropped: tuple[str, ...] = ()
    """Fields of the request that the server's wire cannot carry and that were left out, each with its place."""
    revision: str = ""
    """Hash of the weights that sampled it; empty when the engine cannot tell."""
    usage: TokenCounts | None = None
    """The server's counters over all tries that it answered, failed ones too; ``None`` when it does not tell."""
    billed_nano: int | None = None
    """Nano-USD that the server says it charged for those tries; ``None`` when it does not tell."""
    served_model: str = ""
    """The exact model that the server says it used."""
    tries: int = 1
    """Requests that were sent for it."""


@dataclass(frozen=True)
class EngineInfo:
    """What identifies the serving side in a run record."""

    engine: str
    model: str
    revision: str = ""
    """Hash of the weights where it can be computed."""
    template_hash: str = ""
    context_window: int | None = None
    dtype: str = ""
    enforces_constrain: bool = False
    """Whether ``Request.constrain`` is kept here, token by token; otherwise a server is asked, and need not obey."""
    details: dict[str, Any] = field(default_factory=dict)


@runtime_checkable
class Engine(Protocol):
    """A model that generates. All methods may be called from one event loop."""

    def info(self) -> EngineInfo:
        """What this engine serves."""
        ...

    def generate(self, requests: Sequence[Request]) -> AsyncIterator[Generation]:
        """Yield one generation per request, in any order, as each is finished.

        A request that fails yields ``Stop.ERROR`` with its reason; the others go on.
        """
        ...

    async def cancel(self, request_id: str) -> bool:
        """Stop one request; it yields ``Stop.CANCELLED`` with what it has. ``False`` when unknown or done."""
        ...

    async def close(self) -> None:
        """Release the model or the connections."""
        ...
