"""Supervised fine-tuning from a recipe: data to tokens, tokens to a model directory, resumable at every moment."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstchair.core.clock import utc_now
from firstchair.core.errors import ConfigError
from firstchair.core.progress import Progress, Silent, progress
from firstchair.engines.weights import weights_revision
from firstchair.train.checkpoints import prune
from firstchair.train.config import BatchLayout, SftRecipe
from firstchair.train.dist import World, join_world, leave_world
from firstchair.train.metrics import MetricLog, read_metrics
from firstchair.train.models import DTYPES, count_parameters, export_model, stored_precision
from firstchair.train.objective import SftObjective
from firstchair.train.optimizers import build_optimizers
from firstchair.train.precision import precision_advice, settled
from firstchair.train.run_dir import (
    RunDir,
    RunRecord,
    RunResult,
    begin_record,
    check_same_run,
    new_run,
    write_record,
    write_result,
)
from firstchair.train.sft_inputs import (
    Inputs,
    Learner,
    epoch_source,
    load_learner,
    read_inputs,
    read_tokens,
    sample_spans,
)
from firstchair.train.token_sets import TokenCounts, TokenSet
from firstchair.train.tokenising import ProgressMaker
from firstchair.train.trackers import open_trackers
from firstchair.train.trainer import LoopSettings, Outputs, Trainer

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a finished run leaves."""

    run_dir: Path
    model_dir: Path
    """A model (or a PEFT adapter) with tokenizer and chat template."""
    steps: int
    tokens: int
    seconds: float
    """Of this call; 0 when the run was finished before."""
    start_nll: float | None
    """Held-out loss of the base, nats a token; ``None`` without held-out data."""
    final_nll: float | None
    train: TokenCounts
    metrics: tuple[dict[str, Any], ...]
    """The lines of ``metrics.jsonl``."""


def train_sft(
    recipe: SftRecipe,
    *,
    resume: bool = False,
    force: bool = False,
    progress: ProgressMaker = progress,
    say: Say = lambda text: None,
) -> SftResult:
    """Run ``recipe`` to its end; ``resume`` continues what was stopped, ``force`` replaces an earlier run.

    Equal recipes give equal losses, killed and resumed or not: bit for bit on one kind of CPU with one number of
    threads. Raises ``ConfigError``, ``DataError`` or ``IntegrityError`` before anything is trained, ``RunFailed``
    when the run itself fails, ``KeyboardInterrupt`` after Ctrl-C (a checkpoint is then saved).
    """
    if resume and force:
        raise ConfigError("--resume continues a run and --force replaces it; give one of them")
    recipe = settled(recipe)
    world = join_world()
    if world.is_main and (advice := precision_advice(recipe)) is not None:
        say(advice)
    bars = progress if world.is_main else _no_bar
    try:
        return _train(recipe, world, resume=resume, force=force, progress=bars, say=say)
    finally:
        leave_world(world)


def _no_bar(title: str, total: int, *, unit: str = "it") -> AbstractContextManager[Progress]:
    """One bar for all processes is enough."""
    return nullcontext(Silent())


def _train(
    recipe: SftRecipe, world: World, *, resume: bool, force: bool, progress: ProgressMaker, say: Say
) -> SftResult:
    inputs, run = read_inputs(recipe), RunDir(recipe.out)
    fields = begin_record(
        recipe,
        kind="sft",
        base_revision=weights_revision(recipe.model),
        template_hash=inputs.renderer.template_hash,
        processes=world.size,
    )
    sources: dict[str, Any] = {"train": inputs.train.source, "dev": inputs.dev.source if inputs.dev else None}
    if resume:
        names = ("base_revision", "template_hash", "processes")
        check_same_run(run.record(), recipe, {**{name: fields[name] for name in names}, **sources})
    elif world.is_main:
        with new_run(recipe.out, force=force) as temporary:
            train, dev = read_tokens(recipe, inputs, RunDir(temporary), progress)
            dev_counts = dev.counts if dev is not None else None
            write_record(
                temporary, recipe, RunRecord(train_counts=train.counts, dev_counts=dev_counts, **fields, **sources)
            )
    world.wait()
    train, dev = read_tokens(recipe, inputs, run, progress)
    if world.is_main:
        for text in sample_spans(train, inputs.renderer):
            say(text)
    done = run.finished()
    seconds = 0.0
    if done is None or not run.model.is_dir():
        started = time.perf_counter()
        done = _loop(recipe, inputs, run, train, dev, world, progress)
        seconds = time.perf_counter() - started
    return SftResult(
        run_dir=run.path,
        model_dir=run.model,
        steps=done.steps,
        tokens=done.tokens,
        seconds=seconds,
        start_nll=done.start_nll,
        final_nll=done.final_nll,
        train=train.counts,
        metrics=tuple(read_metrics(run.metrics)),
    )


def _loop(
    recipe: SftRecipe,
    inputs: Inputs,
    run: RunDir,
    train: TokenSet,
    dev: TokenSet | None,
    world: World,
    progress: ProgressMaker,
) -> RunResult:
    """Load, train from where the run stands, export."""
    learner = load_learner(recipe, recipe.batch.layout, rank=world.rank)
    checkpoint = run.newest_checkpoint(recipe.save.every)
    kept = checkpoint.position.metrics_bytes if checkpoint is not None else 0
    log = MetricLog(run.metrics, keep_bytes=kept) if world.is_main else None
    timings = MetricLog(run.timings, keep_bytes=None) if world.is_main else None
    name = recipe.log.name or recipe.out.name
    trackers = open_trackers(
        recipe.log.trackers if world.is_main else (), project=recipe.log.project, name=name, config=recipe.resolved()
    )
    source = epoch_source(recipe, train)
    trainer = Trainer(
        learner.scorer,
        build_optimizers(learner.scorer.model, recipe.optimizer),
        SftObjective(recipe.batch.reduction),
        source,
        Outputs(run.checkpoints, log, timings, trackers),
        _loop_settings(recipe, learner.layout, inputs.renderer.template_hash),
        dev=dev,
        world=world,
    )
    try:
        if checkpoint is not None:
            trainer.restore(checkpoint)
            if world.is_main:
                prune(run.checkpoints, recipe.save.keep)
        with progress("sft", max(source.total_tokens - trainer.tokens, 1), unit="tok") as bar:
            trainer.run(bar)
    finally:
        for tracker in trackers:
            tracker.close()
        for file in (log, timings):
            if file is not None:
                file.close()
    return _finish(recipe, inputs, run, learner, trainer)


def _finish(recipe: SftRecipe, inputs: Inputs, run: RunDir, learner: Learner, trainer: Trainer) -> RunResult:
    """Export the model and write down how it came out."""
    evals = [line["nll"] for line in read_metrics(run.metrics) if line["event"] == "eval"]
    total, trained = count_parameters(learner.scorer)
    result = RunResult(
        finished_at=utc_now(),
        steps=trainer.step,
        tokens=trainer.tokens,
        start_nll=evals[0] if evals else None,
        final_nll=evals[-1] if evals else None,
        layout=learner.layout,
        parameters=total,
        trained_parameters=trained,
    )
    if trainer.world.is_main:
        wanted = recipe.export_precision
        precision = stored_precision(recipe.model) if wanted == "base" else DTYPES[wanted]
        export_model(learner.scorer.model, inputs.renderer, run.model, precision=precision, force=True)
        write_result(run, result)
    trainer.world.wait()
    return result


def _loop_settings(recipe: SftRecipe, layout: BatchLayout, template_hash: str) -> LoopSettings:
    return LoopSettings(
        schedule=recipe.schedule,
        clip_norm=recipe.clip_norm,
        micro_tokens=recipe.batch.micro_tokens,
        layout=layout,
        recipe_sha256=recipe.sha256(),
        template_hash=template_hash,
        eval_every=recipe.eval.every,
        eval_micro_tokens=recipe.eval.micro_tokens,
        save_every=recipe.save.every,
        keep=recipe.save.keep,
    )
