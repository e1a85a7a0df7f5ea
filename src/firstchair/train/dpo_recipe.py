"""The recipe of a DPO run: the pairs, and how the policy learns from them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from firstchair.train.config import MOST, Cut, RecordRecipe, SftData
from firstchair.train.rl_config import Dpo


class DpoData(SftData):
    """What is learnt from, and what the policy is measured on. A pair is two rows: its prompt with each side."""

    train: Path
    """Preference pairs, JSONL (``.gz`` too), as ``firstchair data pairs`` writes them."""
    dev: Path | None = None
    """Held-out pairs, measured at the start, every ``eval.every`` steps and at the end."""
    select: Literal["all"] = "all"
    """Pairs are chosen when they are made."""
    clean_only: Literal[False] = False
    over_long: Literal["error", "skip"] = "error"
    """``skip`` leaves out a pair of which one side is longer than ``max_tokens``."""
    min_rows: int = Field(default=2, ge=2, le=MOST)
    """Refuse to train on fewer rows, two a pair."""


class PairBatch(Cut):
    """One optimizer step. Both sides of a pair are in one micro-batch."""

    pairs: int = Field(default=16, ge=1, le=1_000_000)
    """Pairs of one optimizer step, over all processes."""


class DpoRecipe(RecordRecipe):
    """Direct preference optimisation; the reference is ``model`` as it is."""

    data: DpoData
    batch: PairBatch = PairBatch()
    dpo: Dpo = Dpo()

    @model_validator(mode="after")
    def _fits(self) -> DpoRecipe:
        for name, found in (("batch", self.batch.micro_tokens), ("eval", self.eval.micro_tokens)):
            if found is not None and found < 2 * self.data.max_tokens:
                raise ValueError(
                    f"{name}.micro_tokens ({found}) must be at least twice data.max_tokens ({self.data.max_tokens}), "
                    "or the two sides of the longest pair do not fit; raise the first or lower the second"
                )
        return self
