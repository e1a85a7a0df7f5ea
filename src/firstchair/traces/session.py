"""The session: one recorded conversation, the record of the trace store and of every export."""

from __future__ import annotations

import itertools
from typing import Any, Literal

import msgspec

from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import DataError
from firstchair.core.jsontext import dumps, sha256_text

SCHEMA_VERSION = "1.0"

Source = Literal["production", "scripted", "synthetic", "rollout"]


class _Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Frozen; fields that hold their default are left out of JSON."""


class Turn(_Record, frozen=True):
    """``messages[start:end]``: from one user message to the reply that ends the turn."""

    start: int
    end: int


class Usage(_Record, frozen=True):
    """Token counts of one model call; the four are disjoint (input excludes both cache counters)."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write: int = 0


class CallTokens(_Record, frozen=True):
    """What the engine itself read and wrote, so that training never re-tokenises."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Nats, one per completion id: of the distribution that ``logprob_kind`` names."""
    logprob_kind: str = "raw"
    """``raw`` (temperature 1, nothing cut off) or ``processed`` (after temperature and truncation)."""

    def check(self, *, field: str) -> None:
        """Raise ``DataError`` unless ids and logprobs belong together."""
        if len(self.logprobs) != len(self.completion_ids):
            raise DataError(
                f"found {len(self.logprobs)} logprobs for {len(self.completion_ids)} completion ids; "
                "expected one each",
                field=field,
            )
        if any(number < 0 for number in (*self.prompt_ids, *self.completion_ids)):
            raise DataError("found a negative token id", field=field)
        # x - logsumexp(x) may round a hair above zero; NaN fails every comparison.
        if not all(float("-inf") < value <= 1e-3 for value in self.logprobs):
            raise DataError("found a logprob that is not a finite number of at most 0", field=field)


class ModelCall(_Record, frozen=True):
    """One request to a model."""

    call_id: str
    slot: str = "orchestrator"
    provider: str = ""
    model: str = ""
    started_at: str = ""
    """ISO 8601, UTC."""
    latency_ms: float | None = None
    ttft_ms: float | None = None
    usage: Usage = Usage()
    cost_usd: float | None = None
    error: str | None = None
    finish_reason: str | None = None
    """Why the model stopped, in the provider's own word (``stop``, ``end_turn``, ``length``, …)."""
    message_index: int | None = None
    """The assistant message that this call produced."""
    tokens: CallTokens | None = None
    """Token ids and logprobs, where the engine gave them."""


class Session(_Record, frozen=True):
    """A recorded conversation. ``messages`` is complete: system messages stand in it, in place."""

    session_id: str
    source: Source = "production"
    created_at: str = ""
    """ISO 8601, UTC; empty when the recording does not say."""
    catalog_id: str = ""
    """Which tools were offered: ``catalog_id_of(tools)``; the schemas live once beside the sessions."""
    messages: tuple[Message, ...] = ()
    turns: tuple[Turn, ...] = ()
    calls: tuple[ModelCall, ...] = ()
    labels: dict[str, Any] = {}
    """What is known about the session as a whole (``task_id``, ``reward``, ``trial``); filters use it."""
    meta: dict[str, Any] = {}
    """What the importer kept beside."""
    context_end: int = 0
    """``messages[:context_end]`` were handed to the model when the recording began: assistant messages there are
    context, not decisions of this session (a branch after a rewritten history, a resumed conversation)."""
    schema_version: str = SCHEMA_VERSION

    @property
    def system(self) -> str:
        """The text of the system messages that open the conversation, joined by blank lines."""
        texts: list[str] = []
        for message in self.messages:
            if message.role != "system":
                break
            texts.append(message.text)
        return "\n\n".join(texts)


def turns_of(messages: tuple[Message, ...]) -> tuple[Turn, ...]:
    """Cut a conversation into turns: each begins at a user message that follows something else than a user
    message, and ends before the next one. What precedes the first user message belongs to no turn.
    """
    starts = [
        index
        for index, message in enumerate(messages)
        if message.role == "user" and (index == 0 or messages[index - 1].role != "user")
    ]
    edges = [*starts, len(messages)]
    return tuple(Turn(start=start, end=end) for start, end in itertools.pairwise(edges))


def catalog_id_of(tools: tuple[Tool, ...]) -> str:
    """Content address of a tool list: SHA-256 of its JSON with keys in the order received; empty for no tools.

    Key order counts, unlike in ``content_id``: templates print schemas into the prompt in that order, so two
    orders are two prompts, and one must not be handed out for the other.
    """
    return sha256_text(dumps(msgspec.to_builtins(tools))) if tools else ""
