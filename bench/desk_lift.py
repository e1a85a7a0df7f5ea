"""What reinforcement or DAgger did to a model of the desk: strict pass, completed tasks and recovery, paired.

python bench/desk_lift.py BEFORE AFTER [AFTER …] --golden demo-run/golden

Every model replays the golden set, plays the same tasks, and goes on from the same mistakes (``recovery_case``),
greedily and on one thread. None of these tasks has the seed of a recipe in ``recipes/``. Prints the rates and how far
they are from the first model's, with 95% intervals over sessions or tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from firstchair.chat.trained import trained_renderer
from firstchair.data.golden import GoldenSet
from firstchair.engines.base import Sampling
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.evals.gate_checks import Sides, metric_sides, row_pairs
from firstchair.evals.replay import ReplayOptions, replay_async
from firstchair.evals.run_record import DecisionRow
from firstchair.evals.stats import Columns, careful_difference, careful_rate
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.recovery import RecoveryCase, TakingOver, recovery_case
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.episodes import run_episodes
from firstchair.rollout.policy import Policy
from firstchair.train.dagger_figures import shown

SAMPLING = Sampling(max_new_tokens=96)
TASKS_SEED, CASES_SEED, SEED = 770_077, 990_001, 5
MAX_STEPS, CONCURRENCY = 30, 80


@dataclass(frozen=True)
class Shown:
    """What one model does."""

    rows: Sequence[DecisionRow]
    completed: dict[str, float]
    """Task → 1 when it was completed."""
    recovered: dict[str, float]


async def play(policy: Policy, tasks: Sequence[DeskTask], extra_steps: int = 0) -> dict[str, float]:
    """One episode a task; those lost to errors are left out."""
    live = run_episodes(
        DeskEnvironment, tasks, policy, seed=SEED, concurrency=CONCURRENCY, max_steps=MAX_STEPS + extra_steps
    )
    episodes = [episode async for episode in live]
    return {episode.task_id: float(episode.completed) for episode in episodes if episode.completed is not None}


async def measure(model: Path, golden: GoldenSet, tasks: Sequence[DeskTask], cases: Sequence[RecoveryCase]) -> Shown:
    """All three measures of ``model``."""
    renderer = trained_renderer(model)
    engine = TransformersEngine(model, renderer)
    policy = EnginePolicy(engine, renderer, SAMPLING, record_tokens=False)
    try:
        with tempfile.TemporaryDirectory() as folder:
            run = await replay_async(golden, engine, renderer, Path(folder) / "run", ReplayOptions(sampling=SAMPLING))
        completed = await play(policy, tasks)
        longest = max(len(case.actions) for case in cases)
        recovered = await play(TakingOver(policy, cases), [case.task for case in cases], longest)
    finally:
        await engine.close()
    return Shown(run.rows, completed, recovered)


async def cases_of(count: int) -> list[RecoveryCase]:
    """As many tasks with one mistake each, which the expert still completes."""
    found = [await recovery_case(task, mistakes=1, seed=SEED) for task in make_tasks(count + count // 10, CASES_SEED)]
    return [case for case in found if case is not None][:count]


def column(outcomes: dict[str, float], names: Sequence[str]) -> Columns:
    """Hits and trials of ``names``."""
    return [outcomes[name] for name in names], [1.0] * len(names)


def sides_of(before: Shown, after: Shown) -> dict[str, Sides]:
    """The three measures, paired."""
    sides = {"strict pass": metric_sides(row_pairs(before.rows, after.rows), "strict_pass")}
    for title, name in (("completed", "completed"), ("recovered", "recovered")):
        was, now = getattr(before, name), getattr(after, name)
        names = sorted(was.keys() & now.keys())
        sides[title] = Sides(column(was, names), column(now, names), names)
    return sides


def line(sides: Sides) -> str:
    """The later side's rate, and how far it is from the earlier one."""
    now = careful_rate(*sides.after, sides.clusters)
    return f"{shown(now)}; {shown(careful_difference(*sides))}"


async def main(options: argparse.Namespace) -> None:
    """Measure and print."""
    golden = GoldenSet.load(options.golden)
    tasks, cases = make_tasks(options.tasks, TASKS_SEED), await cases_of(options.cases)
    before: Shown | None = None
    for model in options.models:
        found = await measure(model, golden, tasks, cases)
        before = before or found
        for name, sides in sides_of(before, found).items():
            print(f"{model}  {name:<12} {line(sides)}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--golden", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=240)
    parser.add_argument("--cases", type=int, default=200)
    asyncio.run(main(parser.parse_args()))
