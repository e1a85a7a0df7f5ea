"""Seeds that depend on what is being done, not on the order in which it happens to be done."""

from __future__ import annotations

import hashlib

MAX_SEED = 2**32 - 1
"""The largest seed that recipes and command lines take; numpy takes no larger one."""


def seed_of(*parts: int | str) -> int:
    """A number in [0, 2^31) that is a function of ``parts`` alone, equal on every machine and Python."""
    digest = hashlib.sha256("\x1f".join(f"{type(part).__name__}:{part}" for part in parts).encode("utf-8")).digest()
    return int.from_bytes(digest[:4], "big") >> 1
