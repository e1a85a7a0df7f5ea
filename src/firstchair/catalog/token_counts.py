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

    def __add__(self, other: TokenCounts) -> TokenCounts:
        """Both together; reasoning that one of them does not tell counts as none."""
        told = self.reasoning is not None or other.reasoning is not None
        return TokenCounts(
            input=self.input + other.input,
            cache_read=self.cache_read + other.cache_read,
            cache_write_5m=self.cache_write_5m + other.cache_write_5m,
            cache_write_1h=self.cache_write_1h + other.cache_write_1h,
            output=self.output + other.output,
            reasoning=(self.reasoning or 0) + (other.reasoning or 0) if told else None,
        )
