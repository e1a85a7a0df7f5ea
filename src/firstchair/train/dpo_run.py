"""Direct preference optimisation from a recipe: preference pairs to a model directory."""

from __future__ import annotations

from firstchair.core.progress import progress
from firstchair.train.dpo import DpoObjective
from firstchair.train.dpo_recipe import DpoRecipe
from firstchair.train.evaluation import HeldOutObjective
from firstchair.train.loop import Job, Say
from firstchair.train.pair_rows import PairLines, PairRows
from firstchair.train.record_run import RecordMethod, RecordResult, RecordSets, train_on_records
from firstchair.train.reference import Reference
from firstchair.train.sft_inputs import Inputs, Learner
from firstchair.train.sources import EpochSource
from firstchair.train.tokenising import ProgressMaker

SIDES = 2


def train_dpo(
    recipe: DpoRecipe,
    *,
    resume: bool = False,
    force: bool = False,
    progress: ProgressMaker = progress,
    say: Say = lambda text: None,
) -> RecordResult:
    """Run ``recipe`` to its end; see ``train_on_records``."""
    return train_on_records(recipe, DPO, resume=resume, force=force, progress=progress, say=say)


def _job(recipe: DpoRecipe, inputs: Inputs, learner: Learner, sets: RecordSets) -> Job:
    # What the policy is held to is the model that the run began with, so it is taken before a checkpoint is restored.
    objective = DpoObjective(recipe.dpo, Reference.of(learner.scorer))
    evaluation = None
    if sets.dev is not None:
        micro_tokens = recipe.eval.micro_tokens or recipe.batch.micro_tokens
        evaluation = HeldOutObjective(objective, PairRows(sets.dev), micro_tokens, learner.layout)
    return Job(
        kind="dpo",
        recipe=recipe,
        renderer=inputs.renderer,
        learner=learner,
        objective=objective,
        source=EpochSource(
            PairRows(sets.train),
            per_step=recipe.batch.pairs,
            epochs=recipe.epochs,
            max_steps=recipe.max_steps,
            seed=recipe.seed,
            together=SIDES,
        ),
        evaluation=evaluation,
        eval_every=recipe.eval.every,
    )


DPO = RecordMethod(name="dpo", kind=PairLines(), job=_job, held_out=("loss", "accuracy"))
