"""What the rollout engine itself costs, an environment step: everything but the environment and the script's words.

python bench/rollout.py --episodes 512 --concurrency 256

The scripted engine answers at once with the desk teacher's action as the tiny base model would write it, so that
token streams are kept as they are with a real model. Figures are CPU time; ``--profile`` says where it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from firstchair.chat.actions import Action
from firstchair.chat.renderer import Renderer
from firstchair.engines.base import Request, Sampling
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.environment import Observation, Outcome, Step
from firstchair.rollout.rollouts import RolloutPlan, run_rollouts
from firstchair.train.base_model import base_model_dir


class Clock:
    """CPU seconds spent in what is not the rollout engine."""

    def __init__(self) -> None:
        self.spent_s = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the block, which never waits."""
        start = time.process_time()
        try:
            yield
        finally:
            self.spent_s += time.process_time() - start


class TimedDesk(DeskEnvironment):
    """The desk with a clock."""

    clock = Clock()

    async def reset(self, task: Any, seed: int = 0) -> Observation:
        """Timed."""
        with self.clock.running():
            return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        """Timed."""
        with self.clock.running():
            return await super().step(action)

    async def verify(self) -> Outcome:
        """Timed."""
        with self.clock.running():
            return await super().verify()


def scripted(renderer: Renderer, script: Clock) -> ScriptedEngine:
    """The teacher's actions as text; its own time goes to ``script``."""
    teacher = Teacher()
    end = renderer.stop_ids[0]

    def reply(request: Request) -> str:
        with script.running():
            action = teacher.act(request.messages, request.tools)
            return renderer.tool_format.render(action.calls) if action.calls else action.text

    def encode(text: str) -> list[int]:
        with script.running():
            return [*renderer.encoder.encode(text), end]

    return ScriptedEngine(reply, encode=encode)


@dataclass(frozen=True)
class Cost:
    """CPU milliseconds an environment step."""

    engine: float
    environment: float
    script: float
    steps: int
    tokens: int
    solved: int


async def play(tasks: list[DeskTask], samples: int, concurrency: int) -> Cost:
    """One run."""
    renderer = Renderer.from_pretrained(base_model_dir())
    script, TimedDesk.clock = Clock(), Clock()
    policy = EnginePolicy(scripted(renderer, script), renderer, Sampling(temperature=1.0), record_tokens=False)
    plan = RolloutPlan(samples=samples, seed=0, concurrency=concurrency)
    steps = solved = tokens = 0
    start = time.process_time()
    async for rollout in run_rollouts(TimedDesk, tasks, policy, plan):
        steps += rollout.episode.steps
        solved += rollout.solved is True
        tokens += sum(map(len, rollout.segments))
    total = time.process_time() - start
    own = total - script.spent_s - TimedDesk.clock.spent_s
    each = [spent / steps * 1e3 for spent in (own, TimedDesk.clock.spent_s, script.spent_s)]
    return Cost(*each, steps=steps, tokens=tokens, solved=solved)


def main() -> None:
    """Run, once more under the profiler when asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=512)
    parser.add_argument("--concurrency", type=int, default=256)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--profile", type=int, default=15, help="lines of the profile; 0 for none")
    args = parser.parse_args()
    tasks = make_tasks(args.episodes // args.samples, 5)
    costs = [asyncio.run(play(tasks, args.samples, args.concurrency)) for _ in range(args.rounds)]
    best = min(costs, key=lambda cost: cost.engine)
    print(f"{args.concurrency} at once: {best.steps:,} steps, {best.tokens:,} tokens, {best.solved:,} solved")
    print(
        f"ms CPU a step, best of {args.rounds}: engine {best.engine:.3f}, environment {best.environment:.3f}, ",
        end="",
    )
    print(f"script {best.script:.3f} (the teacher, and tokenising what it says)")
    print("engine in every round: " + ", ".join(f"{cost.engine:.3f}" for cost in costs))
    if args.profile:
        profile = cProfile.Profile()
        profile.runcall(asyncio.run, play(tasks, args.samples, args.concurrency))
        pstats.Stats(profile).sort_stats("tottime").print_stats(args.profile)


if __name__ == "__main__":
    main()
