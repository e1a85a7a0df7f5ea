"""What happens next in one call: which routes are tried, and what a failure leads to. Pure decisions.

route_chain ──→ for each route: breaker open? ── skip
                                try ── answer ──→ done
                                 └─ failure ──→ RETRY here │ CONSTRAIN here │ NEXT route │ STOP
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from firstchair.chat.messages import Message, Tool, ToolCall
from firstchair.chat.schema_check import check_arguments
from firstchair.gateway.control.slots import Choice, Retries, SlotConfig, route_chain
from firstchair.gateway.dialects.base import Failure, FailureKind


class Verdict(StrEnum):
    """What a failed try leads to."""

    RETRY = "retry"
    """The same route once more, after a pause."""
    CONSTRAIN = "constrain"
    """The same route once more, with the answer bound to the tools' schemas."""
    NEXT = "next"
    """The next route, at once."""
    STOP = "stop"
    """The client gets this failure."""


class Decision(NamedTuple):
    verdict: Verdict
    wait_s: float = 0.0


_REPEATED = frozenset(
    {
        FailureKind.CONNECT,
        FailureKind.RATE_LIMIT,
        FailureKind.OVERLOADED,
        FailureKind.SERVER_ERROR,
        FailureKind.BAD_ANSWER,
    }
)
"""May pass by itself. A timeout may too, but has eaten the time for it."""
_PASSING = _REPEATED | {FailureKind.TIMEOUT}
_FINAL = frozenset({FailureKind.BAD_REQUEST})
"""The client's own fault: every route would say the same. A refused credential, an unpaid bill or an unknown model
is ours."""


def decide(
    failure: Failure, *, tries: int, constrained: bool, retries: Retries, left_s: float, rng: random.Random
) -> Decision:
    """What follows a failure before anything has been sent to the client.

    ``tries``: on this route so far, this one counted. ``constrained``: this one was the constrained repeat.
    ``left_s``: until the call's total timeout; no pause reaches past it.
    """
    kind = failure.kind
    if kind in _FINAL or left_s <= 0:
        return Decision(Verdict.STOP)
    if kind is FailureKind.MALFORMED_CALL:
        return Decision(Verdict.NEXT if constrained else Verdict.CONSTRAIN)
    if kind not in _REPEATED or tries >= retries.attempts:
        return Decision(Verdict.NEXT)
    wait_s = pause_s(failure.retry_after_s, tries, retries, rng)
    if wait_s > retries.max_backoff_s or wait_s >= left_s:
        return Decision(Verdict.NEXT)
    return Decision(Verdict.RETRY, wait_s)


def worth_telling(failures: Sequence[Failure]) -> Failure:
    """Which failure of the routes, in their order, the client hears: the last that may pass by itself, else the last.

    A fallback that could never have answered must not keep the client from trying again. Told that its prompt is too
    long for a small fallback, a harness would throw its history away because the primary was overloaded for a second.
    """
    return next((one for one in reversed(failures) if one.kind in _PASSING), failures[-1])


def pause_s(retry_after_s: float | None, tries: int, retries: Retries, rng: random.Random) -> float:
    """Seconds before the next try: what the provider asks for, else half to all of a doubling pause."""
    if retry_after_s is not None:
        return max(0.0, retry_after_s)
    full = min(retries.backoff_s * (1 << (tries - 1)), retries.max_backoff_s)
    return full * rng.uniform(0.5, 1.0)


def plan(slot: SlotConfig, *, session: str, key_id: str, call_id: str) -> tuple[Choice, ...]:
    """The routes to try for one call, in order."""
    if slot.canary is None:
        return route_chain(slot)
    return route_chain(slot, canary=drawn(slot, session=session, key_id=key_id, call_id=call_id))


def drawn(slot: SlotConfig, *, session: str, key_id: str, call_id: str) -> bool:
    """Whether the canary answers this call: the same for all calls of one session (key, call).

    Without a session header ``session`` is what the caller makes of the conversation's beginning. The draw hangs on
    the route too, so that the next canary does not meet the same unlucky sessions.
    """
    canary = slot.canary
    if canary is None or canary.percent <= 0:
        return False
    who = {"session": session or call_id, "key": key_id or call_id, "call": call_id}[canary.sticky_by]
    digest = hashlib.sha256(f"{slot.slot}\0{canary.route}\0{who}".encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:8]) < canary.percent / 100 * 2**64


def malformed_calls(message: Message, tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    """The calls of ``message`` that no tool can take: no JSON object, an unknown name, or against the schema."""
    if not message.tool_calls:
        return ()
    schemas: Mapping[str, Tool] = {tool.name: tool for tool in tools}
    return tuple(call for call in message.tool_calls if not _is_valid(call, schemas.get(call.name)))


def _is_valid(call: ToolCall, tool: Tool | None) -> bool:
    arguments = call.parsed()
    return tool is not None and arguments is not None and check_arguments(_known(tool.parameters), arguments) is None


def _known(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The first schema equal to this one: checks are kept by schema object, and every request brings new ones."""
    try:
        return _schema_of(msgspec.msgpack.encode(schema))
    except (OverflowError, RecursionError, msgspec.MsgspecError, UnicodeEncodeError):
        return schema


@lru_cache(1024)
def _schema_of(text: bytes) -> Mapping[str, Any]:
    schema: Mapping[str, Any] = msgspec.msgpack.decode(text)
    return schema
