"""Group-relative policy optimisation on the one training loop; formulas and sources are in docs/reinforcement.md.

Columns of an example, each with one value per token:

    behaviour   log-probability that the sampler gave the token, at temperature 1
    advantage   of its rollout, the same at every token; NaN: not graded, or masked, and so in no sum and no count
    reward      instead of ``advantage`` where the KL is taken off the reward
    old         the trainer's log-probability before the first update on this batch ┐ completed by ``prepare``
    reference   that of the model which the policy is held to                       ┘ where they are needed
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from firstchair.core.errors import DataError
from firstchair.train import off_policy
from firstchair.train.advantages import group_advantages
from firstchair.train.batching import MicroBatch
from firstchair.train.columns import column, row_values, with_columns
from firstchair.train.kl import kl_estimate, unbiased_kl
from firstchair.train.objective import LossTerms
from firstchair.train.policy_loss import Clip, approximate_kl, clipped_surrogate, sequence_log_ratios
from firstchair.train.reduction import numerator, row_sums, weight
from firstchair.train.reference import Reference, score, with_reference
from firstchair.train.rl_config import Grpo
from firstchair.train.scorer import TokenScorer


class Scores(NamedTuple):
    """What the policy and others say of the tokens of a micro-batch, each ``[K]`` in nats."""

    logp_K: Tensor
    """Of the policy, with a graph."""
    entropy_K: Tensor | None
    """With a graph; ``None`` when it is not rewarded."""
    old_K: Tensor
    """The denominator of the ratio."""
    trainer_K: Tensor
    """Of the trainer, to be compared with the sampler's."""
    behaviour_K: Tensor
    reference_K: Tensor | None

    def at(self, kept_K: Tensor) -> Scores:
        """The same for some of the tokens."""
        return Scores(*(None if values is None else values[kept_K] for values in self))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class GrpoObjective:
    """Clipped policy gradient with group advantages.

    With more than one step per batch of rollouts, ``prepare`` must see the micro-batches of all its steps before the
    first update: ``old`` is what the trainer says then. Groups (``Example.group``) must be whole where the KL is
    taken off the reward.
    """

    settings: Grpo
    reference: Reference | None = None
    """Needed with a KL coefficient, unless the examples have the column."""
    name: str = "grpo"

    def prepare(self, step: Sequence[MicroBatch], scorer: TokenScorer) -> Sequence[MicroBatch]:
        """Add the columns that are missing and needed; those that are there stay.

        Raises ``DataError`` for a value that cannot be trained on, ``ConfigError`` for a missing reference.
        """
        return [self._complete(batch, scorer) for batch in step]

    def weight(self, batch: MicroBatch) -> float:
        """Tokens, or rows, that are in the loss after masks and gate."""
        return weight(batch.sample_K[self._kept(batch)], self.settings.reduction, self.settings.row_tokens)

    def loss(self, scorer: TokenScorer, batch: MicroBatch) -> LossTerms:
        """Policy loss − entropy bonus + KL penalty, all over the same tokens.

        How far trainer and sampler lie apart is measured on all trained tokens, before any is left out.
        """
        every = self._scores(scorer, batch)
        kept_K = self._kept(batch)
        terms, metrics = self._terms(every.at(kept_K), column(batch, "advantage")[kept_K], batch, kept_K)
        metrics |= {"left_out": ~kept_K, **self._agreement(every)}
        denominator = self.weight(batch)
        sums = {
            **{name: (term.detach().double(), denominator) for name, term in terms.items()},
            **{name: (values.detach().double().sum(), float(len(values))) for name, values in metrics.items()},
        }
        apart_K = metrics["behaviour_diff"]
        maxima = {"behaviour_diff_max": float(apart_K.max())} if len(apart_K) else {}
        return LossTerms(torch.stack(list(terms.values())).sum(), sums, maxima)

    def _agreement(self, every: Scores) -> dict[str, Tensor]:
        """How far trainer and sampler lie apart, token by token, and what the correction does about it."""
        metrics = {"behaviour_diff": off_policy.log_difference(every.trainer_K, every.behaviour_K)}
        bounds = self.settings.off_policy
        if bounds.correction != "none":
            ratio_K = off_policy.importance_ratio(every.trainer_K, every.behaviour_K)
            metrics["off_policy_ratio"] = ratio_K
            metrics["off_policy_cut"] = ~off_policy.in_band(ratio_K, low=bounds.low, high=bounds.high)
        return metrics

    def _terms(
        self, tokens: Scores, advantage_K: Tensor, batch: MicroBatch, kept_K: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Numerators of the parts of the loss, and per-token metrics, of the tokens that are in the loss."""
        settings = self.settings
        sample_K = batch.sample_K[kept_K]
        log_ratio_K = self._log_ratio(tokens, sample_K, len(batch.keys))
        high = settings.policy.clip_low if settings.policy.clip_high is None else settings.policy.clip_high
        clip = Clip(settings.policy.clip_low, high, settings.policy.dual_clip)
        surrogate = clipped_surrogate(log_ratio_K, advantage_K, clip)
        policy_K = surrogate.loss_K
        metrics = {
            "clip_fraction": surrogate.clipped_K,
            "approx_kl": approximate_kl(tokens.logp_K - tokens.old_K),
            "sampled_entropy": -tokens.logp_K,
        }
        bounds = settings.off_policy
        if bounds.correction != "none":
            ratio_K = off_policy.importance_ratio(tokens.trainer_K, tokens.behaviour_K)
            correct = off_policy.gate if bounds.correction == "gate" else off_policy.truncated_weights
            policy_K = policy_K * correct(ratio_K, low=bounds.low, high=bounds.high)
        terms = {"policy_loss": numerator(policy_K, sample_K, settings.reduction)}
        if tokens.entropy_K is not None:
            terms["entropy_loss"] = -settings.entropy * numerator(tokens.entropy_K, sample_K, settings.reduction)
            metrics["entropy"] = tokens.entropy_K
        if tokens.reference_K is not None:
            kl_K = self._kl(tokens, tokens.reference_K)
            metrics["reference_kl"] = kl_K
            if settings.kl.place == "loss":
                terms["kl_loss"] = settings.kl.coefficient * numerator(kl_K, sample_K, settings.reduction)
        return terms, metrics

    def _log_ratio(self, tokens: Scores, sample_K: Tensor, rows: int) -> Tensor:
        if self.settings.policy.ratio == "one":
            return off_policy.on_policy_log_ratio(tokens.logp_K)
        log_ratio_K = tokens.logp_K - tokens.old_K
        if self.settings.policy.ratio == "sequence":
            return sequence_log_ratios(log_ratio_K, sample_K, rows)
        return log_ratio_K

    def _kl(self, tokens: Scores, reference_K: Tensor) -> Tensor:
        kl = self.settings.kl
        if not kl.unbiased:
            return kl_estimate(tokens.logp_K, reference_K, kl.estimator)
        # The tokens were drawn by the sampler; where nothing corrects for it, it counts as the trainer of then.
        corrected = self.settings.off_policy.correction != "none"
        sampler_K = tokens.behaviour_K if corrected else tokens.old_K
        return unbiased_kl(tokens.logp_K, reference_K, sampler_K, kl.estimator)

    def _scores(self, scorer: TokenScorer, batch: MicroBatch) -> Scores:
        logp_K, entropy_K = self._policy_scores(scorer, batch)
        behaviour_K = column(batch, "behaviour")
        trainer_K = batch.columns.get("old", logp_K.detach())
        old_K = behaviour_K if self.settings.policy.old == "behaviour" else trainer_K
        reference_K = column(batch, "reference") if self.settings.kl.coefficient else None
        return Scores(logp_K, entropy_K, old_K, trainer_K, behaviour_K, reference_K)

    def _policy_scores(self, scorer: TokenScorer, batch: MicroBatch) -> tuple[Tensor, Tensor | None]:
        if not self.settings.entropy:
            return scorer(batch), None
        return scorer.logprobs_and_entropy(batch)

    def _kept(self, batch: MicroBatch) -> Tensor:
        """Which trained tokens are in the loss: ``[K]`` bool."""
        kept_K = ~column(batch, "advantage").isnan()
        bounds = self.settings.off_policy
        if bounds.correction == "gate":
            ratio_K = off_policy.importance_ratio(column(batch, "old"), column(batch, "behaviour"))
            kept_K = kept_K & off_policy.in_band(ratio_K, low=bounds.low, high=bounds.high)
        return kept_K

    def _complete(self, batch: MicroBatch, scorer: TokenScorer) -> MicroBatch:
        if self._needs_old and "old" not in batch.columns:
            batch = with_columns(batch, {"old": score(scorer, batch)})
        if self.settings.kl.coefficient:
            batch = with_reference(batch, scorer, self.reference)
        if self.settings.kl.in_reward:
            batch = with_columns(batch, {"advantage": self._penalised_advantages(batch)})
        for name in ("behaviour", "advantage"):
            values_K = column(batch, name)
            odd_K = values_K.isinf() | (values_K.isnan() if name == "behaviour" else False)
            if odd_K.any():
                key = batch.keys[int(batch.sample_K[odd_K][0])]
                raise DataError(f"row {key}: found {float(values_K[odd_K][0])}; expected a finite number", field=name)
        return batch

    @property
    def _needs_old(self) -> bool:
        """Whether the trainer must score the tokens before the forward pass that has the graph."""
        if self.settings.off_policy.correction == "gate":
            return True
        snapshot = self.settings.steps_per_batch > 1 or self.settings.kl.in_reward
        return snapshot and self.settings.policy.old == "trainer"

    def _penalised_advantages(self, batch: MicroBatch) -> Tensor:
        """Advantages of ``reward − coefficient · Σ_t kl_t`` within each group: ``[K]``."""
        old = "behaviour" if self.settings.policy.old == "behaviour" else "old"
        kl_K = kl_estimate(column(batch, old), column(batch, "reference"), self.settings.kl.estimator)
        kl_of_row = row_sums(kl_K.double(), batch.sample_K, len(batch.keys)).tolist()
        rewards = [
            None if reward is None else reward - self.settings.kl.coefficient * kl
            for reward, kl in zip(row_values(batch, "reward"), kl_of_row, strict=True)
        ]
        groups = []
        for row, group in enumerate(batch.groups):
            if group is None and rewards[row] is not None:
                raise DataError(f"row {batch.keys[row]}: no group; a rollout's baseline is its group", field="group")
            groups.append(-1 if group is None else group)
        found = group_advantages(rewards, groups, normalise=self.settings.advantage.normalise)
        values = [math.nan if value is None else value for value in found.values]
        return torch.tensor(values, dtype=torch.float32, device=batch.sample_K.device)[batch.sample_K]
