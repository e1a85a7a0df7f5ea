"""The demo's measurements of one model: on the frozen golden set, and alive in the desk, both at the same time.

A tiny model decodes as fast on one thread as on two, so each of the two has a process and a core of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firstchair.core.jsonl import write_jsonl
from firstchair.data.golden import GoldenSet
from firstchair.engines.base import Sampling
from firstchair.evals.completion import Completion, completion
from firstchair.evals.replay import ReplayOptions, replay_async
from firstchair.evals.run_record import Run
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.episodes import Episode, run_episodes

if TYPE_CHECKING:
    from firstchair.chat.renderer import Renderer
    from firstchair.engines.transformers_engine import TransformersEngine

SAMPLING = Sampling(max_new_tokens=96)
MAX_STEPS = 30


@dataclass(frozen=True)
class Scores:
    """What one model shows: on the golden set, and alive in the desk."""

    run: Run
    alive: Completion

    @property
    def episodes(self) -> Path:
        """Its episodes, as sessions."""
        return self.run.path / "episodes.jsonl"


async def score_model(model: Path, golden: GoldenSet, tasks: Sequence[DeskTask], out: Path, seed: int) -> Scores:
    """Replay the golden set against ``model`` while it works in the desk."""
    loop = asyncio.get_running_loop()
    # Not forked: a copy of a process that has computed with OpenMP hangs at its first parallel kernel.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        playing = loop.run_in_executor(pool, play, model, tuple(tasks), seed)
        run = await _replay(model, golden, out, seed)
        episodes = await playing
    write_jsonl(out / "episodes.jsonl", (msgspec.to_builtins(episode.session) for episode in episodes))
    return Scores(run, completion(episodes, {task.task_id: task.rows for task in tasks}, seed=seed))


@asynccontextmanager
async def _opened(model: Path) -> AsyncIterator[tuple[TransformersEngine, Renderer]]:
    """The model on one thread, and how it is prompted."""
    from firstchair.chat.trained import trained_renderer
    from firstchair.engines.openmp import compute_threads
    from firstchair.engines.transformers_engine import TransformersEngine

    renderer = trained_renderer(model)
    with compute_threads(1):
        engine = TransformersEngine(model, renderer)
        try:
            yield engine, renderer
        finally:
            await engine.close()


async def _replay(model: Path, golden: GoldenSet, out: Path, seed: int) -> Run:
    async with _opened(model) as (engine, renderer):
        return await replay_async(golden, engine, renderer, out, ReplayOptions(sampling=SAMPLING, seed=seed))


def play(model: Path, tasks: Sequence[DeskTask], seed: int) -> list[Episode]:
    """One episode of each task, in their order, all at once; for a process of its own, and shows no progress."""
    return asyncio.run(_play(model, tasks, seed))


async def _play(model: Path, tasks: Sequence[DeskTask], seed: int) -> list[Episode]:
    from firstchair.rollout.engine_policy import EnginePolicy

    async with _opened(model) as (engine, renderer):
        policy = EnginePolicy(engine, renderer, SAMPLING, record_tokens=False)
        live = run_episodes(DeskEnvironment, tasks, policy, seed=seed, concurrency=len(tasks), max_steps=MAX_STEPS)
        async with aclosing(live) as stream:
            return sorted([episode async for episode in stream], key=lambda episode: episode.number)
