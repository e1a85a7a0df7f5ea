"""Grammars for the inside of a hermes tool call, from the tools' JSON schemas.

    <tool_call> "{"name": "one of the tools", "arguments": " by that tool's schema "}" </tool_call>

spaced as ``json.dumps`` does. Objects whose schema lists ``properties`` and says nothing else about further keys
are closed: only listed keys can be written. ``format`` names that the library does not know are annotations.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firstchair.chat.formats.hermes import CLOSE, OPEN
from firstchair.chat.messages import Tool
from firstchair.core.jsontext import dumps
from firstchair.engines.base import ErrorKind
from firstchair.engines.jobs import RequestRefused
from firstchair.engines.json_guard import JsonGuard

_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}

_FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"})

_OUTSIDE = (b"}", b"]", b'"', b"{", b"[")
"""What to write outside a string when the call must come to its end, best first: an object opened with ``{"``
would have begun a key."""

LONGEST_CALL = 4096
"""Tokens after which a trial of how a call could end is given up."""


class TokenTable:
    """A tokenizer as the grammar library sees it, and the bytes of each token."""

    def __init__(self, tokenizer: Any):
        from llguidance.hf import from_tokenizer

        self.library = from_tokenizer(tokenizer, n_vocab=len(tokenizer))
        self.size = len(tokenizer)
        self.bytes: tuple[bytes, ...] = tuple(self.library.decode_bytes([token]) for token in range(self.size))
        self.lengths: NDArray[np.int64] = np.array([len(data) for data in self.bytes])
        by_bytes = {data: token for token, data in reversed(list(enumerate(self.bytes)))}
        self.quote = tuple(by_bytes[data] for data in (b'"',) if data in by_bytes)
        self.outside = tuple(by_bytes[data] for data in _OUTSIDE if data in by_bytes)
        self.open_id = self._control(tokenizer, OPEN)
        self.close_id = self._control(tokenizer, CLOSE)

    def _control(self, tokenizer: Any, text: str) -> int | None:
        """The id of a tag that is one token of its own, not to be spelled in pieces."""
        token = tokenizer.get_vocab().get(text)
        return token if token is not None and self.library.is_special_token(token) else None


def mask_of(matcher: Any, size: int) -> NDArray[np.bool_]:
    """Tokens that ``matcher`` allows next, ``[size]`` bool."""
    bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
    return np.unpackbits(bits, bitorder="little")[:size].astype(np.bool_)


class CallGrammar:
    """The grammar of one call to any of ``tools``."""

    def __init__(self, tools: Sequence[Tool], table: TokenTable):
        self.table = table
        rules = [f"args_{index}: %json {dumps(_root_schema(tool, index))}" for index, tool in enumerate(tools)]
        self._starts = [f'{{"name": {dumps(tool.name)}, "arguments": ' for tool in tools]
        for index, tool in enumerate(tools):
            self._check(index, tool, rules[index])
        calls = " | ".join(self._call(index) for index in range(len(tools)))
        self.matcher = self._matcher(calls, rules)
        """At the start of a call's inside; copy it, never advance it."""
        # How a call to each tool ends soonest; the shortest bounds what opening a call takes.
        self._alone = [self._matcher(self._call(index), [rule]) for index, rule in enumerate(rules)]
        needs = [soonest_end(matcher, JsonGuard(), b"", table, LONGEST_CALL) for matcher in self._alone]
        self.need_to_open = min(needs)
        """Fewest tokens in which a call can be written, its closing tag included."""
        self.longest_need = max(needs)
        self._targets = sorted(zip(needs, self._starts, strict=True))

    def _call(self, index: int) -> str:
        return f'{json.dumps(self._starts[index])} args_{index} "}}"'

    def _matcher(self, calls: str, rules: Sequence[str]) -> Any:
        from llguidance import LLMatcher

        end = CLOSE if self.table.close_id is not None else json.dumps(CLOSE)
        lark = "\n".join([f'start: "\\n"? ({calls}) "\\n"? {end}', *rules, ""])
        return LLMatcher(self.table.library, lark)

    def _check(self, index: int, tool: Tool, rule: str) -> None:
        matcher = self._matcher(self._call(index), [rule])
        if matcher.is_error():
            # The library's message goes on with the grammar's source, which is ours and not the user's.
            reason = " ".join(re.split(r"\n +1 \| ", str(matcher.get_error()))[0].split())
            raise _refused(index, tool, reason)

    def may_end_string(self, matcher: Any) -> bool:
        """Whether the string being written could be closed here."""
        return any(matcher.validate_tokens([token]) == 1 for token in self.table.quote)

    def need(self, matcher: Any, guard: JsonGuard, written: bytes, limit: int) -> tuple[int, int]:
        """Fewest tokens to the end of the call from ``matcher`` (at most ``limit + 1``), and the first of them.

        ``written`` is the call's text so far, which ``guard`` has followed. While the tool is still open, the
        cheapest one left is taken.
        """
        text = written.lstrip(b"\n")
        best, first = limit + 1, -1
        for _, start in self._targets:
            target = start.encode()
            if target.startswith(text) or text.startswith(target):
                path: list[int] = []
                steps = soonest_end(matcher, guard, target[len(text) :], self.table, best - 1, path)
                if steps < best:
                    best, first = steps, path[0]
            if text.startswith(target):
                break
        return best, first


def soonest_end(
    matcher: Any, guard: JsonGuard, target: bytes, table: TokenTable, limit: int, path: list[int] | None = None
) -> int:
    """Tokens until the grammar is satisfied when each step closes what it can; ``limit + 1`` if more.

    ``target`` is text to write first. ``path``, when given, receives the tokens.
    """
    trial, guard = matcher.deep_copy(), guard.copy()
    for step in range(1, limit + 1):
        token = _forced(trial, target, table) if target else _closing(trial, guard, table)
        if token is None or not trial.consume_token(token):
            return limit + 1
        guard.feed(table.bytes[token])
        target = target[len(table.bytes[token]) :]
        if path is not None:
            path.append(token)
        if trial.is_accepting():
            return step
    return limit + 1


def _forced(matcher: Any, target: bytes, table: TokenTable) -> int | None:
    """The longest token that writes the beginning of ``target``.

    It may run past the end: where text is forced, the library allows only the usual token for it.
    """
    fits = [
        int(token)
        for token in np.flatnonzero(mask_of(matcher, table.size))
        if target.startswith(table.bytes[token]) or table.bytes[token].startswith(target)
    ]
    return max(fits, key=lambda token: table.lengths[token], default=None)


def _closing(matcher: Any, guard: JsonGuard, table: TokenTable) -> int | None:
    """The next token of the shortest way out: a closing one, else the longest that may stand here."""
    tries = table.quote if guard.in_string else table.outside
    if table.close_id is not None and not guard.in_string:
        tries = (table.close_id, *tries)
    for token in tries:
        if matcher.validate_tokens([token]) == 1 and guard.copy().feed(table.bytes[token]):
            return token
    allowed = mask_of(matcher, table.size)
    for token in np.argsort(np.where(allowed, -table.lengths, 0), kind="stable")[: allowed.sum()]:
        if guard.copy().feed(table.bytes[token]):
            return int(token)
    return None


def _refused(index: int, tool: Tool, reason: str) -> RequestRefused:
    return RequestRefused(
        ErrorKind.BAD_REQUEST,
        f"tools[{index}] {tool.name!r}: its schema cannot constrain decoding: {reason}; "
        "simplify the schema or set constrain=False",
    )


def _root_schema(tool: Tool, index: int) -> dict[str, Any]:
    schema = tool.parameters or {"type": "object", "properties": {}}
    if schema.get("type", "object") != "object":
        raise _refused(index, tool, f"arguments are of type {schema['type']!r}; expected object")
    return {"type": "object", **_closed(schema), "x-guidance": _SPACING}


_ONE = ("items", "additionalProperties")
_SEVERAL = ("anyOf", "oneOf", "prefixItems")
_NAMED = ("properties", "$defs", "definitions")


def _closed(schema: Any) -> Any:
    """``schema`` with objects closed that list their properties, at every depth outside ``allOf``."""
    if not isinstance(schema, Mapping):
        return schema
    out = dict(schema)
    for key in _ONE:
        if key in out:
            out[key] = _closed(out[key])
    for key in _SEVERAL:
        if isinstance(out.get(key), list):
            out[key] = [_closed(part) for part in out[key]]
    for key in _NAMED:
        if isinstance(out.get(key), Mapping):
            out[key] = {name: _closed(part) for name, part in out[key].items()}
    if out.get("format") not in _FORMATS:
        out.pop("format", None)
    properties = out.get("properties")
    open_ended = {"additionalProperties", "patternProperties", "allOf", "anyOf", "oneOf", "$ref"} & out.keys()
    if isinstance(properties, Mapping) and not open_ended and set(out.get("required", ())) <= properties.keys():
        out["additionalProperties"] = False
    return out
