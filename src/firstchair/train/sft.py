"""Supervised fine-tuning from a recipe: recorded sessions to a model directory."""

from __future__ import annotations

from firstchair.core.progress import progress
from firstchair.train.config import SftRecipe
from firstchair.train.evaluation import HeldOutNll
from firstchair.train.loop import Job, Say
from firstchair.train.objective import SftObjective
from firstchair.train.record_run import RecordMethod, RecordResult, RecordSets, train_on_records
from firstchair.train.sft_inputs import Inputs, Learner
from firstchair.train.sources import EpochSource
from firstchair.train.tokenising import ProgressMaker, SftLines


def train_sft(
    recipe: SftRecipe,
    *,
    resume: bool = False,
    force: bool = False,
    progress: ProgressMaker = progress,
    say: Say = lambda text: None,
) -> RecordResult:
    """Run ``recipe`` to its end; see ``train_on_records``."""
    return train_on_records(recipe, SFT, resume=resume, force=force, progress=progress, say=say)


def _job(recipe: SftRecipe, inputs: Inputs, learner: Learner, sets: RecordSets) -> Job:
    evaluation = None
    if sets.dev is not None:
        micro_tokens = recipe.eval.micro_tokens or recipe.batch.micro_tokens
        evaluation = HeldOutNll(sets.dev, micro_tokens=micro_tokens, layout=learner.layout)
    return Job(
        kind="sft",
        recipe=recipe,
        renderer=inputs.renderer,
        learner=learner,
        objective=SftObjective(recipe.batch.reduction),
        source=EpochSource(
            sets.train,
            per_step=recipe.batch.sessions,
            epochs=recipe.epochs,
            max_steps=recipe.max_steps,
            seed=recipe.seed,
        ),
        evaluation=evaluation,
        eval_every=recipe.eval.every,
    )


SFT = RecordMethod(name="sft", kind=SftLines(), job=_job, held_out=("nll",))
