"""What a call used up: tokens, and money as whole numbers."""

from __future__ import annotations

import msgspec

NANO = 1_000_000_000
"""Money is counted in whole billionths of a US dollar, so that sums equal their calls exactly."""


class TokenCounts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What one answer cost; the first five are disjoint. ``reasoning`` is part of ``output``."""

    input: int = 0
    """Fresh: neither read from nor written to a cache."""
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    output: int = 0
    reasoning: int | None = None
