"""What every wire dialect translates to and from, and the interface that each dialect's one file implements.

    client bytes → read_request → ChatRequest → write_request → upstream body
    upstream body → read_answer → ChatAnswer → write_answer → client body
    upstream events → StreamReader → StreamEvent … → StreamWriter → client bytes

All of it is pure: no I/O, no clock. A field without a counterpart is refused (``BadRequest`` naming it) or listed in
``dropped``; nothing disappears silently.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, Protocol

import msgspec

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message, Tool
from firstchair.chat.wire_request import Finish

DialectName = Literal["openai", "responses", "anthropic"]
"""Chat Completions, Responses, Messages."""


class ToolChoice(msgspec.Struct, frozen=True):
    """Which tools may be called: ``auto``, ``none``, ``required`` (any of them), or ``tool`` with its ``name``."""

    kind: Literal["auto", "none", "required", "tool"]
    name: str | None = None


class ChatRequest(msgspec.Struct, kw_only=True):
    """One request, dialect aside. ``None`` means that the client did not say."""

    dialect: DialectName
    model: str
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: tuple[str, ...] = ()
    stream: bool = False
    include_usage: bool = False
    """The client wants the usage at the end of an OpenAI stream; Messages and Responses streams always carry it."""
    thinking: dict[str, Any] | None = None
    """Anthropic's ``thinking`` object as received."""
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    """Chat Completions' form (``json_object`` or ``json_schema``)."""
    received_s: int = 0
    """When it arrived, in seconds since 1970: ``created`` of an OpenAI answer. Set by the caller, who has a clock."""
    user: str | None = None
    """The client's own name for its end user (``user``, ``metadata.user_id``)."""
    extra: dict[str, Any] = {}
    """Every other field of the body, verbatim: it goes back out in the same dialect and is listed when dropped."""


class EngineTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids and logprobs as the engine itself read and wrote them, where the server returns them."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class ChatAnswer(msgspec.Struct, kw_only=True):
    """One answer, dialect aside."""

    id: str
    model: str
    message: Message
    finish: Finish
    native_finish: str | None = None
    """The provider's own word for the ending."""
    stop_sequence: str | None = None
    usage: TokenCounts | None = None
    """``None`` when the provider said nothing; never guessed here."""
    raw_usage: dict[str, Any] | None = None
    tokens: EngineTokens | None = None
    dialect: DialectName | None = None
    """Whose words ``raw_usage``, ``native_finish`` and ``extra`` are."""
    extra: dict[str, Any] = {}
    """Fields beside, verbatim, for an answer in the same dialect (``system_fingerprint``, ``service_tier``)."""


# --- streams ----------------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """The answer begins. No content yet: a failure up to here can still fall back."""

    id: str
    model: str
    usage: TokenCounts | None = None
    raw_usage: dict[str, Any] | None = None
    dialect: DialectName | None = None
    """Who speaks. Chat Completions has one reasoning, one text and then the calls: the blocks of its stream are put
    together so, whatever order they came in. Elsewhere blocks stand where they came."""
    extra: dict[str, Any] = {}
    """Goes into ``ChatAnswer.extra``."""


class BlockStart(msgspec.Struct, frozen=True, kw_only=True):
    """Block ``index`` opens. ``call_id`` and ``name`` for tool calls; ``data`` holds a block we do not know."""

    index: int
    kind: Literal["text", "thinking", "tool_call", "raw"]
    call_id: str | None = None
    name: str | None = None
    data: dict[str, Any] = {}
    provider: Literal["openai", "anthropic", "other"] = "other"
    """Whose block ``data`` is."""
    extra: dict[str, Any] = {}
    """``extra`` of the part or call, as in its canonical form (``{"anthropic": {...}}``)."""


class BlockDelta(msgspec.Struct, frozen=True, kw_only=True):
    """More of an open block: its text, its reasoning, or the text of its arguments."""

    index: int
    text: str


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """The provider's proof of an open thinking block."""

    index: int
    signature: str


class BlockEnd(msgspec.Struct, frozen=True, kw_only=True):
    """Block ``index`` is complete; it never opens again."""

    index: int
    extra: dict[str, Any] = {}
    """More of the block's ``extra``, known only now (``{"anthropic": {"citations": [...]}}``)."""


class End(msgspec.Struct, frozen=True, kw_only=True):
    """The terminal event: without it a stream has failed, whatever it has sent."""

    finish: Finish
    native_finish: str | None = None
    stop_sequence: str | None = None
    usage: TokenCounts | None = None
    raw_usage: dict[str, Any] | None = None
    tokens: EngineTokens | None = None
    extra: dict[str, Any] = {}
    """Goes into ``ChatAnswer.extra``."""
    message_extra: dict[str, Any] = {}
    """Goes into ``Message.extra`` (``{"openai": {"refusal": ...}}``)."""


StreamEvent = Start | BlockStart | BlockDelta | Signature | BlockEnd | End


class StreamReader(Protocol):
    """Reads one upstream stream. One instance a stream."""

    def feed(self, event: str | None, data: str) -> list[StreamEvent]:
        """The canonical events in one server-sent event (``event:`` name and joined ``data:`` lines).

        Raises ``StreamFault`` for an error event, broken JSON, or an event out of order (a delta for a closed block).
        """

    def close(self) -> None:
        """The bytes have ended. Raises ``StreamFault`` when the terminal event has not been seen."""


class StreamWriter(Protocol):
    """Writes one stream to a client. One instance a stream."""

    dropped: list[str]
    """Names of what the events held and the dialect cannot carry, so far."""

    def write(self, event: StreamEvent) -> bytes:
        """The server-sent events for ``event``; may be empty."""

    def fail(self, failure: Failure) -> bytes:
        """The dialect's error event; nothing follows it."""


# --- failures ---------------------------------------------------------------------------------------------------


class FailureKind(StrEnum):
    """What went wrong, dialect aside: it decides about fallback, breaker, status and the words of each dialect."""

    BAD_REQUEST = "bad_request"
    AUTHENTICATION = "authentication"
    PERMISSION = "permission"
    NOT_FOUND = "not_found"
    TOO_LARGE = "too_large"
    RATE_LIMIT = "rate_limit"
    BUDGET = "budget"
    CONTEXT_OVERFLOW = "context_overflow"
    OVERLOADED = "overloaded"
    SERVER_ERROR = "server_error"
    CONNECT = "connect"
    TIMEOUT = "timeout"
    BAD_ANSWER = "bad_answer"
    """The provider answered something that is no answer: broken JSON, no terminal event, an unknown finish."""
    MALFORMED_CALL = "malformed_call"


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """A call that did not give an answer."""

    kind: FailureKind
    message: str
    """For the client; never holds a credential or a body."""
    status: int | None = None
    """HTTP status of the provider, where there was one."""
    param: str | None = None
    retry_after_s: float | None = None
    native: str | None = None
    """The provider's own error type or code."""


class StreamFault(Exception):
    """A stream broke; ``failure`` says how."""

    def __init__(self, failure: Failure):
        self.failure = failure
        super().__init__(failure.message)


# --- the interface ----------------------------------------------------------------------------------------------


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """What a request is written for: the provider's model and what the slot decides for fields that do not match."""

    model: str
    max_tokens_default: int = 4096
    """Sent where the dialect requires a limit and the client gave none."""
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    tool_images: Literal["inline", "user_turn", "refuse"] = "user_turn"
    mid_system: Literal["user_turn", "refuse"] = "user_turn"
    call_ids: Literal["openai", "anthropic", "mistral"] | None = None
    """Which of ``ID_RULES`` tool-call ids must fit; ``None``: the dialect's own."""
    reasoning: Literal["reasoning_content", "reasoning", "both", "drop"] = "both"
    """Where earlier reasoning stands in a Chat Completions request; ``drop`` for OpenAI itself, which refuses it."""
    want_tokens: bool = False
    """Ask an OpenAI-compatible server for token ids and logprobs."""


class Written(msgspec.Struct, frozen=True):
    """A body to send, and the names of the fields that the dialect cannot carry."""

    body: dict[str, Any]
    dropped: tuple[str, ...] = ()


class Dialect(Protocol):
    """One wire format. Implementations hold no state."""

    name: DialectName

    def read_request(self, body: Mapping[str, Any]) -> ChatRequest:
        """Raises ``BadRequest`` with ``param`` for what cannot be read."""

    def read_tools(self, body: Mapping[str, Any]) -> tuple[Tool, ...]:
        """The tools of a request by themselves: most calls need no more of it. Raises ``BadRequest``."""

    def write_request(self, request: ChatRequest, target: Target) -> Written:
        """Raises ``BadRequest`` for what must not be dropped."""

    def read_answer(self, body: Mapping[str, Any]) -> ChatAnswer:
        """Raises ``DataError`` for what is no answer."""

    def write_answer(self, answer: ChatAnswer, request: ChatRequest, *, model: str) -> Written:
        """``model``: the name the client asked for."""

    def reader(self) -> StreamReader: ...

    def writer(self, request: ChatRequest, *, model: str) -> StreamWriter: ...

    def read_failure(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        """The failure in an error answer of a provider; total, never raises. ``headers`` have lower-case names."""

    def write_failure(self, failure: Failure, *, request_id: str) -> tuple[int, dict[str, Any]]:
        """HTTP status and body in the words of this dialect."""
