"""A tiny model that knows how an expert is asked and nothing of prices: where learning to route begins.

The shipped base model, its template with descriptions in it, fine-tuned by rejection sampling: experts are drawn, and
what came out right is learnt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from firstchair.core.atomic import write_text
from firstchair.data.sft import SftOptions, SftRecord, sft_records, write_sft
from firstchair.rollout.episodes import Episode, run_episodes
from firstchair.rollout.orchestration.simulated_tasks import PREFERENCES, simulated_tasks
from firstchair.rollout.orchestration.simulated_world import Demonstrator, Presentation, World
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.train.base_model import copy_base_model
from firstchair.train.config import Batch, Muon, Schedule, SftData, SftRecipe
from firstchair.train.sft import train_sft
from firstchair.train.tiny import tiny_template

TASKS = 7000
"""With 640, a call names the expert of the model's own thought in two of five cases; with these in nearly all."""
SIGNATURE = "f.name ~ '('"
DESCRIBED = "(f.description ~ ' ' if f.description else '') ~ f.name ~ '('"
"""A tool's description stands before its name: a model of four layers then finds, where it must write the name, what
the name stands for."""


def described_template() -> str:
    """The tiny models' chat template with each tool's description before its signature."""
    plain = tiny_template()
    assert SIGNATURE in plain, "tiny.jinja writes signatures in another way"
    return plain.replace(SIGNATURE, DESCRIBED)


async def demonstrations(
    count: int, seed: int, presentations: Sequence[Presentation], experts_seed: int = 0
) -> list[SftRecord]:
    """``count`` tasks, about as many of every wish, a drawn expert asked about each: what came out right, as records.

    Of the hard tasks more of those are left that asked a good expert. Of experts that are all good enough none is
    preferred: what they cost is left to reinforcement.
    """
    tasks = simulated_tasks(count, seed, wishes=tuple(PREFERENCES))
    world = World(tuple(tasks), experts_seed)
    policy = TeacherPolicy(Demonstrator(tasks, seed=seed))
    running = run_episodes(world.environment(presentations), tasks, policy, seed=seed)
    right = [episode async for episode in running if episode.completed]
    episodes: list[Episode] = sorted(right, key=lambda episode: episode.number)
    tools = {episode.session.catalog_id: episode.tools for episode in episodes}
    options = SftOptions(category="orchestration")
    return list(sft_records((episode.session for episode in episodes), tools.__getitem__, options))


def make_start(out: Path, *, tasks: int = TASKS, seed: int = 0, force: bool = False) -> Path:
    """Make the model under ``out`` and return its directory. Raises ``ConfigError`` when ``out`` exists without
    ``force``.
    """
    base = copy_base_model(out / "base", force=force)
    write_text(base / "chat_template.jinja", described_template(), force=True)
    corpus = out / "demonstrations.jsonl"
    presentations: tuple[Presentation, ...] = ("named", "renamed", "anonymised")
    write_sft(corpus, asyncio.run(demonstrations(tasks, 100 + seed, presentations)), force=force)
    recipe = SftRecipe(
        model=base,
        out=out / "sft",
        data=SftData(train=corpus, max_tokens=1024),
        batch=Batch(sessions=4),
        optimizer=Muon(lr=3e-3, adamw_lr=3e-3),
        schedule=Schedule(kind="linear", warmup_ratio=0.03, floor=0.05),
        precision="auto",
        export_precision="fp32",
        seed=seed,
    )
    return train_sft(recipe, force=force).model_dir
