"""The dry run: everything but the training, with a measured estimate of how long that would take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch

from firstchair.core.progress import progress
from firstchair.train.batching import collate, cut_step
from firstchair.train.config import RecordRecipe, SftRecipe
from firstchair.train.loop import Job
from firstchair.train.models import count_parameters
from firstchair.train.precision import settled
from firstchair.train.record_run import Recipe, RecordMethod, RecordSets
from firstchair.train.run_dir import RunDir
from firstchair.train.sft import SFT
from firstchair.train.sft_inputs import load_learner, read_inputs, read_tokens, sample_spans
from firstchair.train.token_sets import TokenCounts
from firstchair.train.tokenising import ProgressMaker


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """What a run on records would do: the answer of a dry run."""

    recipe: RecordRecipe
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


def plan_sft(recipe: SftRecipe, *, scratch: Path, progress: ProgressMaker = progress) -> RecordPlan:
    """The dry run of fine-tuning."""
    return plan_on_records(recipe, SFT, scratch=scratch, progress=progress)


def plan_on_records(
    recipe: Recipe, method: RecordMethod[Recipe], *, scratch: Path, progress: ProgressMaker = progress
) -> RecordPlan:
    """Everything but the training: tokens (written below ``scratch``), checks, counts, and a measured estimate."""
    recipe = settled(recipe)
    inputs = read_inputs(recipe, method.kind)
    train, dev = read_tokens(recipe, inputs, RunDir(scratch), progress)
    job = method.job(recipe, inputs, load_learner(recipe, recipe.batch.layout), RecordSets(train, dev))
    seconds = _time_micro_batch(job)
    total, trained = count_parameters(job.learner.scorer)
    return RecordPlan(
        recipe=recipe,
        train=train.counts,
        dev=dev.counts if dev is not None else None,
        samples=sample_spans(train, inputs.renderer),
        steps=job.source.total_steps,
        layout=job.learner.layout,
        parameters=total,
        trained_parameters=trained,
        tokens_per_second=1.0 / seconds,
        seconds=seconds * job.source.total_work,
    )


def _time_micro_batch(job: Job) -> float:
    """Seconds a token, forward and backward, on the first micro-batch of the run; the second of two tries."""
    scorer, layout = job.learner.scorer, job.learner.layout
    members = cut_step(job.source.feed(0).steps[0], job.recipe.batch.micro_tokens, layout=layout)[0]
    raw = collate(members, layout=layout).to(scorer.device)
    seconds = 0.0
    for _ in range(2):
        started = time.perf_counter()
        with torch.no_grad():
            (batch,) = job.objective.prepare([raw], scorer)
        terms = job.objective.loss(scorer, batch)
        torch.autograd.backward(terms.numerator)
        float(terms.numerator.detach())
        seconds = time.perf_counter() - started
        scorer.zero_grad(set_to_none=True)
    return seconds / raw.tokens
