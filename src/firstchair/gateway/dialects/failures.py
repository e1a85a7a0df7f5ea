"""What providers say when they fail, and what we say: one table of kinds for all wires.

A failure that the client caused keeps its 4xx, one that is the provider's never becomes the client's, and an unknown
word of a provider decides nothing: then the status does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Any

import orjson

from firstchair.gateway.dialects.base import Failure, FailureKind
from firstchair.traces.redact import REDACTED, redact_text

K = FailureKind

BY_STATUS: Mapping[int, FailureKind] = MappingProxyType(
    {
        401: K.AUTHENTICATION,
        402: K.BUDGET,
        403: K.PERMISSION,
        404: K.NOT_FOUND,
        408: K.TIMEOUT,
        413: K.TOO_LARGE,
        429: K.RATE_LIMIT,
        503: K.OVERLOADED,
        504: K.TIMEOUT,
        524: K.TIMEOUT,
        529: K.OVERLOADED,
    }
)
"""HTTP status → kind; any other 4xx is a bad request, any other 5xx a server error."""

BY_WORD: Mapping[str, FailureKind] = MappingProxyType(
    {
        # Anthropic
        "invalid_request_error": K.BAD_REQUEST,
        "authentication_error": K.AUTHENTICATION,
        "permission_error": K.PERMISSION,
        "not_found_error": K.NOT_FOUND,
        "request_too_large": K.TOO_LARGE,
        "rate_limit_error": K.RATE_LIMIT,
        "billing_error": K.BUDGET,
        "api_error": K.SERVER_ERROR,
        "overloaded_error": K.OVERLOADED,
        "timeout_error": K.TIMEOUT,
        # OpenAI
        "context_length_exceeded": K.CONTEXT_OVERFLOW,
        "insufficient_quota": K.RATE_LIMIT,
        "rate_limit_exceeded": K.RATE_LIMIT,
        "tokens": K.RATE_LIMIT,
        "requests": K.RATE_LIMIT,
        "invalid_api_key": K.AUTHENTICATION,
        "model_not_found": K.NOT_FOUND,
        "server_error": K.SERVER_ERROR,
        "server_overloaded": K.OVERLOADED,
        "slow_down": K.OVERLOADED,
        "engine_overloaded_error": K.OVERLOADED,
        # vLLM
        "BadRequestError": K.BAD_REQUEST,
        "UnprocessableEntityError": K.BAD_REQUEST,
        "AuthenticationError": K.AUTHENTICATION,
        "NotFoundError": K.NOT_FOUND,
        "InternalServerError": K.SERVER_ERROR,
        "ServiceUnavailableError": K.OVERLOADED,
        # llama.cpp
        "exceed_context_size_error": K.CONTEXT_OVERFLOW,
        "unavailable_error": K.OVERLOADED,
        "not_supported_error": K.BAD_REQUEST,
    }
)
"""A provider's ``type`` or ``code`` → kind, where the status does not say it (a stream, an old server)."""

_OVERFLOW = re.compile(
    r"maximum context length|context_length_exceeded|prompt is too long|input is too long|max_model_len"
    r"|exceeds? the (?:available )?context (?:size|window|length)|exceeds? the model'?s? (?:maximum )?context"
    r"|context window of|exceed context limit|longer than the maximum model length",
    re.IGNORECASE,
)
_SECRET = re.compile(
    r"(?i)\b(?:bearer|basic)\s+[\w.~+/=-]{8,}|\b(?:sk|pk|rk|fc|xai|gsk|hf)[-_][\w*.-]{6,}"
    r"|\b(?:api[-_ ]?key|token|secret|password|authorization)[\"']?\s*[:=]\s*(?:(?:bearer|basic)\s+)?"
    r"[\"']?[\w.*~+/=-]{6,}"
)
"""Beside the shapes that ``redact_text`` knows: shorter and half-masked keys, as errors repeat them."""
MAX_MESSAGE = 1000
MAX_RETRY_AFTER_S = 86_400.0

OPENAI_WORDS: Mapping[FailureKind, tuple[int, str, str | None]] = MappingProxyType(
    {
        K.BAD_REQUEST: (400, "invalid_request_error", None),
        K.AUTHENTICATION: (401, "invalid_request_error", "invalid_api_key"),
        K.PERMISSION: (403, "invalid_request_error", "permission_denied"),
        K.NOT_FOUND: (404, "invalid_request_error", "model_not_found"),
        K.TOO_LARGE: (413, "invalid_request_error", "request_too_large"),
        K.RATE_LIMIT: (429, "rate_limit_error", "rate_limit_exceeded"),
        K.BUDGET: (429, "insufficient_quota", "insufficient_quota"),
        K.CONTEXT_OVERFLOW: (400, "invalid_request_error", "context_length_exceeded"),
        K.OVERLOADED: (503, "server_error", "overloaded"),
        K.SERVER_ERROR: (500, "server_error", None),
        K.CONNECT: (502, "server_error", "provider_unreachable"),
        K.TIMEOUT: (504, "server_error", "timeout"),
        K.BAD_ANSWER: (502, "server_error", "bad_answer"),
        K.MALFORMED_CALL: (502, "server_error", "malformed_call"),
    }
)
"""Kind → status, ``type`` and ``code`` of an OpenAI error (Chat Completions and Responses)."""

ANTHROPIC_WORDS: Mapping[FailureKind, tuple[int, str]] = MappingProxyType(
    {
        K.BAD_REQUEST: (400, "invalid_request_error"),
        K.AUTHENTICATION: (401, "authentication_error"),
        K.PERMISSION: (403, "permission_error"),
        K.NOT_FOUND: (404, "not_found_error"),
        K.TOO_LARGE: (413, "request_too_large"),
        K.RATE_LIMIT: (429, "rate_limit_error"),
        K.BUDGET: (402, "billing_error"),
        K.CONTEXT_OVERFLOW: (400, "invalid_request_error"),
        K.OVERLOADED: (529, "overloaded_error"),
        K.SERVER_ERROR: (500, "api_error"),
        K.CONNECT: (502, "api_error"),
        K.TIMEOUT: (504, "timeout_error"),
        K.BAD_ANSWER: (502, "api_error"),
        K.MALFORMED_CALL: (502, "api_error"),
    }
)
"""Kind → status and ``type`` of an Anthropic error."""

_OWN_CREDENTIALS = "the provider refused the gateway's own credentials; its operator must renew them"


def read_failure(status: int, headers: Mapping[str, str], body: bytes) -> Failure:
    """The failure in an error answer of any provider. Never raises. ``headers`` have lower-case names."""
    try:
        parsed = orjson.loads(body)
    except ValueError:
        parsed = None
    found = failure_in(parsed, status=status)
    retry = retry_after_s(headers)
    if retry is None:
        return found
    return Failure(
        kind=found.kind,
        message=found.message,
        status=found.status,
        param=found.param,
        retry_after_s=retry,
        native=found.native,
    )


def failure_in(body: Any, *, status: int | None) -> Failure:
    """The failure in the JSON of an error answer or, without ``status``, of an error event."""
    error = _error_object(body)
    words = [word for word in (error.get("code"), error.get("type")) if isinstance(word, str) and word]
    if status is None or status < 400:
        code = error.get("code", error.get("status_code"))
        if isinstance(code, str) and code.isascii() and code.isdigit() and len(code) == 3:
            code = int(code)
        status = code if isinstance(code, int) and not isinstance(code, bool) and 400 <= code <= 599 else status
    text = error.get("message", error.get("detail"))
    text = text if isinstance(text, str) else ""
    kind = _kind(status, words, text)
    if kind is K.AUTHENTICATION:
        text = _OWN_CREDENTIALS
    param = error.get("param")
    return Failure(
        kind=kind,
        message=clean(text) or f"the provider answered {status or 'an error event'} without a message",
        status=status,
        param=param if isinstance(param, str) and len(param) <= 200 else None,
        native=clean(words[0])[:100] if words else None,
    )


def _error_object(body: Any) -> Mapping[str, Any]:
    """The object with the words, in any of the forms that servers use."""
    if isinstance(body, list) and body:
        body = body[0]
    if isinstance(body, str):
        return {"message": body}
    if not isinstance(body, Mapping):
        return {}
    inner = body.get("error")
    if isinstance(inner, Mapping):
        return inner
    if isinstance(inner, str):
        return {**body, "message": body.get("message") or inner}
    response = body.get("response")
    if isinstance(response, Mapping) and isinstance(response.get("error"), Mapping):
        return _error_object(response)
    return body


def _kind(status: int | None, words: list[str], text: str) -> FailureKind:
    known = next((BY_WORD[word] for word in words if word in BY_WORD), None)
    # Servers disagree about the status of a prompt that is too long: 400, 413, 422, and 500 of old ones.
    if K.CONTEXT_OVERFLOW is known or (status in (None, 200, 400, 413, 422, 500) and _OVERFLOW.search(text[:4000])):
        return K.CONTEXT_OVERFLOW
    if status is None or status < 300:
        return known or K.BAD_ANSWER
    if status in BY_STATUS:
        kind = BY_STATUS[status]
        return known if known is K.OVERLOADED and status >= 500 else kind
    if 400 <= status < 500:
        # Only a word for a client's fault may be more exact than the status.
        return (
            known
            if known in (K.AUTHENTICATION, K.PERMISSION, K.NOT_FOUND, K.TOO_LARGE, K.RATE_LIMIT)
            else K.BAD_REQUEST
        )
    if status >= 500:
        return known if known in (K.OVERLOADED, K.TIMEOUT) else K.SERVER_ERROR
    return K.BAD_ANSWER


def clean(text: str) -> str:
    """``text`` for a client: no line breaks or control characters, nothing that looks like a credential, not long."""
    kept = "".join(char if char.isprintable() else " " for char in text[: 4 * MAX_MESSAGE])
    return _SECRET.sub(REDACTED, redact_text(kept)).strip()[:MAX_MESSAGE]


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait: ``retry-after-ms``, ``retry-after`` in seconds, or as a date beside the answer's ``date``."""
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        try:
            seconds = float(value) / scale
        except ValueError:
            seconds = _seconds_until(value, headers.get("date"))
        if math.isfinite(seconds):
            return min(max(seconds, 0.0), MAX_RETRY_AFTER_S)
    return None


def _seconds_until(value: str, date: str | None) -> float:
    try:
        return (parsedate_to_datetime(value) - parsedate_to_datetime(date or "")).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return math.nan


def status_of(failure: Failure, usual: int) -> int:
    """The status to send: a provider's own where it is of the usual class and no other fits better."""
    given = failure.status
    if failure.kind in (K.BAD_REQUEST, K.SERVER_ERROR) and given is not None and given // 100 == usual // 100:
        return given
    return usual


def openai_error(failure: Failure) -> tuple[int, dict[str, Any]]:
    """Status and body of an OpenAI error."""
    status, kind, code = OPENAI_WORDS[failure.kind]
    error = {"message": failure.message, "type": kind, "param": failure.param, "code": code}
    return status_of(failure, status), {"error": error}


def anthropic_error(failure: Failure, *, request_id: str | None = None) -> tuple[int, dict[str, Any]]:
    """Status and body of an Anthropic error."""
    status, kind = ANTHROPIC_WORDS[failure.kind]
    message = failure.message
    if failure.param and failure.param not in message:
        message = f"{failure.param}: {message}"
    if failure.kind is K.CONTEXT_OVERFLOW and not message.startswith("prompt is too long"):
        # Harnesses compact the conversation when they read these words.
        message = f"prompt is too long: {message}"
    body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    if request_id:
        body["request_id"] = request_id
    return status_of(failure, status), body


class ProviderErrors:
    """What all dialects do with a provider's error answer."""

    def read_failure(self, status: int, headers: Mapping[str, str], body: bytes) -> Failure:
        return read_failure(status, headers, body)


class OpenAIErrors(ProviderErrors):
    """The errors of both of OpenAI's dialects."""

    def write_failure(self, failure: Failure, *, request_id: str) -> tuple[int, dict[str, Any]]:
        """The id of the request goes into a header."""
        return openai_error(failure)
