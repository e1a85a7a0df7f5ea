"""The recipe of a DAgger run: what is played, who teaches, what is learnt, and how recovery is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from firstchair.core.config import Strict
from firstchair.core.seeds import MAX_SEED
from firstchair.train.config import MOST, Batch, OverLong, RunRecipe, ServerAddress, type_or


class DaggerTasks(Strict):
    """Tasks of the embedded desk; each round plays others."""

    per_round: int = Field(default=250, ge=1, le=1_000_000)
    seed: int = Field(default=2, ge=0, le=MAX_SEED)


class Beta(Strict):
    """How often the teacher acts: ``first`` · ``factor``^(round − 1) of all steps (Ross et al. 2011, section 3.1).

    A learner that has imitated recordings needs little of it: the states that matter are its own.
    """

    first: float = Field(default=0.2, ge=0, le=1)
    factor: float = Field(default=0.5, ge=0, le=1)

    def at(self, round_number: int) -> float:
        """Of round 1, 2, …"""
        return self.first * float(self.factor ** (round_number - 1))


class DaggerRollouts(Strict):
    """How the learner plays."""

    temperature: float = Field(default=0.7, ge=0)
    """0 always takes the likeliest token; above it the learner errs in more ways."""
    max_new_tokens: int = Field(default=128, ge=1, le=MOST)
    """Of one action."""
    max_steps: int = Field(default=30, ge=1, le=MOST)
    """Actions of an episode; in a case of recovery those before it takes over come on top."""
    concurrency: int = Field(default=64, ge=1, le=MOST)
    """Episodes that live at once."""


class ScriptedTeacher(Strict):
    """The desk's own expert: right in any state, in no time, for nothing."""

    type: Literal["scripted"] = "scripted"


class Prices(Strict):
    """US dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cached: float | None = Field(default=None, ge=0)
    """Of tokens read from the provider's cache; ``input`` when left out."""


class TeacherBudget(Strict):
    """The most that the teacher may cost over all rounds; what is left out is no bound."""

    calls: int | None = Field(default=None, ge=1, le=MOST)
    tokens: int | None = Field(default=None, ge=1, le=10**15)
    usd: float | None = Field(default=None, gt=0)


class _ProviderTeacher(ServerAddress):
    """A model behind a provider's API."""

    model: str = Field(min_length=1)
    temperature: float = Field(default=0.0, ge=0)
    max_tokens: int = Field(default=1024, ge=16, le=MOST)
    """Of one action, its thinking included."""
    concurrency: int = Field(default=16, ge=1, le=1024)
    budget: TeacherBudget = TeacherBudget()
    prices: Prices | None = None
    cache: Path | None = None
    """SQLite file of answers, which several runs may share; ``teacher.sqlite`` in the run when left out."""

    @model_validator(mode="after")
    def _is_priced(self) -> _ProviderTeacher:
        if self.budget.usd is not None and self.prices is None:
            raise ValueError("budget.usd needs prices (US dollars per million tokens); give them or leave it out")
        return self


class OpenAITeacher(_ProviderTeacher):
    """Any server of OpenAI's chat API; ``base_url`` with its ``/v1``."""

    type: Literal["openai"] = "openai"


class AnthropicTeacher(_ProviderTeacher):
    """Anthropic's Messages API."""

    type: Literal["anthropic"] = "anthropic"


TeacherSpec = Annotated[
    Annotated[ScriptedTeacher, Tag("scripted")]
    | Annotated[OpenAITeacher, Tag("openai")]
    | Annotated[AnthropicTeacher, Tag("anthropic")],
    Discriminator(type_or("scripted")),
]


class LessonCaps(Strict):
    """The most lessons of each kind that one episode gives."""

    derailed: int = Field(default=6, ge=0, le=MOST)
    recovery: int = Field(default=8, ge=0, le=MOST)
    agreed: int = Field(default=0, ge=0, le=1)
    """For runs without earlier records to replay: they keep what the learner does right."""
    branch_steps: int = Field(default=12, ge=1, le=MOST)
    """The most steps that the teacher shows out of a derailed state."""


class Replay(Strict):
    """Earlier records among the lessons, so that nothing is forgotten."""

    records: Path | None = None
    """SFT records that the learner was trained on."""
    share: float = Field(default=0.5, ge=0, lt=1)
    """Of all records of a round's training."""


class RecoveryTest(Strict):
    """The measure: tasks in which scripted mistakes were made, from which the learner goes on alone."""

    cases: int = Field(default=100, ge=1, le=1_000_000)
    mistakes: int = Field(default=1, ge=1, le=10)
    """In each of them."""
    seed: int = Field(default=3, ge=0, le=MAX_SEED)
    """Of their tasks; no round plays these."""


class DaggerRecipe(RunRecipe):
    """Rounds of play, relabelling and training."""

    rounds: int = Field(default=1, ge=1, le=1000)
    tasks: DaggerTasks = DaggerTasks()
    beta: Beta = Beta()
    noise: float = Field(default=0.2, ge=0, le=1)
    """Share of steps at which a scripted mistake is made in the learner's place, for it to recover from."""
    rollouts: DaggerRollouts = DaggerRollouts()
    teacher: TeacherSpec = ScriptedTeacher()
    lessons: LessonCaps = LessonCaps()
    replay: Replay = Replay()
    retrain: Literal["present", "base"] = "present"
    """What a round's training begins with: the model that has just played, or ``model``."""
    batch: Batch = Batch()
    epochs: float = Field(default=1.0, gt=0, le=1_000_000)
    """Over all lessons so far and the slice, in each round."""
    max_steps: int | None = Field(default=None, ge=1, le=MOST)
    max_tokens: int = Field(default=4096, ge=2, le=MOST)
    """Longest record."""
    over_long: OverLong = "skip"
    recovery: RecoveryTest = RecoveryTest()

    @model_validator(mode="after")
    def _agrees(self) -> DaggerRecipe:
        if self.replay.share and self.replay.records is None:
            raise ValueError("replay.share needs replay.records, the SFT records to replay; or set replay.share=0")
        if self.beta.first + self.noise > 1:
            raise ValueError(
                f"beta.first ({self.beta.first:g}) and noise ({self.noise:g}) are more than all steps together; "
                "lower one"
            )
        if self.recovery.seed == self.tasks.seed:
            raise ValueError(
                f"recovery.seed and tasks.seed are both {self.tasks.seed}: recovery would be measured on tasks that "
                "were trained on; change one"
            )
        if self.batch.micro_tokens < self.max_tokens:
            raise ValueError(
                f"batch.micro_tokens ({self.batch.micro_tokens}) must be at least max_tokens ({self.max_tokens}); "
                "raise the first or lower the second"
            )
        return self

    def shaping(self) -> dict[str, Any]:
        """As in every run; how many episodes live at once changes nothing either."""
        fields = super().shaping()
        del fields["rollouts"]["concurrency"]
        return fields
