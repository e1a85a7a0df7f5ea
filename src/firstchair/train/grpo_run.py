"""A GRPO run from a recipe: a policy that acts, is rewarded and learns; resumable at every moment."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firstchair.chat.renderer import Renderer
from firstchair.chat.trained import trained_renderer
from firstchair.core.progress import progress
from firstchair.data.prompt_source import PromptSource
from firstchair.engines.base import Sampling
from firstchair.rewards.grading import Grader
from firstchair.rewards.judge_server import open_judge
from firstchair.rewards.probes import probe_rewards
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.episodes import Task
from firstchair.train.dist import ALONE
from firstchair.train.grpo import GrpoObjective
from firstchair.train.grpo_recipe import GrpoRecipe
from firstchair.train.loop import Job, Say, run_job
from firstchair.train.metrics import read_metrics
from firstchair.train.models import model_vocab_size
from firstchair.train.precision import precision_advice, settled
from firstchair.train.reference import Reference
from firstchair.train.rl_tasks import OpenEnvironment, open_environment
from firstchair.train.rollout_batches import RolloutBatches
from firstchair.train.rollout_source import Course, LoopThread, RolloutSource
from firstchair.train.run_dir import RunDir, RunResult, open_run, refuse_both
from firstchair.train.samplers import open_sampler
from firstchair.train.sft_inputs import Learner, load_learner
from firstchair.train.tokenising import ProgressMaker


@dataclass(frozen=True, slots=True)
class GrpoResult:
    """What a finished run leaves."""

    run_dir: Path
    model_dir: Path
    """A model (or a PEFT adapter) with tokenizer and chat template."""
    steps: int
    tokens: int
    seconds: float
    """Of this call; 0 when the run was finished before."""
    metrics: tuple[dict[str, Any], ...]
    """The lines of ``metrics.jsonl``."""


def train_grpo(
    recipe: GrpoRecipe,
    *,
    resume: bool = False,
    force: bool = False,
    progress: ProgressMaker = progress,
    say: Say = lambda text: None,
) -> GrpoResult:
    """Run ``recipe`` to its end; ``resume`` continues what was stopped, ``force`` replaces an earlier run.

    A run that was killed and resumed plays the same prompts in the same order, none twice and none left out. Raises
    ``ConfigError``, ``DataError`` or ``IntegrityError`` before anything is trained (a reward that cannot tell a good
    answer from a bad one is a ``ConfigError``), ``RunFailed`` when the run itself fails, ``KeyboardInterrupt`` after
    Ctrl-C (a checkpoint is then saved).
    """
    refuse_both(resume=resume, force=force)
    recipe = settled(recipe)
    if (advice := precision_advice(recipe)) is not None:
        say(advice)
    renderer = trained_renderer(recipe.model)
    environment = open_environment(recipe.environment, recipe.rollouts)
    prompts = PromptSource[Task](environment.tasks, seed=recipe.seed, source=environment.source)
    run = open_run(recipe, kind="grpo", template_hash=renderer.template_hash, resume=resume, force=force)
    done, seconds = run.finished(), 0.0
    if done is None or not run.model.is_dir():
        started = time.perf_counter()
        done = _reinforce(recipe, renderer, environment, prompts, run, progress)
        seconds = time.perf_counter() - started
    return GrpoResult(
        run_dir=run.path,
        model_dir=run.model,
        steps=done.steps,
        tokens=done.tokens,
        seconds=seconds,
        metrics=tuple(read_metrics(run.metrics)),
    )


def _reinforce(
    recipe: GrpoRecipe,
    renderer: Renderer,
    environment: OpenEnvironment,
    prompts: PromptSource[Task],
    run: RunDir,
    progress: ProgressMaker,
) -> RunResult:
    with ExitStack() as stack:
        thread = stack.enter_context(LoopThread())
        grader = stack.enter_context(_grader(recipe, environment, thread))
        # Before the model is loaded: a server that is not there is told at once.
        sampler = stack.enter_context(open_sampler(recipe, renderer, run, thread))
        learner = load_learner(recipe, recipe.batch.layout)
        sampling = Sampling(max_new_tokens=recipe.rollouts.max_new_tokens, temperature=1.0)
        policy = EnginePolicy(sampler.engine, renderer, sampling, record_tokens=False)
        played = RolloutBatches(
            recipe, environment, prompts, policy, grader, vocab_size=model_vocab_size(recipe.model)
        )
        batches, push = sampler.connect(learner, played)
        source = RolloutSource(batches, push, thread, _course(recipe, run, prompts))
        return run_job(_job(recipe, renderer, learner, source), run, ALONE, progress)


def _course(recipe: GrpoRecipe, run: RunDir, prompts: PromptSource[Task]) -> Course:
    return Course(
        batches=recipe.batches,
        steps_per_batch=recipe.grpo.steps_per_batch,
        rollouts_per_batch=recipe.rollouts.prompts * recipe.rollouts.samples,
        prompts=prompts,
        staleness=recipe.rollouts.staleness,
        patience=recipe.rollouts.patience,
        log=run.rollouts,
        sessions=run.sessions,
    )


def _job(recipe: GrpoRecipe, renderer: Renderer, learner: Learner, source: RolloutSource) -> Job:
    # What the policy is held to is the model that the run began with, so it is taken before a checkpoint is restored.
    reference = Reference.of(learner.scorer) if recipe.grpo.kl.coefficient else None
    objective = GrpoObjective(recipe.grpo, reference)
    return Job("grpo", recipe, renderer, learner, objective, source)


@contextmanager
def _grader(recipe: GrpoRecipe, environment: OpenEnvironment, thread: LoopThread) -> Iterator[Grader]:
    """The reward, proven to tell known-good answers from known-bad ones."""
    judge = open_judge(recipe.reward.judge) if recipe.reward.judge is not None else None
    try:
        pairs = thread.call(environment.probe_pairs())
        thread.call(probe_rewards(recipe.reward, pairs, judge))
        yield Grader(recipe.reward, judge, seed=recipe.seed)
    finally:
        if judge is not None:
            thread.call(judge.close())
