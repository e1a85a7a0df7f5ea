"""What becomes of a row that is longer than the model may see."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from firstchair.chat.token_conversation import Span
from firstchair.train.config import OverLong


class Fit(StrEnum):
    """What happened to a row."""

    WHOLE = "whole"
    TRUNCATED = "truncated"
    """The beginning was cut off."""
    SKIPPED = "skipped"
    """Left out: too long, and the policy says skip."""
    EMPTIED = "emptied"
    """Left out: cut, and nothing to learn was left."""
    REFUSED = "refused"
    """Too long, and the policy says error."""


def fit_row(loss_mask: Sequence[bool], spans: Sequence[Span], max_tokens: int, policy: OverLong) -> tuple[Fit, int]:
    """What to do with a row, and at which token it then begins.

    Truncation keeps the last ``max_tokens`` tokens, and of these begins at the first message border that leaves a
    trained token; without such a border it begins inside a message. What stands before (the system message, the
    tools) is lost: that is what the model will see in training.
    """
    length = len(loss_mask)
    if length <= max_tokens:
        return Fit.WHOLE, 0
    if policy == "error":
        return Fit.REFUSED, 0
    if policy == "skip":
        return Fit.SKIPPED, 0
    cut = length - max_tokens
    for span in spans:
        # An assistant span has its prompt before it; beginning there would train a reply to nothing.
        if span.start >= cut and span.role != "assistant" and any(loss_mask[span.start + 1 :]):
            return Fit.TRUNCATED, span.start
    return (Fit.TRUNCATED, cut) if any(loss_mask[cut + 1 :]) else (Fit.EMPTIED, 0)
