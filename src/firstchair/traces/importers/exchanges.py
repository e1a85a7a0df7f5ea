"""Logs of single requests (``{"request": …, "response": …}``) as conversations: shared by the two API formats."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from firstchair.chat.messages import Message, Tool
from firstchair.core.errors import DataError
from firstchair.traces.branches import RecordedCall, branch_sessions, merge_calls
from firstchair.traces.checks import check_session
from firstchair.traces.importers.base import (
    Imported,
    ImportOptions,
    OfferedTools,
    ToolLists,
    content_name,
    mark_errors,
    read_head,
    safe_id,
)
from firstchair.traces.importers.spool import CallSpool, SpooledCall
from firstchair.traces.redact import redact, redact_text
from firstchair.traces.session import CallTokens, ModelCall, Usage
from firstchair.traces.times import microseconds

_IDS = ("session_id", "conversation_id", "thread_id", "trace_id")
_USED = frozenset(
    {"request", "response", "error", "latency_ms", "ttft_ms", "cost_usd", "slot", "provider", "call_id"}
)


@dataclass(frozen=True)
class Dialect:
    """What differs between the API formats."""

    provider: str
    used: frozenset[str]
    """Fields of a request that make up its messages and tools."""
    read_prompt: Callable[[Mapping[str, Any]], tuple[Message, ...]]
    read_tools: Callable[[Any], tuple[Tool, ...]]
    read_reply: Callable[[Mapping[str, Any]], Message]
    read_usage: Callable[[Mapping[str, Any]], Usage]
    read_finish: Callable[[Mapping[str, Any]], str | None]
    """The provider's own word for why it stopped."""
    read_tokens: Callable[[Mapping[str, Any]], CallTokens | None] = lambda _: None
    """Token ids and log-probabilities, where the server gave them."""


class ExchangeReader:
    """Collects the exchanges of a file, then yields the sessions that they make up."""

    def __init__(self, dialect: Dialect, lists: ToolLists, options: ImportOptions, spool: CallSpool):
        self._dialect, self._lists, self._options, self._spool = dialect, lists, options, spool
        self._tools: dict[str, OfferedTools] = {"": OfferedTools()}

    def take(self, row: Mapping[str, Any], origin: str, tools_text: bytes = b"") -> None:
        """Read one exchange; ``tools_text`` is its tool list byte for byte. Raises ``DataError`` with ``field``."""
        request, response = row.get("request"), row.get("response")
        if not isinstance(request, dict):
            raise DataError(f"found {type(request).__name__}; expected the request's JSON object", field="request")
        if response is not None and not isinstance(response, dict):
            raise DataError(f"found {type(response).__name__}; expected the response's JSON object", field="response")
        with within("request"):
            prompt = mark_errors(self._dialect.read_prompt(request), self._options.error_prefixes or ())
            offered = self._offered(request.get("tools"), tools_text)
        failed = row.get("error") is not None or not response or "error" in response
        with within("response"):
            reply = () if failed or response is None else (self._dialect.read_reply(response),)
        head = read_head(row, self._options, used=_USED | set(_IDS), default="production")
        self._tools.setdefault(offered.catalog_id, offered)
        call = RecordedCall(
            prompt=prompt,
            reply=reply,
            catalog_id=offered.catalog_id,
            created_at=head.created_at,
            call=self._model_call(row, request, response or {}, failed, head.created_at),
            meta={**head.meta, **_parameters(request, self._dialect), "labels": head.labels, "source": head.source},
        )
        self._spool.put(_key(row, prompt), microseconds(head.created_at), call, origin)

    def _offered(self, tools: Any, text: bytes) -> OfferedTools:
        if not tools:
            return OfferedTools()
        found = self._lists.of_text(text) if text else self._lists.of_value(tools)
        return OfferedTools(*found, text.decode("utf-8") or None)

    def _model_call(
        self,
        row: Mapping[str, Any],
        request: Mapping[str, Any],
        response: Mapping[str, Any],
        failed: bool,
        started_at: str,
    ) -> ModelCall:
        error = row.get("error", response.get("error"))
        return ModelCall(
            call_id=str(row.get("call_id") or response.get("id") or ""),
            slot=str(row.get("slot") or "orchestrator"),
            provider=str(row.get("provider") or self._dialect.provider),
            model=str(response.get("model") or request.get("model") or ""),
            started_at=started_at,
            latency_ms=_number(row, "latency_ms"),
            ttft_ms=_number(row, "ttft_ms"),
            usage=self._dialect.read_usage(response),
            cost_usd=_number(row, "cost_usd"),
            error=_error_kind(error) if failed else None,
            finish_reason=None if failed else self._dialect.read_finish(response),
            tokens=None if failed else self._dialect.read_tokens(response),
        )

    def sessions(self) -> Iterator[Imported]:
        """Every conversation's branches as checked sessions; bad ones go to ``options.skip``."""
        for key, calls in self._spool.conversations():
            yield from group_sessions(key, calls, self._options, self._tools)


def group_sessions(
    key: str, calls: list[SpooledCall], options: ImportOptions, tools: Mapping[str, OfferedTools]
) -> Iterator[Imported]:
    """The sessions of one conversation. ``labels`` and ``source`` wait in the meta of its first call."""
    origin = calls[0].origin
    first = calls[0].call.meta
    recorded = [
        msgspec.structs.replace(
            spooled.call, meta={k: v for k, v in spooled.call.meta.items() if k not in ("labels", "source")}
        )
        for spooled in calls
    ]
    branches = merge_calls(recorded)
    if key.startswith(UNNAMED):
        # No id in the log: the name follows from the content, so that importing again adds nothing.
        key = f"exchange-{content_name([(branch.messages, branch.calls) for branch in branches])}"
    for session in branch_sessions(branches, session_id=key, source=first["source"], labels=dict(first["labels"])):
        try:
            check_session(session)
        except DataError as error:
            options.skip.take(error.at(origin))
            continue
        offered = tools[session.catalog_id]
        yield Imported(session, offered.tools, origin, offered.received)


UNNAMED = "~"
"""Begins the key of a conversation that has no id of its own."""


def _key(row: Mapping[str, Any], prompt: tuple[Message, ...]) -> str:
    for name in _IDS:
        if isinstance(row.get(name), str | int) and safe_id(str(row[name])):
            return safe_id(str(row[name]))
    # Calls of one conversation share how it begins; whether they really continue one another is for merging to say.
    opening = []
    for message in prompt:
        opening.append(message)
        if message.role == "user":
            break
    return UNNAMED + hashlib.sha256(msgspec.json.encode(opening)).hexdigest()[:24]


class within:
    """Prefixes the field of a ``DataError`` with the object that it stands in."""

    def __init__(self, prefix: str):
        self._prefix = prefix

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, DataError):
            field = f"{self._prefix}.{error.field}" if error.field else self._prefix
            raise DataError(error.reason, path=error.path, line=error.line, field=field) from None


def _parameters(request: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
    """What a request asked for beside its messages and tools (temperature, limits), without credentials."""
    rest = {key: value for key, value in request.items() if key not in dialect.used}
    return {"request": redact(rest)} if rest else {}


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"found {type(value).__name__}; expected a number", field=name)
    try:
        return float(value)
    except OverflowError:
        raise DataError("found a number over 1e308; expected one that a float holds", field=name) from None


def _error_kind(error: Any) -> str:
    """A short word for a failure. Never its text: error bodies quote keys and headers."""
    if isinstance(error, dict):
        inner = error.get("error", error)
        kind = inner.get("type") or inner.get("code") if isinstance(inner, dict) else None
        return safe_id(redact_text(str(kind)))[:64] or "error" if kind else "error"
    if isinstance(error, int) and not isinstance(error, bool):
        return str(error)
    return "error" if error is not None else "no_response"


def count(usage: Mapping[str, Any], name: str) -> int:
    """A token counter of a provider's usage object; 0 when it is absent. Raises ``DataError``."""
    value = usage.get(name)
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise DataError(f"found {value!r}; expected a count", field=f"response.usage.{name}")
    return value
