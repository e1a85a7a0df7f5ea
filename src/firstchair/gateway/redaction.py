"""Takes credentials out of a call before anything of it is written: spool, ledger, trace, blob.

    request bytes ─▶ its JSON strings ─▶ quick look ─▶ nothing: the same bytes object
                                            └▶ strings that hold a secret are written anew; all other bytes stay

The patterns are those of ``firstchair.traces.redact``, on every string as its reader sees it (escapes undone, and
JSON inside of a string too). Beside the conversation and the tool schemas, which a model is shown as they are, a
field whose name says that it holds a credential loses its value (``mcp_servers[].authorization_token``,
``tools[].headers``). Request and answer are treated alike, so that an answer and its echo in the next prompt stay
equal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import msgspec
from ahocorasick_rs import BytesAhoCorasick

from firstchair.chat.messages import ImagePart, Message, Part, RawPart, TextPart, ThinkingPart
from firstchair.core.errors import ConfigError
from firstchair.gateway.records import CallRecord
from firstchair.traces.redact import (
    REDACTED,
    SAFE_HEADERS,
    is_secret_name,
    may_hold_secret,
    redact_bytes,
    redact_text,
)

TextHook = Callable[[str], str]
"""Gets one text and returns what may be kept of it."""

_WHOLE_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
# One without an end reaches to the end of the text; else every quote in it would be tried as a beginning.
_STRING = re.compile(rb'("[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z))', re.DOTALL)
_KEY = re.compile(rb'"([^"]{1,128})"\s*:')
_COLON = re.compile(rb"\s*:")
_NAME_BYTES = 128
_NAME_STEMS = b"auth bearer cookie credential headers key pass pwd secret signature token".split()
"""In lower case; every name of a credential holds one of them."""
_FIND_STEMS = BytesAhoCorasick(_NAME_STEMS).find_matches_as_indexes
_ASCII_ESCAPE = re.compile(rb"\\+u00([2-7][0-9a-fA-F])")
_OUTSIDE_STRINGS = b" \t\r\n{}[]:,0123456789+-.eEtrufalsn"
"""Everything that JSON writes outside of strings."""
_SHOWN_TO_THE_MODEL = frozenset(
    {"messages", "input", "system", "instructions", "input_schema", "parameters", "json_schema", "schema"}
)
_TEXTS = (TextPart, ThinkingPart)
_decode_string = msgspec.json.Decoder(str).decode
_encode = msgspec.json.Encoder().encode


def load_hook(reference: str) -> TextHook:
    """The function that ``package.module:function`` names. Raises ``ConfigError``."""
    module, _, name = reference.partition(":")
    try:
        found = getattr(import_module(module), name) if module and name else None
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"recording.redact_hook: {reference!r} cannot be imported: {error}") from None
    if not callable(found):
        raise ConfigError(
            f"recording.redact_hook: found {reference!r}; expected package.module:function, a function of one text"
        )
    return found  # type: ignore[no-any-return]


class Redactor:
    """What one gateway takes out. Never raises over a call; ``hook_failures`` counts texts that the hook failed on,
    which are then not kept at all.
    """

    def __init__(self, *, patterns: Sequence[str] = (), hook: TextHook | None = None):
        """``patterns``: further regular expressions. Raises ``ConfigError`` for one that is none."""
        self._patterns = tuple(_compiled(pattern, index) for index, pattern in enumerate(patterns))
        self._hook = hook
        self.hook_failures = 0

    def record(self, record: CallRecord) -> CallRecord:
        """``record`` as it may be written."""
        return msgspec.structs.replace(
            record,
            request=self.body(record.request),
            answer=None if record.answer is None else self.message(record.answer),
            error=self.text(record.error),
            session=self.text(record.session),
            user=self.text(record.user),
            requested_model=self.text(record.requested_model),
            dropped=tuple(map(self.text, record.dropped)),  # a client may call a field whatever it likes
        )

    def body(self, body: bytes) -> bytes:
        """A request's JSON; the same object when there is nothing in it to take out (about 1 ms for 100 kB).

        Total: what is no JSON is treated as text.
        """
        return self._clean(body, in_conversation=False)

    def text(self, text: str) -> str:
        """One text, which may hold JSON itself."""
        if not text:
            return text
        raw = text.encode("utf-8", "surrogatepass")
        # Within JSON a text begins at a quote or an escape, which only the strings themselves tell.
        if text.lstrip()[:1] in ("{", "["):
            cleaned = self._clean(raw, in_conversation=True)
            return text if cleaned is raw else cleaned.decode("utf-8", "surrogatepass")
        return self._plain(text, raw)

    def message(self, message: Message) -> Message:
        """A message with its texts, arguments and raw parts cleaned; the same object when nothing changed."""
        if self._is_plainly_clean(message):
            return message
        cleaned = msgspec.structs.replace(
            message,
            content=tuple(self._part(part) for part in message.content),
            tool_calls=tuple(
                msgspec.structs.replace(call, arguments=self.text(call.arguments), extra=self._value(call.extra))
                for call in message.tool_calls
            ),
            extra=self._value(message.extra),
        )
        return message if cleaned == message else cleaned

    def _is_plainly_clean(self, message: Message) -> bool:
        """One quick look at all that an ordinary answer says; nothing is said of a message with more than that."""
        if self._hook is not None or self._patterns or message.extra:
            return False
        texts = [call.arguments for call in message.tool_calls if not call.extra]
        texts += [part.text for part in message.content if isinstance(part, _TEXTS) and not part.extra]
        if len(texts) != len(message.content) + len(message.tool_calls):
            return False
        return not may_hold_secret(_unescaped("\n".join(texts).encode("utf-8", "surrogatepass")))

    def _part(self, part: Part) -> Part:
        if isinstance(part, TextPart | ThinkingPart):
            return msgspec.structs.replace(part, text=self.text(part.text), extra=self._value(part.extra))
        if isinstance(part, ImagePart):
            return msgspec.structs.replace(part, url=self.text(part.url), extra=self._value(part.extra))
        return msgspec.structs.replace(part, data=self._value(part.data)) if isinstance(part, RawPart) else part

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self._value(item) for item in value]
        return {key: self._value(item) for key, item in value.items()} if isinstance(value, dict) else value

    def _plain(self, text: str, raw: bytes) -> str:
        if may_hold_secret(_unescaped(raw)):
            text = redact_text(text)
        for pattern in self._patterns:
            text = pattern.sub(REDACTED, text)
        return self._hooked(text)

    def _hooked(self, text: str) -> str:
        if self._hook is None:
            return text
        try:
            kept = self._hook(text)
        except Exception:  # noqa: BLE001 - the user's code; a text it failed on must neither be kept nor end the call
            kept = None
        if isinstance(kept, str):
            return kept
        self.hook_failures += 1
        return REDACTED

    def _clean(self, body: bytes, *, in_conversation: bool) -> bytes:
        has_names = not in_conversation and _has_secret_names(body)
        if not (self._hook or self._patterns or has_names or may_hold_secret(_unescaped(body))):
            return body
        parts = _split(body)
        is_json = not b"".join(parts[0::2]).translate(None, _OUTSIDE_STRINGS)
        named = _named_secrets(parts) if has_names else set()
        changed = False
        for index in range(1, len(parts), 2):
            if index in named:
                parts[index], changed = _encode(REDACTED), True
                continue
            is_key = parts[index + 1].lstrip()[:1] == b":"
            text = _text_of(parts[index])
            cleaned = redact_text(text) if is_key else self.text(text)
            if cleaned != text:
                parts[index], changed = _encode(cleaned.encode("utf-8", "replace").decode()), True
        cleaned_body = b"".join(parts) if changed else body
        return cleaned_body if is_json else self._clean_outside(cleaned_body)

    def _clean_outside(self, body: bytes) -> bytes:
        """Bytes that are no JSON, or not to their end, once more as one text."""
        cleaned = redact_bytes(body) if may_hold_secret(_unescaped(body)) else body
        if self._patterns:
            text = cleaned.decode("latin-1")
            for pattern in self._patterns:
                text = pattern.sub(REDACTED, text)
            cleaned = text.encode("latin-1", "replace")
        return body if cleaned == body else cleaned


def _compiled(pattern: str, index: int) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ConfigError(
            f"recording.patterns[{index}]: found {pattern!r}; expected a regular expression: {error}"
        ) from None


def _split(body: bytes) -> list[bytes]:
    """What stands between the JSON strings of ``body``, and they themselves at the odd places."""
    parts: list[bytes] = _STRING.split(body)
    if len(parts) > 1 and not parts[-1] and _WHOLE_STRING.fullmatch(parts[-2]) is None:
        parts[-3:] = [parts[-3] + parts[-2]]
    return parts


def _text_of(string: bytes) -> str:
    """What a JSON string says; its bytes one by one where it is no valid one."""
    try:
        return _decode_string(string)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return string[1:-1].decode("utf-8", "surrogateescape")


def _unescaped(body: bytes) -> bytes:
    """JSON with the escapes undone, at every level of JSON in strings, that hide what a quick look looks for."""
    if b"\\" not in body:
        return body
    while b"\\/" in body:
        body = body.replace(b"\\/", b"/")
    return _ASCII_ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), body) if b"\\u00" in body else body


def _has_secret_names(body: bytes) -> bool:
    """Whether a key of this JSON names a credential; also true of some text that only looks like one."""
    if b"\\u00" in body:
        return any(map(_names_a_secret, set(_KEY.findall(body))))
    for _, at, _ in _FIND_STEMS(body.lower(), overlapping=True):
        start = body.rfind(b'"', max(0, at - _NAME_BYTES), at) + 1
        end = body.find(b'"', at, at + _NAME_BYTES + 1)
        if start and end > 0 and _COLON.match(body, end + 1) and _names_a_secret(body[start:end]):
            return True
    return False


@functools.lru_cache(maxsize=4096)
def _names_a_secret(key: bytes) -> bool:
    name = _text_of(b'"' + key + b'"')
    return is_secret_name(name) or _holds_headers(name)


def _holds_headers(name: str) -> bool:
    return name.lower().replace("-", "_").endswith("headers")


def _named_secrets(parts: list[bytes]) -> set[int]:
    """Which of ``parts`` are strings that stand under a name of a credential, beside what a model is shown."""
    is_key = {index for index in range(1, len(parts), 2) if parts[index + 1].lstrip()[:1] == b":"}
    found: set[int] = set()
    path: list[str] = []  # the key under which each open object or list stands
    pending = ""
    for index in range(0, len(parts), 2):
        for byte in parts[index]:
            if byte in b"{[":
                path.append(pending)
                pending = ""
            elif byte in b"}]":
                pending = ""
                if path:
                    path.pop()
            elif byte == 0x2C and pending:
                pending = ""
        string = index + 1
        if string in is_key:
            pending = _text_of(parts[string])
        elif string < len(parts) and _is_credential([*path, pending]):
            found.add(string)
    return found


def _is_credential(path: list[str]) -> bool:
    if not _SHOWN_TO_THE_MODEL.isdisjoint(path):
        return False
    return any(is_secret_name(name) for name in path) or (
        any(_holds_headers(name) for name in path[:-1]) and path[-1].lower() not in SAFE_HEADERS
    )
