"""Tool-call ids that fit a provider: short, of its alphabet, and back again to the ids of the session.

Providers limit ids (40 or 64 characters, letters and digits only, exactly nine of them). A history recorded on
one must be replayable on another, so ids are mapped at the border by a map that is kept for the session.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from types import MappingProxyType

from firstchair.core.errors import DataError

_BASE62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class IdRule:
    """Which ids a provider takes."""

    pattern: str
    """A regular expression that the whole id must match."""
    prefix: str
    """Before an id of our making."""
    length: int
    """Of an id of our making, prefix included."""


ID_RULES: Mapping[str, IdRule] = MappingProxyType(
    {
        "openai": IdRule(r".{1,40}", "call_", 29),
        "anthropic": IdRule(r"[A-Za-z0-9_-]{1,64}", "toolu_", 30),
        "mistral": IdRule(r"[A-Za-z0-9]{9}", "", 9),
    }
)
"""Provider → rule."""


class CallIdMap:
    """Maps a session's ids to a provider's and back. An id that fits stays as it is.

    The same id always maps to the same one, whatever came before, except where that one is taken already.
    """

    def __init__(self, rule: IdRule):
        self._rule = rule
        self._fits = re.compile(rule.pattern)
        self._there: dict[str, str] = {}
        self._back: dict[str, str] = {}

    def to_wire(self, call_id: str) -> str:
        """The provider's id for ``call_id``."""
        known = self._there.get(call_id)
        if known is not None:
            return known
        made = call_id
        attempt = 0
        while not self._fits.fullmatch(made) or made in self._back:
            made = self._make(call_id, attempt)
            attempt += 1
        self._there[call_id], self._back[made] = made, call_id
        return made

    def from_wire(self, wire_id: str) -> str:
        """The session's id for a provider's; a new one (the provider made it) stands for itself.

        Raises ``DataError`` when a new id of the provider is one that the session uses for another call.
        """
        known = self._back.get(wire_id)
        if known is not None:
            return known
        if wire_id in self._there:
            raise DataError(f"id {wire_id!r} is new to the provider and old to the session", field="id")
        self._there[wire_id] = self._back[wire_id] = wire_id
        return wire_id

    def _make(self, call_id: str, attempt: int) -> str:
        number = int.from_bytes(sha256(f"{attempt}:{call_id}".encode()).digest(), "big")
        digits = []
        for _ in range(self._rule.length - len(self._rule.prefix)):
            number, digit = divmod(number, 62)
            digits.append(_BASE62[digit])
        return self._rule.prefix + "".join(digits)
