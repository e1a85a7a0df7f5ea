"""The dry run: everything but the training, with a measured estimate of how long that would take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from firstchair.core.progress import progress
from firstchair.train.batching import collate, cut_step
from firstchair.train.config import SftRecipe
from firstchair.train.models import count_parameters
from firstchair.train.objective import SftObjective
from firstchair.train.precision import settled
from firstchair.train.run_dir import RunDir
from firstchair.train.sft_inputs import (
    Learner,
    epoch_source,
    load_learner,
    read_inputs,
    read_tokens,
    sample_spans,
)
from firstchair.train.sources import EpochSource
from firstchair.train.token_sets import TokenCounts
from firstchair.train.tokenising import ProgressMaker


@dataclass(frozen=True, slots=True)
class SftPlan:
    """What a run would do: the answer of a dry run."""

    recipe: SftRecipe
    train: TokenCounts
    dev: TokenCounts | None
    samples: tuple[str, ...]
    """Trained text of some rows, decoded."""
    steps: int
    layout: str
    parameters: int
    trained_parameters: int
    tokens_per_second: float
    """Measured on one micro-batch, forward and backward."""
    seconds: float
    """Estimate for the whole run."""


def plan_sft(recipe: SftRecipe, *, scratch: Path, progress: ProgressMaker = progress) -> SftPlan:
    """Everything but the training: tokens (written below ``scratch``), checks, counts, and a measured estimate."""
    recipe = settled(recipe)
    inputs = read_inputs(recipe)
    train, dev = read_tokens(recipe, inputs, RunDir(scratch), progress)
    learner = load_learner(recipe, recipe.batch.layout)
    source = epoch_source(recipe, train)
    seconds = _time_micro_batch(learner, source, recipe)
    total, trained = count_parameters(learner.scorer)
    return SftPlan(
        recipe=recipe,
        train=train.counts,
        dev=dev.counts if dev is not None else None,
        samples=sample_spans(train, inputs.renderer),
        steps=source.total_steps,
        layout=learner.layout,
        parameters=total,
        trained_parameters=trained,
        tokens_per_second=1.0 / seconds,
        seconds=seconds * source.total_tokens,
    )


def _time_micro_batch(learner: Learner, source: EpochSource, recipe: SftRecipe) -> float:
    """Seconds a token, forward and backward, on the first micro-batch of the run; the second of two tries."""
    members = cut_step(source.feed(0).steps[0], recipe.batch.micro_tokens, layout=learner.layout)[0]
    batch = collate(members, layout=learner.layout).to(learner.scorer.device)
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        terms = SftObjective(recipe.batch.reduction).loss(learner.scorer, batch)
        torch.autograd.backward(terms.numerator)
        float(terms.numerator.detach())
        seconds = time.perf_counter() - started
        learner.scorer.zero_grad(set_to_none=True)
    return seconds / batch.tokens
