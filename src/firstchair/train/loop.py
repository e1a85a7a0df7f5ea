"""A recipe's run around the training loop, whatever is trained for: open, restore, train, close, export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from firstchair.chat.renderer import Renderer
from firstchair.core.clock import utc_now
from firstchair.core.progress import Progress, Silent
from firstchair.train.checkpoints import prune
from firstchair.train.config import RunRecipe
from firstchair.train.dist import World
from firstchair.train.evaluation import Evaluation
from firstchair.train.metrics import MetricLog, read_metrics
from firstchair.train.models import DTYPES, count_parameters, export_model, stored_precision
from firstchair.train.objective import Objective
from firstchair.train.optimizers import build_optimizers
from firstchair.train.run_dir import RunDir, RunResult, write_result
from firstchair.train.sft_inputs import Learner
from firstchair.train.sources import Source
from firstchair.train.tokenising import ProgressMaker
from firstchair.train.trackers import open_trackers
from firstchair.train.trainer import LoopSettings, Outputs, Trainer

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Job:
    """What a run trains, on what, for what."""

    kind: str
    """``sft``, ``grpo``, …: the title of the progress bar."""
    recipe: RunRecipe
    renderer: Renderer
    learner: Learner
    objective: Objective
    source: Source
    evaluation: Evaluation | None = None
    eval_every: int | None = None
    """Steps between two evaluations; ``None``: at the start and the end alone."""

    def settings(self) -> LoopSettings:
        """The loop's numbers as the recipe gives them."""
        recipe = self.recipe
        return LoopSettings(
            schedule=recipe.schedule,
            clip_norm=recipe.clip_norm,
            micro_tokens=recipe.batch.micro_tokens,
            layout=self.learner.layout,
            recipe_sha256=recipe.sha256(),
            template_hash=self.renderer.template_hash,
            eval_every=self.eval_every,
            save_every=recipe.save.every,
            keep=recipe.save.keep,
        )


def run_job(job: Job, run: RunDir, world: World, progress: ProgressMaker) -> RunResult:
    """Train from where the run stands to its end and export; the run's directory says how it came out."""
    recipe, source = job.recipe, job.source
    checkpoint = run.newest_checkpoint(recipe.save.every)
    kept = checkpoint.position.metrics_bytes if checkpoint is not None else 0
    with _outputs(recipe, run, world, kept) as outputs:
        optimizers = build_optimizers(job.learner.scorer.model, recipe.optimizer)
        trainer = Trainer(
            job.learner.scorer,
            optimizers,
            job.objective,
            source,
            outputs,
            job.settings(),
            evaluation=job.evaluation,
            world=world,
        )
        if checkpoint is not None:
            trainer.restore(checkpoint)
            if world.is_main:
                prune(run.checkpoints, recipe.save.keep)
        left = source.total_work * (source.total_steps - trainer.step) // source.total_steps
        with progress(job.kind, max(left, 1), unit=source.unit) as bar:
            trainer.run(bar)
    return _finish(job, run, trainer)


@contextmanager
def _outputs(recipe: RunRecipe, run: RunDir, world: World, kept: int) -> Iterator[Outputs]:
    log = MetricLog(run.metrics, keep_bytes=kept) if world.is_main else None
    timings = MetricLog(run.timings, keep_bytes=None) if world.is_main else None
    trackers = open_trackers(
        recipe.log.trackers if world.is_main else (),
        project=recipe.log.project,
        name=recipe.log.name or recipe.out.name,
        config=recipe.resolved(),
    )
    try:
        yield Outputs(run.checkpoints, log, timings, trackers)
    finally:
        for tracker in trackers:
            tracker.close()
        for file in (log, timings):
            if file is not None:
                file.close()


def _finish(job: Job, run: RunDir, trainer: Trainer) -> RunResult:
    """Export the model and write down how it came out."""
    evals = [line["nll"] for line in read_metrics(run.metrics) if "nll" in line and line["event"] == "eval"]
    total, trained = count_parameters(job.learner.scorer)
    result = RunResult(
        finished_at=utc_now(),
        steps=trainer.step,
        tokens=trainer.tokens,
        start_nll=evals[0] if evals else None,
        final_nll=evals[-1] if evals else None,
        layout=job.learner.layout,
        parameters=total,
        trained_parameters=trained,
    )
    if trainer.world.is_main:
        wanted = job.recipe.export_precision
        precision = stored_precision(job.recipe.model) if wanted == "base" else DTYPES[wanted]
        export_model(job.learner.scorer.model, job.renderer, run.model, precision=precision, force=True)
        write_result(run, result)
    trainer.world.wait()
    return result


def no_bar(title: str, total: int, *, unit: str = "it") -> AbstractContextManager[Progress]:
    """For every process but the first: one bar for all is enough."""
    return nullcontext(Silent())
