"""Keeps credentials out of the store: metadata is copied through here, conversations are not.

Header maps keep only the headers that are known to be harmless; any other field whose name says that it holds a
secret loses its value; and texts lose what looks like a key or a bearer token. Messages are left alone: they are
what the model saw, byte for byte, and a secret that a user typed is theirs to remove.
"""

from __future__ import annotations

import itertools
import re
from typing import Any

from ahocorasick_rs import BytesAhoCorasick

REDACTED = "[redacted]"

SAFE_HEADERS = frozenset(
    {
        "accept",
        "accept-encoding",
        "anthropic-beta",
        "anthropic-version",
        "content-length",
        "content-type",
        "date",
        "openai-beta",
        "openai-model",
        "openai-processing-ms",
        "openai-version",
        "request-id",
        "retry-after",
        "traceparent",
        "user-agent",
        "x-request-id",
        "x-stainless-lang",
        "x-stainless-package-version",
        "x-stainless-retry-count",
    }
)
"""Headers whose values are kept; everything else in a header map is redacted."""

# Whole words of a field name, after splitting camelCase, dots, dashes and underscores.
_SECRET_WORDS = frozenset(
    {
        "apikey",
        "auth",
        "authorization",
        "bearer",
        "cookie",
        "credential",
        "credentials",
        "passphrase",
        "passwd",
        "password",
        "pwd",
        "secret",
        "secrets",
        "signature",
    }
)
_SECRET_PAIRS = frozenset(
    {
        ("access", "key"),
        ("access", "token"),
        ("api", "key"),
        ("api", "token"),
        ("auth", "token"),
        ("client", "secret"),
        ("id", "token"),
        ("private", "key"),
        ("refresh", "token"),
        ("secret", "key"),
        ("security", "token"),
        ("session", "token"),
        ("signing", "key"),
        ("x", "token"),
    }
)
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
# A key begins where no ASCII word goes on (Chinese has no spaces), or after an escape of JSON inside of a text
# ("\\nsk-…" in tool arguments).
_START = r"(?:(?<![A-Za-z0-9_])|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"
_SECRET_TEXT = re.compile(
    # A token has a digit, a capital or padding; prose ("basic training") has not.
    _START + r"(?:(?:bearer|basic)\s+(?-i:(?=[^\s\"']*[0-9A-Z=])[A-Za-z0-9._~+/=-]{8,})"
    r"|(?:sk|pk|rk)-[A-Za-z0-9_-]{12,}"
    # A key of this gateway.
    r"|fc_[A-Za-z0-9_-]{40,}"
    r"|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}"
    r"|hf_[A-Za-z0-9]{20,}|xox[a-z]-[A-Za-z0-9-]{10,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}(?![A-Za-z0-9_])|AIza[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{8,1024}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,})"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    re.IGNORECASE | re.DOTALL,
)
# Slashes and ampersands may be written as JSON escapes: in a text that holds JSON, or JSON that is cut off.
_URL_USER = re.compile(r"((?<![a-z0-9_])[a-z][a-z0-9+.-]{0,30}:\\*/\\*/)[^/@\s]+@", re.IGNORECASE)
_URL_PARAMETER = re.compile(
    r"((?:[?&]|\\u0026)(?:api[_-]?key|key|access[_-]?token|token|sig|signature|secret|password)=)[^&\s#]+",
    re.IGNORECASE,
)


# For a quick look at bytes: where in lower-case text a match may begin, how far before that, and what then decides.
# Without the context before it the URL's test is wider than the pattern, never narrower.
_SECRET_BYTES = re.compile(_SECRET_TEXT.pattern.encode(), _SECRET_TEXT.flags & ~re.UNICODE)
_AUTHORIZATION_BYTES = re.compile(rb"(?i:bearer|basic)(?:\s|\\+[nrt])++(?=[^\s\"']*[0-9A-Z=])[A-Za-z0-9._~+/=-]{8,}")
_USER_BYTES = re.compile(_URL_USER.pattern.encode(), re.IGNORECASE)
_PARAMETER_BYTES = re.compile(_URL_PARAMETER.pattern.encode(), re.IGNORECASE)
_ANCHORS = (
    *((word, 0, _AUTHORIZATION_BYTES) for word in (b"bearer", b"basic")),
    *((word, 0, _SECRET_BYTES) for word in (b"fc_", b"hf_", b"xox")),
    *((word, 0, _SECRET_BYTES) for word in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_")),
    *((word, 0, _SECRET_BYTES) for word in (b"akia", b"asia", b"aiza", b"eyj", b"-----begin")),
    (b"k-", 1, _SECRET_BYTES),
    (b"_pat_", len(b"github"), _SECRET_BYTES),
    (b"://", 0, re.compile(rb"://[^/@\s]+@")),
    (b"?", 0, _PARAMETER_BYTES),
    (b"&", 0, _PARAMETER_BYTES),
)
_FIND_ANCHORS = BytesAhoCorasick([anchor for anchor, _, _ in _ANCHORS]).find_matches_as_indexes
"""All of them in one pass: looking for each by itself costs ten times as much."""


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a credential: ``x-api-key``, ``clientSecret``; not ``max_tokens``."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _SECRET_WORDS for word in words) or any(
        pair in _SECRET_PAIRS for pair in itertools.pairwise(words)
    )


def redact(value: Any) -> Any:
    """A copy of a JSON value without credentials. Structure, numbers and harmless texts are kept."""
    if isinstance(value, str):
        return redact_text(value)
    if isinstance(value, list):
        # Header lists come as [name, value] pairs or {"name", "value"} objects.
        return [_pair(item) if _is_pair(item) else redact(item) for item in value]
    if isinstance(value, dict):
        if _is_named(value):
            return {**value, "value": _kept(str(value["name"]), value["value"])}
        return {key: _kept(key, item) for key, item in value.items()}
    return value


def _kept(name: str, value: Any) -> Any:
    header = header_name(name)
    if header is not None:
        return redact(value) if header in SAFE_HEADERS else REDACTED
    if is_secret_name(name) and not isinstance(value, bool | type(None)):
        return REDACTED
    if name.lower().replace("-", "_").endswith("headers"):
        return _headers(value)
    return redact(value)


def header_name(name: str) -> str | None:
    """The header of a span attribute such as ``http.request.header.authorization``; ``None`` for other names."""
    _, found, header = name.lower().partition(".header.")
    return header.replace("_", "-") if found else None


def _headers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: item if str(key).lower() in SAFE_HEADERS else REDACTED for key, item in value.items()}
    if isinstance(value, list):
        return [_header_pair(item) for item in value]
    return value if value is None else REDACTED


def _header_pair(item: Any) -> Any:
    if _is_pair(item):
        return [item[0], item[1] if item[0].lower() in SAFE_HEADERS else REDACTED]
    if isinstance(item, dict) and isinstance(item.get("name"), str):
        safe = item["name"].lower() in SAFE_HEADERS
        return item if safe else {key: found if key == "name" else REDACTED for key, found in item.items()}
    return REDACTED


def _is_pair(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 2 and isinstance(item[0], str)


def _pair(item: list[Any]) -> list[Any]:
    return [redact(item[0]), _kept(item[0], item[1])]


def _is_named(value: dict[str, Any]) -> bool:
    return isinstance(value.get("name"), str) and "value" in value


def redact_text(text: str) -> str:
    """``text`` without what looks like a key, a token, or the user part of a URL."""
    text = _SECRET_TEXT.sub(REDACTED, text)
    text = _URL_USER.sub(rf"\1{REDACTED}@", text)
    return _URL_PARAMETER.sub(rf"\1{REDACTED}", text)


def may_hold_secret(text: bytes) -> bool:
    """A quick look at UTF-8 text: ``False`` when ``redact_text`` would change nothing (under 1 ms for 100 kB).

    JSON may be looked at as it stands, once ``\\/`` and escapes of ASCII letters and signs are undone.
    """
    for index, at, _ in _FIND_ANCHORS(text.lower(), overlapping=True):
        _, back, pattern = _ANCHORS[index]
        if at >= back and pattern.match(text, at - back):
            return True
    return False


def redact_bytes(text: bytes) -> bytes:
    """``redact_text`` of bytes that may be no text."""
    text = _SECRET_BYTES.sub(REDACTED.encode(), text)
    text = _USER_BYTES.sub(rb"\1" + REDACTED.encode() + b"@", text)
    return _PARAMETER_BYTES.sub(rb"\1" + REDACTED.encode(), text)
