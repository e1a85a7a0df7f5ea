"""What a worker knows of the control state: frozen, whole, replaced when the revision moves."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Literal

import msgspec

from firstchair.gateway.control.slots import SlotConfig, match_slot

Scope = Literal["call", "admin", "traces"]
"""Call models; change slots and keys; read traces and ledger."""
BudgetPeriod = Literal["total", "day", "month"]
"""When what was spent counts anew, UTC."""

MEMO = 4096
MEMO_CHARS = 256
"""Model names whose slot is remembered, and how long they may be; clients choose them, so there is an end to it."""
_NOBODY = b"\0" * 32


class Budget(msgspec.Struct, frozen=True):
    """Of an account that is no key's: it stands in the configuration, not in the table of keys."""

    nano: int
    period: BudgetPeriod


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """A live key. The secret itself is stored nowhere."""

    key_id: str
    name: str
    digest: bytes
    """SHA-256 of the secret."""
    scopes: frozenset[Scope]
    budget_nano: int | None = None
    """``None``: no limit."""
    budget_period: BudgetPeriod = "total"
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    created_us: int = 0
    who: str = ""


SHADOWS = Key(key_id="shadow", name="shadow", digest=b"", scopes=frozenset())
"""Who pays for shadow calls: no secret is this key's, and it stands in no table (ids there begin with ``key_``)."""


def secret_digest(secret: str) -> bytes:
    """SHA-256: secrets are 256 random bits, so neither salt nor stretching adds anything."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Snapshot:
    """Slots and keys at one revision. Safe to share between threads."""

    def __init__(self, revision: int, slots: Iterable[SlotConfig], versions: dict[str, int], keys: Iterable[Key]):
        self.revision = revision
        self.slots: tuple[SlotConfig, ...] = tuple(sorted(slots, key=lambda slot: slot.slot))
        self.keys: tuple[Key, ...] = tuple(keys)
        self._versions = dict(versions)
        self._memo: dict[str, SlotConfig | None] = {}
        self._buckets: dict[int, list[Key]] = {}
        for key in self.keys:
            self._buckets.setdefault(key.digest[0], []).append(key)
        self._by_id = {key.key_id: key for key in self.keys}

    def slot_for(self, model: str) -> SlotConfig | None:
        """The slot for the ``model`` of a request; see ``match_slot``."""
        try:
            return self._memo[model]
        except KeyError:
            found = match_slot(self.slots, model)
            if len(self._memo) < MEMO and len(model) <= MEMO_CHARS:
                self._memo[model] = found
            return found

    def slot_version(self, slot: str) -> int:
        """Version of a slot that this snapshot holds; 0 for one it does not hold."""
        return self._versions.get(slot, 0)

    def key(self, secret: str) -> Key | None:
        """The live key with this secret.

        Digests are compared in constant time and to the end of their bucket. The bucket follows from the SHA-256 of
        what was presented, so its size says nothing about a secret that is near the right one.
        """
        digest = secret_digest(secret)
        found: Key | None = None
        for key in self._buckets.get(digest[0], ()):
            if hmac.compare_digest(key.digest, digest):
                found = key
        if found is None:
            hmac.compare_digest(_NOBODY, digest)
        return found

    def key_by_id(self, key_id: str) -> Key | None:
        return self._by_id.get(key_id)


EMPTY = Snapshot(0, (), {}, ())
"""Before the first read of the database."""
