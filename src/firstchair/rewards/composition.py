"""A reward as data: named components with weights and bounds, and the pure function that makes one number of them.

components that apply (``when``) ─► code ─► a failed gate? ─► judges, cost, latency, length count at their worst
                                                └─ no ─────► they are asked
reward = Σ weight · (value within its bounds);   a component without a value: no reward
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, field_validator, model_validator

from firstchair.chat.schema_check import schema_problem
from firstchair.core.config import Strict
from firstchair.rewards.cost_aware import COST_MAX_USD
from firstchair.rewards.judge_server import JudgeServer
from firstchair.rewards.samples import GATED, NOT_ASKED, NoValue, Value
from firstchair.rewards.verifiers import CheckName

Label = str | int | float | bool
Name = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")]


class _Component(Strict):
    name: Name
    weight: float = 1.0
    """May be negative: cost, latency and length are measured as they are."""
    when: dict[str, Label | tuple[Label, ...]] = Field(default_factory=dict)
    """Label → the value, or one of the values, that a sample must have for the component to apply. A label that is a
    list matches by any of its items."""

    @field_validator("weight")
    @classmethod
    def _counts(cls, weight: float) -> float:
        if weight == 0:
            raise ValueError("a weight of 0 does nothing; leave the component out")
        return weight


class VerifierComponent(_Component):
    """Code decides: 0 to 1."""

    kind: Literal["verifier"]
    check: CheckName
    gate: bool = False
    """A value below 1 fails the sample: no judge is asked about it, and judges, cost, latency and length count at
    their worst, so that nothing is gained by failing cheaply."""
    output_schema: dict[str, JsonValue] | None = None
    """``structured``: JSON Schema of the final text."""
    output_format: Literal["json", "yaml"] = "json"
    bounds: tuple[float, float] = (0.0, 1.0)

    @model_validator(mode="after")
    def _schema_belongs(self) -> VerifierComponent:
        if (self.check == "structured") != (self.output_schema is not None):
            raise ValueError("output_schema goes with check: structured, and only with it")
        if self.output_schema is not None and (problem := schema_problem(self.output_schema)):
            raise ValueError(f"output_schema is no JSON Schema: {problem}")
        return self


class Dimension(Strict):
    """One thing that a judge is asked about an answer."""

    name: Name
    question: str = Field(min_length=1)
    scores: tuple[int, ...] = (0, 1, 2)
    """What it may say, worst first."""

    @field_validator("scores")
    @classmethod
    def _ascend(cls, scores: tuple[int, ...]) -> tuple[int, ...]:
        if len(scores) < 2 or any(low >= high for low, high in itertools.pairwise(scores)):
            raise ValueError("expected at least two whole numbers, the worst first")
        return scores


class ProbeAnswers(Strict):
    """A known-good and a known-bad answer, for the start of a run."""

    question: str
    good: str = Field(min_length=1)
    bad: str


class JudgeComponent(_Component):
    """A model decides what code cannot: 0 to 1."""

    kind: Literal["judge"]
    mode: Literal["rubric", "pairwise"]
    """``rubric``: a score on each dimension, each scaled to 0 to 1, and their mean. ``pairwise``: the share of
    comparisons won against other samples of the same prompt, a tie counting half."""
    dimensions: tuple[Dimension, ...] = ()
    criterion: str = ""
    """``pairwise``: what makes one answer better than another."""
    max_pairs: int = Field(default=28, ge=1)
    """``pairwise``: most pairs of a group; each is asked in both orders. 28 is every pair of a group of 8."""
    probe: ProbeAnswers | None = None
    bounds: tuple[float, float] = (0.0, 1.0)

    @model_validator(mode="after")
    def _has_its_question(self) -> JudgeComponent:
        if self.mode == "rubric" and (not self.dimensions or self.criterion):
            raise ValueError("a rubric has dimensions and no criterion")
        if self.mode == "pairwise" and (self.dimensions or not self.criterion.strip()):
            raise ValueError("a pairwise judge has a criterion and no dimensions")
        names = [dimension.name for dimension in self.dimensions]
        if len(set(names)) != len(names) or "reason" in names:
            raise ValueError("every dimension needs a name of its own, other than `reason`")
        return self


class MeasureComponent(_Component):
    """What the sample used up. Give it a negative weight."""

    kind: Literal["cost", "latency", "length"]
    """US dollars; seconds of waiting; sampled tokens. All calls of the sample together; where the environment counts
    cost or latency of its own (experts), that."""
    bounds: tuple[float, float]
    """Below the first nothing is gained any more, above the second nothing is lost."""


class CostAwareComponent(_Component):
    """``±1 − lambda_cost · cost / cost_max_usd``, +1 when the environment says that the task was completed. Code
    decides, so a gate does not change it.
    """

    kind: Literal["cost_aware"]
    lambda_cost: float = Field(ge=0)
    """What a rollout that costs ``cost_max_usd`` loses; 0 asks for accuracy alone, whatever it costs."""
    cost_max_usd: float = Field(default=COST_MAX_USD, gt=0)

    @property
    def bounds(self) -> tuple[float, float]:
        """Not cut: cost has no upper end."""
        return -math.inf, 1.0


class PreferenceComponent(_Component):
    """What the task's user prefers: columns of the batch, normalised, weighed by the task's ``preference``; 0 when
    the task was not completed. Code decides, so a gate does not change it.
    """

    kind: Literal["preference"]

    @property
    def bounds(self) -> tuple[float, float]:
        """Not cut: weights are the task's."""
        return 0.0, math.inf


Component = Annotated[
    VerifierComponent | JudgeComponent | MeasureComponent | CostAwareComponent | PreferenceComponent,
    Field(discriminator="kind"),
]


class Composition(Strict):
    """Every component of a reward. Reads from YAML; what does not hold together is refused with the reason."""

    components: tuple[Component, ...] = Field(min_length=1)
    judge: JudgeServer | None = None
    """Who answers for the judge components."""

    @model_validator(mode="after")
    def _holds_together(self) -> Composition:
        names = [component.name for component in self.components]
        if twice := sorted({name for name in names if names.count(name) > 1 or name == "reward"}):
            raise ValueError(f"component {twice[0]}: expected a name of its own, other than `reward`")
        for component in self.components:
            low, high = component.bounds
            if not low < high:
                raise ValueError(f"component {component.name}: bounds {low:g}, {high:g}: expected low below high")
        judges = [component for component in self.components if isinstance(component, JudgeComponent)]
        if judges and self.judge is None:
            raise ValueError(f"component {judges[0].name} asks a judge; expected a section `judge` with its address")
        for judge in judges:
            for other in self.components:
                if not isinstance(other, JudgeComponent):
                    _refuse_overlap(judge, other)
        return self


_DECIDED: Mapping[str, tuple[str, ...]] = {
    "completed": ("complet", "success", "done"),
    "no_violations": ("violat", "policy", "policies"),
    "checks": ("check",),
    "score": ("score", "grade"),
    "schema_valid": ("schema", "syntax", "json", "valid", "malformed"),
    "right_tool": ("tool", "routing"),
    "arguments": ("argument", "parameter"),
    "termination": ("terminat", "stop"),
    "efficiency": ("efficien", "redundan", "repeat"),
    "structured": ("schema", "syntax", "json", "yaml", "structur", "format"),
    "cost": ("cost", "price"),
    "latency": ("latenc", "speed"),
    "length": ("length", "brevity", "brief", "concis", "verbos"),
    "cost_aware": ("cost", "price"),
    "preference": ("prefer",),
}
"""Check or kind → how words begin that name what it decides."""


def _refuse_overlap(
    judge: JudgeComponent,
    other: VerifierComponent | MeasureComponent | CostAwareComponent | PreferenceComponent,
) -> None:
    """Raise when a name in ``judge`` names what ``other`` decides by code."""
    decided = other.check if isinstance(other, VerifierComponent) else other.kind
    for asked in (judge.name, *(dimension.name for dimension in judge.dimensions)):
        words = [word for word in re.split(r"[_-]|(?<=[a-z])(?=[A-Z])", asked) if word]
        same = asked.lower() in (decided, other.name.lower())
        if same or any(word.lower().startswith(_DECIDED[decided]) for word in words):
            raise ValueError(
                f"component {judge.name} asks a judge about {asked!r}, which component {other.name} ({decided}) "
                "decides by code; leave it out of the judge's dimensions, or name what else is meant"
            )


def applies(component: Component, labels: Mapping[str, Any]) -> bool:
    """Whether ``component`` counts for a sample with these labels."""
    return all(_matches(wanted, labels.get(name)) for name, wanted in component.when.items())


def _matches(wanted: Label | tuple[Label, ...], found: Any) -> bool:
    options = wanted if isinstance(wanted, tuple) else (wanted,)
    values = found if isinstance(found, list | tuple) else (found,)
    # Python says True == 1; a label does not.
    return any(type(value) is type(option) and value == option for value in values for option in options)


def gated(composition: Composition, labels: Mapping[str, Any], values: Mapping[str, Value]) -> bool:
    """Whether a gate that applies has a value below 1."""
    return any(
        component.gate and applies(component, labels) and _number(values.get(component.name), default=1.0) < 1.0
        for component in composition.components
        if isinstance(component, VerifierComponent)
    )


def _number(value: Value | None, *, default: float) -> float:
    return default if value is None or isinstance(value, NoValue) else value


def compose(composition: Composition, labels: Mapping[str, Any], values: Mapping[str, Value]) -> float | NoValue:
    """The reward of a sample from its components' values, or why there is none.

    reward = Σ_i weight_i · min(max(value_i, low_i), high_i) over the components that apply. A component whose value
    is ``NoValue(GATED)`` counts at the bound that gives the least; with any other ``NoValue``, a missing value or one
    that is not finite there is no reward, and the reason names the component.
    """
    total, counted = 0.0, 0
    missing: list[NoValue] = []
    for component in composition.components:
        if not applies(component, labels):
            continue
        counted += 1
        value = values.get(component.name, NoValue("not_graded"))
        low, high = component.bounds
        if isinstance(value, NoValue):
            if value.why == GATED:
                total += min(component.weight * low, component.weight * high)
            else:
                missing.append(NoValue(value.why, f"{component.name}: {value.detail}".removesuffix(": ")))
        elif math.isfinite(value):
            total += component.weight * min(max(value, low), high)
        else:
            missing.append(NoValue("not_finite", f"{component.name}: found {value}"))
    if missing:
        return next((reason for reason in missing if reason.why != NOT_ASKED), missing[0])
    return total if counted else NoValue("no_component", "no component applies to the sample's labels")
