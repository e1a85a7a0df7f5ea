"""The learning rate as a pure function of the step: nothing to save, nothing to advance twice after a resume."""

from __future__ import annotations

import math

from firstchair.train.config import Schedule


def factor(step: int, total: int, schedule: Schedule) -> float:
    """Share of the peak rate in optimizer step ``step`` (0-based) of ``total``.

    Warm-up rises linearly and reaches 1 at its last step; the last step of a decay is at ``floor``.
    """
    warmup = math.ceil(schedule.warmup_ratio * total)
    if step < warmup:
        return (step + 1) / warmup
    if schedule.kind == "constant":
        return 1.0
    span = total - warmup
    progress = (step - warmup) / (span - 1) if span > 1 else 0.0
    shape = 0.5 * (1.0 + math.cos(math.pi * progress)) if schedule.kind == "cosine" else 1.0 - progress
    return schedule.floor + (1.0 - schedule.floor) * shape
