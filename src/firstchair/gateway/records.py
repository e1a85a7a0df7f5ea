"""What the gateway writes down of one call: the record that the spool carries, and from it ledger row and trace.

One request is one record, whatever became of it: requests = ledger rows = traces by construction.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from firstchair.catalog.token_counts import TokenCounts
from firstchair.chat.messages import Message
from firstchair.gateway.dialects.base import DialectName, EngineTokens, FailureKind


class Outcome(StrEnum):
    """How a call ended, as the client saw it."""

    OK = "ok"
    REFUSED = "refused"
    """Answered with a 4xx by the gateway itself: key, budget, limit, or a request that cannot be translated."""
    FAILED = "failed"
    INCOMPLETE = "incomplete"
    """Content was sent and then the stream broke; kept out of golden sets and training."""
    CLIENT_DISCONNECTED = "client_disconnected"


Variant = Literal["primary", "fallback", "canary", "shadow"]


class Attempt(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One try at one provider."""

    provider: str
    model: str
    failure: FailureKind | None = None
    status: int | None = None
    ms: float = 0.0


class CallRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call."""

    call_id: str
    received_us: int
    """Microseconds since the epoch, UTC."""
    worker: str
    slot: str
    slot_version: int = 0
    dialect: DialectName
    requested_model: str
    stream: bool = False
    key_id: str = ""
    session: str = ""
    """From the client's session header; empty: stitched by prefix."""
    user: str = ""
    variant: Variant = "primary"
    shadow_of: str = ""
    """The call whose copy this is, for a shadow."""
    provider: str = ""
    """Who answered, or the last one tried; empty when nobody was asked."""
    provider_model: str = ""
    response_model: str = ""
    """The model name in the answer."""
    attempts: tuple[Attempt, ...] = ()
    outcome: Outcome
    status: int
    """HTTP status sent to the client (200 for a stream that broke later)."""
    failure: FailureKind | None = None
    error: str = ""
    finish: str = ""
    native_finish: str = ""
    latency_ms: float = 0.0
    ttft_ms: float | None = None
    """Until the first content reached the client; ``None`` when there was none."""
    upstream_ms: float | None = None
    usage: TokenCounts | None = None
    estimated: bool = False
    """The provider said nothing (a disconnect, a broken stream): counted from the text."""
    raw_usage: dict[str, Any] | None = None
    cost_nano: int | None = None
    """``None``: no price is known for the model."""
    counterfactual_nano: int | None = None
    """What the slot's incumbent would have cost for the same tokens."""
    price_version: str = ""
    dropped: tuple[str, ...] = ()
    malformed_calls: int = 0
    template_hash: str = ""
    """How the provider's server renders prompts, as the configuration says; empty: it does not."""
    agreement: str = ""
    """Shadow only: ``same`` | ``same_tool`` | ``different`` | ``unscored`` against the primary's action."""
    request: bytes = b""
    """The client's body, redacted, else byte for byte as sent; empty when it lies in ``request_blob``."""
    request_blob: str = ""
    """SHA-256 of a large body in the blob folder."""
    answer: Message | None = None
    """As far as it came."""
    tokens: EngineTokens | None = None


def encode_record(record: CallRecord) -> bytes:
    return msgspec.msgpack.encode(record)


_decoder = msgspec.msgpack.Decoder(CallRecord)


def decode_record(data: bytes) -> CallRecord:
    return _decoder.decode(data)
