"""The demo's second half: may the trained model be reinforced? Then it is, and is taught in states of its own making.

sft/model ── rl-ready gate ── GRPO on single decisions of the recorded sessions ── one DAgger round in the desk
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from firstchair.catalog.catalog import Catalog, catalog_yaml
from firstchair.catalog.verdict import score
from firstchair.cli.demo_gates import gates_path
from firstchair.cli.demo_score import SAMPLING, Scores
from firstchair.cli.demo_tasks import Purpose, task_seed
from firstchair.cli.gates import compared_here
from firstchair.core.atomic import write_text
from firstchair.core.clock import utc_now
from firstchair.data.golden import GoldenSet, verify
from firstchair.data.rl_prompts import LeftOut, sft_prompts, write_prompts
from firstchair.data.sft import read_sft
from firstchair.evals.gate_files import input_of, make_record, write_gates
from firstchair.evals.gate_record import GateRecord
from firstchair.evals.gate_thresholds import Thresholds
from firstchair.evals.rl_ready import Readiness, rl_ready_gates
from firstchair.rewards.verifiers import CheckName

if TYPE_CHECKING:
    from firstchair.train.dagger_figures import DaggerFigures

SAMPLES, RATE = 8, 1e-3
"""Rollouts of a decision; peak learning rate of GRPO."""

REWARD: Mapping[CheckName, float] = MappingProxyType(
    {"schema_valid": 0.1, "right_tool": 0.3, "arguments": 0.4, "termination": 0.1, "efficiency": 0.1}
)
"""Check of the decision → its weight, as in ``recipes/rewards/decision.yaml``."""


def readiness(
    after: Scores, before: Scores, golden: GoldenSet, catalog: Catalog, model: Path, out: Path, *, seed: int
) -> GateRecord:
    """Measure the gate before RL and write ``gates/rl-ready.json``."""
    assert golden.path is not None
    file = out / "catalog.yaml"
    write_text(file, catalog_yaml(catalog))
    found = Readiness(
        candidate=after.run.rows,
        template_hash=after.run.record.candidate.template_hash,
        golden=golden,
        checked=verify(golden.path, score)[1],
        baseline=before.run.rows,
        catalog=catalog,
        parity=compared_here(model, None),
    )
    record = make_record(
        "rl_readiness",
        rl_ready_gates(found, Thresholds(), seed=seed),
        (after.run, before.run),
        golden,
        [input_of("catalog", file)],
        Thresholds(),
        who="demo",
        created_at=utc_now(),
        seed=seed,
    )
    write_gates(record, gates_path(out, "rl-ready"))
    return record


def write_rl_prompts(corpus: Path, catalog: Catalog, out: Path) -> None:
    """Every right decision of the recorded sessions as a prompt; gold is for the verifier alone."""
    left_out, matchers = LeftOut(), catalog.matchers()
    made = (row for record in read_sft(corpus) for row in sft_prompts(record, matchers, left_out))
    write_prompts(out, made, source=str(corpus), left_out=left_out)


def grpo(start: Path, prompts: Path, out: Path, *, batches: int, prompts_per_batch: int, seed: int) -> Path:
    """Reinforce ``start`` on single decisions that code rewards; returns the model's directory."""
    from firstchair.rewards.composition import Composition, VerifierComponent
    from firstchair.train.config import Muon, Schedule
    from firstchair.train.grpo_recipe import DecisionTasks, GrpoRecipe, Rollouts
    from firstchair.train.grpo_run import train_grpo
    from firstchair.train.rl_config import Advantage, Grpo

    recipe = GrpoRecipe(
        model=start,
        out=out,
        environment=DecisionTasks(records=prompts),
        reward=Composition(
            components=tuple(
                VerifierComponent(kind="verifier", name=check, check=check, weight=weight)
                for check, weight in REWARD.items()
            )
        ),
        rollouts=Rollouts(
            prompts=prompts_per_batch,
            samples=SAMPLES,
            max_steps=1,
            max_new_tokens=SAMPLING.max_new_tokens,
            concurrency=SAMPLES * prompts_per_batch,
        ),
        grpo=Grpo(advantage=Advantage(drop_flat=True, credit="branch")),
        optimizer=Muon(lr=RATE, adamw_lr=RATE),
        schedule=Schedule(kind="linear", warmup_ratio=0.05, floor=0.05),
        batches=batches,
        precision="auto",
        seed=seed,
    )
    return train_grpo(recipe).model_dir


def dagger(
    start: Path, corpus: Path, out: Path, *, episodes: int, cases: int, seed: int
) -> tuple[Path, DaggerFigures]:
    """One round: ``start`` drives in new tasks, the desk's expert relabels what it gets itself into, and it learns
    that beside a slice of ``corpus``. Returns the model's directory and what it did to recovery.
    """
    from firstchair.train.config import Batch, Muon, Schedule
    from firstchair.train.dagger_recipe import DaggerRecipe, DaggerRollouts, DaggerTasks, RecoveryTest, Replay
    from firstchair.train.dagger_run import train_dagger

    recipe = DaggerRecipe(
        model=start,
        out=out,
        tasks=DaggerTasks(per_round=episodes, seed=task_seed(seed, Purpose.LESSONS)),
        rollouts=DaggerRollouts(max_new_tokens=SAMPLING.max_new_tokens),
        replay=Replay(records=corpus),
        recovery=RecoveryTest(cases=cases, seed=task_seed(seed, Purpose.RECOVERY)),
        batch=Batch(sessions=3),
        optimizer=Muon(lr=7e-4, adamw_lr=7e-4),
        schedule=Schedule(kind="linear", warmup_ratio=0.05, floor=0.02),
        precision="auto",
        seed=seed,
    )
    result = train_dagger(recipe)
    return result.model_dir, result.figures
