"""Sections of a recipe: how a policy is reinforced, or taught by preferences. Defaults are the tested setting.

What a field does to the numbers, with formulas and sources, is in docs/reinforcement.md.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from firstchair.core.config import Strict
from firstchair.train.config import MOST, Reduction

Ratio = Literal["token", "sequence", "one"]
KlEstimator = Literal["k1", "k2", "k3", "low_var"]
Correction = Literal["none", "truncate", "gate"]
PreferenceLoss = Literal["sigmoid", "ipo"]


class Overlong(Strict):
    """A penalty that grows over the last tokens before the limit, so that the reward falls before the cut."""

    limit_tokens: int = Field(ge=1, le=MOST)
    """Sampled tokens from which on the penalty is whole."""
    buffer_tokens: int = Field(ge=1, le=MOST)
    """Tokens before the limit over which it grows from 0."""
    penalty: float = Field(default=1.0, gt=0)
    """What is taken off the reward at the limit."""

    @model_validator(mode="after")
    def _fits(self) -> Overlong:
        if self.buffer_tokens > self.limit_tokens:
            raise ValueError(
                f"buffer_tokens ({self.buffer_tokens}) must not exceed limit_tokens ({self.limit_tokens}); lower it"
            )
        return self


class Advantage(Strict):
    """How rewards of a group of rollouts become advantages: reward − mean of the group."""

    normalise: bool = True
    """Divide by the group's standard deviation (GRPO). Without it, easy and hard prompts weigh alike (Dr. GRPO)."""
    credit: Literal["rollout", "branch"] = "rollout"
    """``rollout``: every token of a rollout has its advantage. ``branch``: only tokens at which rollouts of the group
    part have one, the mean reward behind them less that of all that came there; the rest have 0."""
    overlong: Overlong | None = None
    mask_truncated: bool = False
    """Leave rollouts that were cut at their length limit out of the loss; their rewards stay in the group's mean."""
    drop_flat: bool = False
    """Leave out groups whose rewards are all alike: they only pull to the reference and dilute the mean."""


class Filters(Strict):
    """Which rollouts and groups are left out of the loss before advantages are made; each is counted."""

    min_spread: float = Field(default=0.0, ge=0)
    """Drop groups whose rewards lie closer together than this (max − min); 0.1 with rewards of ±1."""
    broken_calls: Literal["keep", "drop"] = "keep"
    """Rollouts in which a call could not be read: they teach what they were rewarded for, or are dropped."""
    no_output: Literal["keep", "drop"] = "keep"
    """Rollouts that ended without a word to the user."""


class PolicyLoss(Strict):
    """The clipped surrogate."""

    ratio: Ratio = "token"
    """``token``: one ratio per token (PPO, GRPO). ``sequence``: the geometric mean over the row (GSPO). ``one``: the
    value is 1 and the gradient that of REINFORCE."""
    clip_low: float = Field(default=0.2, ge=0, le=1)
    """Ratios below 1 − this earn nothing more by falling."""
    clip_high: float | None = Field(default=None, ge=0)
    """Ratios above 1 + this earn nothing more by rising; ``clip_low`` when left out."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Bound on the loss of a bad token, in units of its advantage, however far its ratio rises."""
    old: Literal["trainer", "behaviour"] = "trainer"
    """Whose log-probabilities stand in the denominator: the trainer's before the first update, or the sampler's."""


class KlPenalty(Strict):
    """What it costs to move away from the reference."""

    coefficient: float = Field(default=0.0, ge=0)
    place: Literal["loss", "reward"] = "loss"
    """``loss``: a term of its own. ``reward``: taken off a rollout's reward before the group's mean. Never both."""
    estimator: KlEstimator = "k3"
    """In the loss, the gradient of a plain ``k1`` has mean 0 on fresh samples; use ``k2``, ``k3`` or ``unbiased``."""
    unbiased: bool = False
    """Weigh the estimate by policy / sampler, with the gradient of that weight; in the loss only."""

    @model_validator(mode="after")
    def _fits(self) -> KlPenalty:
        if self.place == "reward" and self.unbiased:
            raise ValueError(
                "unbiased weighs a gradient, and place=reward has none; set unbiased=false or place=loss"
            )
        return self

    @property
    def in_reward(self) -> bool:
        """Whether it is taken off the reward: advantages are then made by the objective, of what is left."""
        return self.place == "reward" and self.coefficient > 0


class OffPolicy(Strict):
    """What is done where trainer and sampler give one token different probabilities."""

    correction: Correction = "none"
    """``truncate``: weigh the loss of a token by trainer / sampler, cut to the bounds (TIS). ``gate``: leave out
    tokens whose ratio is outside the bounds, weigh the others by it (IcePop). Either way it is measured and reported.
    """
    low: float = Field(default=0.0, ge=0)
    high: float = 2.0

    @model_validator(mode="after")
    def _fits(self) -> OffPolicy:
        if self.low >= self.high:
            raise ValueError(
                f"low ({self.low}) must be below high ({self.high}); lower the first or raise the second"
            )
        return self


class Grpo(Strict):
    """Group-relative policy optimisation and its relatives."""

    filters: Filters = Filters()
    advantage: Advantage = Advantage()
    policy: PolicyLoss = PolicyLoss()
    kl: KlPenalty = KlPenalty()
    off_policy: OffPolicy = OffPolicy()
    entropy: float = Field(default=0.0, ge=0)
    """Reward for each nat of entropy at a trained token."""
    reduction: Reduction = "token"
    """``token``: every trained token weighs the same (DAPO). ``sample``: every row (GRPO). ``constant``: sum over
    tokens, divided by rows × ``row_tokens``, so that no row's length matters (Dr. GRPO)."""
    row_tokens: int | None = Field(default=None, ge=1, le=MOST)
    """Divisor of each row with ``reduction: constant``; the longest reply that sampling allows."""
    steps_per_batch: int = Field(default=1, ge=1, le=MOST)
    """Optimizer steps on one batch of rollouts."""

    @model_validator(mode="after")
    def _fits(self) -> Grpo:
        if (self.row_tokens is None) == (self.reduction == "constant"):
            raise ValueError(
                f"row_tokens ({self.row_tokens}) goes with reduction=constant, and only with it; found "
                f"reduction={self.reduction}"
            )
        if self.advantage.credit == "branch" and self.kl.in_reward:
            raise ValueError(
                "advantage.credit=branch needs advantages before the reference is asked, and kl.place=reward makes "
                "them after; put the KL into the loss"
            )
        if self.off_policy.correction != "none" and self.policy.old == "behaviour":
            raise ValueError(
                f"off_policy.correction={self.off_policy.correction} weighs by trainer / sampler, and policy.old="
                "behaviour puts that into the ratio already; keep one of them"
            )
        if self.policy.ratio == "one" and (self.policy.old == "behaviour" or self.steps_per_batch > 1):
            raise ValueError(
                "policy.ratio=one takes every sample as the policy's own: it needs policy.old=trainer and "
                f"steps_per_batch=1; found {self.policy.old} and {self.steps_per_batch}"
            )
        return self


class Dpo(Strict):
    """Direct preference optimisation on pairs."""

    loss: PreferenceLoss = "sigmoid"
    beta: float = Field(default=0.1, gt=0)
    """How strongly the policy is held to the reference."""
    length_normalised: bool = False
    """Compare mean log-probabilities of a token instead of sums over the reply."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Chance that a pair is the wrong way round."""

    @model_validator(mode="after")
    def _fits(self) -> Dpo:
        if self.loss == "ipo" and self.label_smoothing:
            raise ValueError("label_smoothing belongs to loss=sigmoid; set it to 0, or use that loss")
        return self
