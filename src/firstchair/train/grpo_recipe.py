"""The recipe of a GRPO run: where the policy acts, what it is rewarded for, and how it learns from that."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from firstchair.core.config import Strict
from firstchair.core.seeds import MAX_SEED
from firstchair.rewards.composition import Composition
from firstchair.rollout.orchestration.simulated_tasks import Wish
from firstchair.rollout.orchestration.simulated_world import Presentation
from firstchair.train.config import MOST, Cut, RunRecipe, type_or
from firstchair.train.engine_recipe import EngineSpec, InProcessEngine, shaping_of
from firstchair.train.rl_config import Grpo


class DeskTasks(Strict):
    """Tasks of the embedded desk."""

    type: Literal["desk"] = "desk"
    tasks: int = Field(default=2000, ge=1, le=1_000_000)
    seed: int = Field(default=1, ge=0, le=MAX_SEED)
    """Of the tasks; keep it apart from the seeds of tasks that are measured on."""


class DecisionTasks(Strict):
    """Single decisions, as ``firstchair data rl-prompts`` writes them."""

    type: Literal["decisions"] = "decisions"
    records: Path


class OrchestrationTasks(Strict):
    """Simulated experts to route between: seeded skill, price and latency, offered as any catalog is."""

    type: Literal["orchestration"] = "orchestration"
    tasks: int = Field(default=2000, ge=1, le=50_000)
    seed: int = Field(default=1, ge=0, le=MAX_SEED)
    """Of the tasks; keep it apart from the seeds of tasks that are measured on."""
    answers_seed: int = Field(default=0, ge=0, le=MAX_SEED)
    """Of who is right about which task, how long it takes and what it costs."""
    presentations: tuple[Presentation, ...] = Field(default=("renamed", "anonymised"), min_length=1)
    """How experts are shown; drawn for each task anew."""
    wishes: tuple[Wish, ...] = Field(default=("",), min_length=1)
    """What users want, in words in the prompt and as the preference of the task; ``""``: nothing is said."""


class SyntheticTasks(Strict):
    """Tasks of synthetic domains: tools over a database, scored by the state that they leave and by what was said."""

    type: Literal["synthetic"] = "synthetic"
    domains: tuple[str, ...] = ()
    """Shipped ones by name, others by the path of their JSON file; all shipped ones when none is named."""


class PythonTasks(Strict):
    """An environment of yours."""

    type: Literal["python"] = "python"
    factory: str = Field(pattern=r"^[\w.]+:\w+$")
    """``package.module:function``; called without arguments it gives a function that makes an ``Environment``, the
    tasks, each with a ``task_id`` of its own, and, where there is one, an expert who does them right (``Actor``): the
    reward is probed with what it does."""


EnvironmentSpec = Annotated[
    Annotated[DeskTasks, Tag("desk")]
    | Annotated[DecisionTasks, Tag("decisions")]
    | Annotated[OrchestrationTasks, Tag("orchestration")]
    | Annotated[SyntheticTasks, Tag("synthetic")]
    | Annotated[PythonTasks, Tag("python")],
    Discriminator(type_or("desk")),
]


class Rollouts(Strict):
    """How a batch of rollouts is made. They are sampled at temperature 1: any other has other log-probabilities."""

    prompts: int = Field(default=8, ge=1, le=MOST)
    """Groups of a batch."""
    samples: int = Field(default=8, ge=2, le=MOST)
    """Rollouts of a prompt: its group."""
    max_new_tokens: int = Field(default=128, ge=1, le=MOST)
    """Of one action."""
    max_steps: int = Field(default=30, ge=1, le=MOST)
    """Actions of an episode."""
    max_tokens: int | None = Field(default=None, ge=1, le=MOST)
    """Sampled tokens of an episode."""
    tool_s: float | None = Field(default=None, gt=0)
    wall_s: float | None = Field(default=None, gt=0)
    stall_s: float = Field(default=900.0, gt=0)
    """Longest wait for one step of the policy or the environment; an episode that waits longer has failed."""
    concurrency: int = Field(default=256, ge=1, le=MOST)
    """Environments that live at once."""
    refill: int = Field(default=0, ge=0, le=100)
    """How often groups whose rewards are all alike may be left out and others be played in their place (dynamic
    sampling, DAPO, Yu et al. 2025, section 3.2)."""
    staleness: Literal[0, 1] = 0
    """``1``: the next batch is rolled out while this one is trained on, by weights one batch old."""
    patience: int = Field(default=10, ge=1, le=MOST)
    """Batches in a row without any group to learn from after which the run fails."""


class RolloutBatch(Cut):
    """One batch of rollouts."""

    micro_tokens: int = Field(default=16384, ge=2, le=MOST)
    """Most tokens of one forward pass, and of one episode; what is longer is left out and counted."""


class GrpoRecipe(RunRecipe):
    """Reinforcement of a policy by groups of rollouts."""

    environment: EnvironmentSpec = DeskTasks()
    engine: EngineSpec = InProcessEngine()
    reward: Composition
    rollouts: Rollouts = Rollouts()
    grpo: Grpo = Grpo()
    batch: RolloutBatch = RolloutBatch()
    batches: int = Field(default=50, ge=1, le=MOST)
    """Batches of rollouts; each gives ``grpo.steps_per_batch`` optimizer steps."""

    @model_validator(mode="after")
    def _agrees(self) -> GrpoRecipe:
        if (
            self.rollouts.staleness
            and self.grpo.off_policy.correction == "none"
            and self.grpo.policy.old == "trainer"
        ):
            raise ValueError(
                "rollouts.staleness=1 trains on samples of older weights; set grpo.off_policy.correction (truncate "
                "or gate) or grpo.policy.old=behaviour, so that this is corrected for"
            )
        priced = [one.name for one in self.reward.components if one.kind in ("cost", "cost_aware")]
        # Whether one of yours counts a cost is known when it has been played: without one nothing is graded, by name.
        if priced and self.environment.type not in ("orchestration", "python"):
            raise ValueError(
                f"reward.components: {priced[0]} is a cost, and the policy that is sampled here has no price, so "
                "nothing could be graded; leave it out, or use length"
            )
        if self.grpo.kl.in_reward and self.grpo.advantage.mask_truncated:
            raise ValueError(
                "grpo.advantage.mask_truncated needs advantages before the reference is asked, and grpo.kl.place="
                "reward makes them after; put the KL into the loss"
            )
        return self

    def shaping(self) -> dict[str, Any]:
        """As in every run; how many environments live at once and where a server is change nothing either."""
        fields = super().shaping()
        del fields["rollouts"]["concurrency"], fields["engine"]
        return fields | shaping_of(self.engine)
