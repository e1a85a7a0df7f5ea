"""A run on a file of records, whatever is learnt from them: data to tokens, tokens to a model directory, resumable at
every moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from firstchair.engines.weights import weights_revision
from firstchair.train.config import RecordRecipe
from firstchair.train.dist import World, joined_world
from firstchair.train.loop import Job, Say, no_bar, run_job
from firstchair.train.metrics import read_metrics
from firstchair.train.precision import precision_advice, settled
from firstchair.train.run_dir import (
    RunDir,
    RunRecord,
    RunResult,
    begin_record,
    check_same_run,
    new_run,
    refuse_both,
    write_record,
)
from firstchair.train.sft_inputs import Inputs, Learner, load_learner, read_inputs, read_tokens, sample_spans
from firstchair.train.token_sets import TokenCounts, TokenSet
from firstchair.train.tokenising import ProgressMaker, RecordKind

Recipe = TypeVar("Recipe", bound=RecordRecipe)


@dataclass(frozen=True, slots=True)
class RecordSets:
    """The records as tokens."""

    train: TokenSet
    dev: TokenSet | None


@dataclass(frozen=True, slots=True)
class RecordMethod(Generic[Recipe]):
    """What is particular to one way of learning from records."""

    name: str
    """``sft``, ``dpo``."""
    kind: RecordKind
    """What a line of the file is."""
    job: Callable[[Recipe, Inputs, Learner, RecordSets], Job]
    """What the loop is to do. The learner is as the run begins, before any checkpoint is restored."""
    held_out: tuple[str, ...]
    """The figures of an evaluation that say how the run came out."""


@dataclass(frozen=True, slots=True)
class RecordResult:
    """What a finished run leaves."""

    run_dir: Path
    model_dir: Path
    """A model (or a PEFT adapter) with tokenizer and chat template."""
    steps: int
    tokens: int
    seconds: float
    """Of this call; 0 when the run was finished before."""
    start_nll: float | None
    """Held-out loss of the base, nats a token; ``None`` where it is not measured."""
    final_nll: float | None
    train: TokenCounts
    metrics: tuple[dict[str, Any], ...]
    """The lines of ``metrics.jsonl``."""


def train_on_records(
    recipe: Recipe,
    method: RecordMethod[Recipe],
    *,
    resume: bool,
    force: bool,
    progress: ProgressMaker,
    say: Say,
) -> RecordResult:
    """Run ``recipe`` to its end; ``resume`` continues what was stopped, ``force`` replaces an earlier run.

    Equal recipes give equal losses, killed and resumed or not: bit for bit on one kind of CPU with one number of
    threads. Raises ``ConfigError``, ``DataError`` or ``IntegrityError`` before anything is trained, ``RunFailed``
    when the run itself fails, ``KeyboardInterrupt`` after Ctrl-C (a checkpoint is then saved).
    """
    refuse_both(resume=resume, force=force)
    recipe = settled(recipe)
    with joined_world() as world:
        if world.is_main and (advice := precision_advice(recipe)) is not None:
            say(advice)
        bars = progress if world.is_main else no_bar
        return _train(recipe, method, world, resume=resume, force=force, progress=bars, say=say)


def _train(
    recipe: Recipe,
    method: RecordMethod[Recipe],
    world: World,
    *,
    resume: bool,
    force: bool,
    progress: ProgressMaker,
    say: Say,
) -> RecordResult:
    inputs, run = read_inputs(recipe, method.kind), RunDir(recipe.out)
    fields = begin_record(
        recipe,
        kind=method.name,
        base_revision=weights_revision(recipe.model),
        template_hash=inputs.renderer.template_hash,
        processes=world.size,
    )
    sources: dict[str, Any] = {"train": inputs.train.source, "dev": inputs.dev.source if inputs.dev else None}
    if resume:
        check_same_run(run.record(), recipe, fields, **sources)
    elif world.is_main:
        with new_run(recipe.out, force=force) as temporary:
            train, dev = read_tokens(recipe, inputs, RunDir(temporary), progress)
            dev_counts = dev.counts if dev is not None else None
            write_record(
                temporary, recipe, RunRecord(train_counts=train.counts, dev_counts=dev_counts, **fields, **sources)
            )
    world.wait()
    sets = RecordSets(*read_tokens(recipe, inputs, run, progress))
    if world.is_main:
        for text in sample_spans(sets.train, inputs.renderer):
            say(text)
    done = run.finished()
    seconds = 0.0
    if done is None or not run.model.is_dir():
        started = time.perf_counter()
        done = _loop(recipe, method, inputs, sets, run, world, progress)
        seconds = time.perf_counter() - started
    return RecordResult(
        run_dir=run.path,
        model_dir=run.model,
        steps=done.steps,
        tokens=done.tokens,
        seconds=seconds,
        start_nll=done.start_nll,
        final_nll=done.final_nll,
        train=sets.train.counts,
        metrics=tuple(read_metrics(run.metrics)),
    )


def _loop(
    recipe: Recipe,
    method: RecordMethod[Recipe],
    inputs: Inputs,
    sets: RecordSets,
    run: RunDir,
    world: World,
    progress: ProgressMaker,
) -> RunResult:
    learner = load_learner(recipe, recipe.batch.layout, rank=world.rank)
    return run_job(method.job(recipe, inputs, learner, sets), run, world, progress)
