"""What GRPO teaches an orchestrator about whom to ask: accuracy and cost on held-out tasks of simulated experts.

python bench/routing_lift.py start --out runs/routing     the model that knows the form and no routing
python bench/routing_lift.py train --out runs/routing     recipes/grpo_routing.yaml for every λ and seed, and
                                                          recipes/grpo_preferences.yaml for every seed
python bench/routing_lift.py measure --out runs/routing   every λ and the fixed rules on the same tasks
python bench/routing_lift.py wishes --out runs/routing    what each user's wish changes

``train`` goes on where it was stopped and passes over what is done. ``measure`` writes ``outcomes.jsonl`` beside the
runs, for ``firstchair pareto``, and prints the figures with 95% intervals over tasks. Models decode greedily, and a
call can name nothing but a tool that is offered.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch

from firstchair.catalog.token_counts import NANO
from firstchair.chat.trained import trained_renderer
from firstchair.core.config import load_recipe
from firstchair.core.jsonl import write_jsonl
from firstchair.engines.base import Sampling
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.evals.pareto import PolicyKind, RoutedTask, mean, pareto_points
from firstchair.evals.stats import careful_difference, careful_rate, cluster_sums, replicate_sums
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.episodes import run_episodes
from firstchair.rollout.orchestration.simulated import answer_of
from firstchair.rollout.orchestration.simulated_tasks import Wish, simulated_tasks, with_wish
from firstchair.rollout.orchestration.simulated_world import RULES, Presentation, World, is_right
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.train.dagger_figures import shown
from firstchair.train.grpo_recipe import GrpoRecipe
from firstchair.train.grpo_run import train_grpo
from firstchair.train.routing_start import make_start

LAMBDAS, SEEDS = (0.0, 0.2, 0.5, 1.0), (0, 1, 2)
HEADLINE = 0.5
"""The λ whose every seed is trained; the others have seed 0 alone."""
TASKS_SEED, EPISODES_SEED = 770_077, 5
RECIPES = Path(__file__).parents[1] / "recipes"
PRESENTATIONS: tuple[Presentation, ...] = ("named", "renamed", "anonymised")
WISHES: tuple[Wish, ...] = ("accuracy", "cost", "latency")


@dataclass(frozen=True)
class Made:
    """What became of one task."""

    task_id: str
    right: bool
    cost_usd: float
    latency_s: float
    asked: tuple[str, ...]
    """Experts in the catalog."""


def runs(out: Path) -> Iterator[tuple[Path, str, float | None, int]]:
    """Every run: its directory, recipe, λ and seed; the headline first."""
    every = sorted(LAMBDAS, key=lambda one: one != HEADLINE)
    for weight in every:
        for seed in SEEDS if weight == HEADLINE else SEEDS[:1]:
            yield out / f"lambda-{weight}-seed-{seed}", "grpo_routing.yaml", weight, seed
    for seed in SEEDS:
        yield out / f"preferences-seed-{seed}", "grpo_preferences.yaml", None, seed


def train(out: Path, only: str) -> None:
    """Every run that is not done."""
    for path, name, weight, seed in runs(out):
        if only not in path.name or (path / "model").is_dir():
            continue
        sets = [f"model={out / 'start' / 'sft' / 'model'}", f"out={path}", f"seed={seed}"]
        recipe = load_recipe(GrpoRecipe, RECIPES / name, sets)
        if weight is not None:
            (right,) = recipe.reward.components
            reward = recipe.reward.model_copy(
                update={"components": (right.model_copy(update={"lambda_cost": weight}),)}
            )
            recipe = recipe.model_copy(update={"reward": reward})
        print(f"{path.name}: {train_grpo(recipe, resume=path.exists()).seconds:.0f} s", flush=True)


async def play(model: Path, tasks: Sequence[OrchestrationTask], presentation: Presentation) -> list[Made]:
    """One greedy episode a task; raises when one breaks, as nothing here can."""
    renderer = trained_renderer(model)
    engine = TransformersEngine(model, renderer)
    policy = EnginePolicy(engine, renderer, Sampling(max_new_tokens=48), constrain=True, record_tokens=False)
    world = World(tuple(tasks), seed=0)
    try:
        playing = run_episodes(
            world.environment((presentation,)), tasks, policy, seed=EPISODES_SEED, concurrency=100, max_steps=4
        )
        found: list[Made] = []
        async for episode in playing:
            assert episode.outcome is not None, episode.error
            took = episode.outcome.measures
            asked = tuple(name.removeprefix("calls.") for name, n in took.items() if name.startswith("calls.") and n)
            made = Made(episode.task_id, episode.outcome.completed, took["cost_usd"], took["latency_s"], asked)
            found.append(made)
    finally:
        await engine.close()
    return sorted(found, key=lambda made: made.task_id)


def by_rule(name: str, world: World) -> list[Made]:
    """What a fixed rule makes of every task."""
    found = []
    for task in world.tasks:
        expert = RULES[name](task, world.experts, world.seed)
        answer = answer_of(expert, task, world.seed)
        cost = (answer.cost_nano or 0) / NANO
        found.append(Made(task.task_id, is_right(expert, task, world.seed), cost, answer.latency_s, (expert.name,)))
    return sorted(found, key=lambda made: made.task_id)


def routed(
    policy: str, rows: Sequence[Made], weight: float | None = None, kind: PolicyKind = "trained"
) -> list[RoutedTask]:
    """As the Pareto page reads them."""
    return [
        RoutedTask(
            policy=policy,
            task_id=row.task_id,
            correct=row.right,
            cost_usd=row.cost_usd,
            latency_s=row.latency_s,
            lambda_cost=weight,
            kind=kind,
        )
        for row in rows
    ]


def share(rows: Sequence[Made]) -> str:
    """Accuracy with its interval."""
    hits = [float(row.right) for row in rows]
    return shown(careful_rate(hits, [1.0] * len(rows), [row.task_id for row in rows]))


def gain(before: Sequence[Made], after: Sequence[Made]) -> str:
    """Accuracy after − before in points, paired by task; ``before`` is repeated where ``after`` has several seeds."""
    again = [*before] * (len(after) // len(before))
    was, now = (([float(row.right) for row in rows], [1.0] * len(rows)) for rows in (again, after))
    return shown(careful_difference(was, now, [row.task_id for row in after]))


def saving(before: Sequence[Made], after: Sequence[Made]) -> str:
    """1 − cost after / cost before, with its bootstrap interval over tasks."""
    again = [*before] * (len(after) // len(before))
    ids = [row.task_id for row in after]
    sums_C = cluster_sums(ids, [row.cost_usd for row in again], [row.cost_usd for row in after])
    drawn = replicate_sums(sums_C, seed=0)
    values = sorted(1 - drawn[:, 1] / drawn[:, 0])
    low, high = values[int(0.025 * len(values))], values[int(0.975 * len(values)) - 1]
    return f"{100 * (1 - sums_C[1].sum() / sums_C[0].sum()):.1f}% [{100 * low:.1f}, {100 * high:.1f}]"


def above_mixture(cheap: Sequence[Made], strong: Sequence[Made], after: Sequence[Made]) -> str:
    """Points above a coin that asks the strongest just so often that it costs as much, with a bootstrap interval."""
    times = len(after) // len(cheap)
    rows = [*cheap] * times, [*strong] * times, after
    columns = [column for part in rows for column in ([float(r.right) for r in part], [r.cost_usd for r in part])]
    sums_C = cluster_sums([row.task_id for row in after], [1.0] * len(after), *columns)

    def above(
        n: float, right_c: float, usd_c: float, right_s: float, usd_s: float, right: float, usd: float
    ) -> float:
        part = (usd - usd_c) / (usd_s - usd_c)
        return 100 * (right - right_c - part * (right_s - right_c)) / n

    values = sorted(above(*row) for row in replicate_sums(sums_C, seed=0))
    low, high = values[int(0.025 * len(values))], values[int(0.975 * len(values)) - 1]
    return f"{above(*(column.sum() for column in sums_C)):+.1f} [{low:.1f}, {high:.1f}]"


def usd(rows: Sequence[Made]) -> str:
    """Mean cost of a task in cents, with its interval."""
    found = mean([(row.task_id, 100 * row.cost_usd) for row in rows])
    return f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


async def measure_routing(out: Path, tasks: Sequence[OrchestrationTask]) -> list[RoutedTask]:
    """The fixed rules, the start and every λ; prints, and returns what the page shows."""
    world = World(tuple(tasks), seed=0)
    rules = {name: by_rule(name, world) for name in RULES}
    cheap, strong = rules["always cheapest"], rules["always strongest"]
    every: list[RoutedTask] = []
    for name, rows in rules.items():
        print(f"{name:<22} accuracy {share(rows)}, cents {usd(rows)}", flush=True)
        every += routed(name, rows, kind="bound" if name == "oracle" else "rule")
    before = await play(out / "start" / "sft" / "model", tasks, "named")
    print(f"{'before GRPO':<22} accuracy {share(before)}, cents {usd(before)}", flush=True)
    every += routed("before GRPO", before)
    parts: dict[tuple[float, Presentation], list[Made]] = {}
    for path, _, weight, seed in runs(out):
        if weight is None or not (path / "model").is_dir():
            continue
        for presentation in PRESENTATIONS if weight == HEADLINE else PRESENTATIONS[:1]:
            rows = await play(path / "model", tasks, presentation)
            print(f"  λ {weight} seed {seed} {presentation}: accuracy {share(rows)}, cents {usd(rows)}", flush=True)
            parts.setdefault((weight, presentation), []).extend(rows)
    for (weight, presentation), rows in parts.items():
        if presentation == "named":
            every += routed("GRPO", rows, weight)
        print(
            f"λ {weight} {presentation}: accuracy {share(rows)}, cents {usd(rows)}\n"
            f"  cost saved against always strongest {saving(strong, rows)}, accuracy {gain(strong, rows)}\n"
            f"  accuracy against always cheapest {gain(cheap, rows)}, against a coin of both at the same cost "
            f"{above_mixture(cheap, strong, rows)}",
            flush=True,
        )
        if presentation != "named":
            print(f"  accuracy against named {gain(parts[weight, 'named'], rows)}", flush=True)
    return every


async def measure_wishes(out: Path, tasks: Sequence[OrchestrationTask]) -> None:
    """The same tasks under every wish: what is asked, what it costs, how long it takes."""
    for path, name, _, seed in runs(out):
        if name != "grpo_preferences.yaml" or not (path / "model").is_dir():
            continue
        played = {
            wish: await play(path / "model", [with_wish(task, wish, seed) for task in tasks], "named")
            for wish in WISHES
        }
        for wish, rows in played.items():
            waits = mean([(row.task_id, row.latency_s) for row in rows])
            moved = [row.asked != other.asked for row, other in zip(rows, played["accuracy"], strict=True)]
            print(
                f"seed {seed}, wish {wish:<8} accuracy {share(rows)}, cents {usd(rows)}, seconds {waits.value:.1f} "
                f"[{waits.low:.1f}, {waits.high:.1f}], another expert than for accuracy {sum(moved)}/{len(moved)}",
                flush=True,
            )


async def measure(out: Path, tasks: Sequence[OrchestrationTask]) -> None:
    """Rules, start and every λ, and the file for the page."""
    every = await measure_routing(out, tasks)
    write_jsonl(out / "outcomes.jsonl", [msgspec.to_builtins(one) for one in every], force=True)
    print(
        "on the frontier: "
        + ", ".join(
            f"{point.policy}{'' if point.lambda_cost is None else f' λ {point.lambda_cost}'}"
            for point in pareto_points(every)
            if point.frontier
        )
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("start", "train", "measure", "wishes"))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--only", default="", help="train: runs that have this in their name")
    options = parser.parse_args()
    if options.step == "start":
        make_start(options.out / "start")
    elif options.step == "train":
        train(options.out, options.only)
    else:
        step = measure if options.step == "measure" else measure_wishes
        asyncio.run(step(options.out, simulated_tasks(options.tasks, TASKS_SEED)))
