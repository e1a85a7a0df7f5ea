import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.train.conftest import random_examples
from tests.train.table_scorer import EntropyTable, TableScorer, cut, example, run_step

from firstchair.core.errors import ConfigError, DataError
from firstchair.train.batching import collate
from firstchair.train.examples import Example
from firstchair.train.grpo import GrpoObjective
from firstchair.train.objective import largest
from firstchair.train.reference import Reference
from firstchair.train.rl_config import Grpo

REDUCTIONS = ({"reduction": "token"}, {"reduction": "sample"}, {"reduction": "constant", "row_tokens": 9})
VARIANTS = (
    {},
    {"policy": {"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 1.4}},
    {"policy": {"ratio": "sequence"}},
    {"policy": {"ratio": "one"}},
    {"policy": {"old": "behaviour"}},
    {"kl": {"coefficient": 0.2}, "entropy": 0.1},
    {"kl": {"coefficient": 0.2, "estimator": "k1", "unbiased": True}},
    {"kl": {"coefficient": 0.2, "place": "reward", "estimator": "k1"}},
    {"off_policy": {"correction": "truncate", "low": 0.7, "high": 1.3}},
    {"off_policy": {"correction": "gate", "low": 0.7, "high": 1.3}, "kl": {"coefficient": 0.1, "unbiased": True}},
)
EXTREMES = [-1000.0, 1000.0]


def settings_of(*parts) -> Grpo:
    return Grpo.model_validate({name: value for part in parts for name, value in part.items()})


def rollouts(lengths, *, seed=0, left_out=(), columns=("behaviour", "old", "reference", "advantage", "reward")):
    """A scorer and rows of so many trained tokens in groups of two; ``left_out`` have NaN for a grade."""
    generator = np.random.default_rng(seed)
    logp = [(-2 + 0.7 * generator.normal(size=n)).tolist() for n in lengths]
    rows = []
    for key, own in enumerate(logp):
        grade = math.nan if key in left_out else float(generator.normal())
        values = {
            name: (np.array(own) + 0.3 * generator.normal(size=len(own))).tolist()
            for name in ("behaviour", "old", "reference")
        }
        values |= {"advantage": [grade] * len(own), "reward": [grade] * len(own)}
        rows.append(example(key, {name: values[name] for name in columns}, trained=len(own), group=key // 2))
    entropy = [(1 + generator.random(n)).tolist() for n in lengths]
    return EntropyTable(logp, entropy), rows


def reference_loss(scorer, rows, settings):
    """The same objective from its formulas: row by row and token by token, in float64, with nothing clamped."""
    loss, weights = torch.zeros((), dtype=torch.float64), 0.0
    advantages = reference_advantages(rows, settings)
    for key, row in enumerate(rows):
        count = row.trained_tokens
        own = {name: torch.from_numpy(values[1:].astype(np.float64)) for name, values in row.columns.items()}
        logp, entropy = scorer.logp[key, :count], scorer.entropy[key, :count]
        weight = (own["old"] - own["behaviour"]).exp()
        low, high = settings.off_policy.low, settings.off_policy.high
        kept = [t for t in range(count) if not math.isnan(advantages[key])]
        if settings.off_policy.correction == "gate":
            kept = [t for t in kept if low <= float(weight[t]) <= high]
        if not kept:
            continue
        old = own["behaviour"] if settings.policy.old == "behaviour" else own["old"]
        mean = sum(logp[t] - old[t] for t in kept) / len(kept)
        terms = []
        for t in kept:
            ratio = {
                "token": (logp[t] - old[t]).exp(),
                "sequence": mean.exp(),
                "one": (logp[t] - logp[t].detach()).exp(),
            }[settings.policy.ratio]
            top = settings.policy.clip_low if settings.policy.clip_high is None else settings.policy.clip_high
            bounded = ratio.clamp(1 - settings.policy.clip_low, 1 + top)
            term = -torch.minimum(ratio * advantages[key], bounded * advantages[key])
            if settings.policy.dual_clip and advantages[key] < 0:
                term = torch.minimum(term, torch.tensor(-settings.policy.dual_clip * advantages[key]))
            if settings.off_policy.correction == "truncate":
                term = term * weight[t].clamp(low, high)
            if settings.off_policy.correction == "gate":
                term = term * weight[t]
            if settings.kl.coefficient and settings.kl.place == "loss":
                r = own["reference"][t] - logp[t]
                kl = {"k1": -r, "k3": r.exp() - 1 - r}[settings.kl.estimator]
                if settings.kl.unbiased:
                    sampler = own["behaviour"] if settings.off_policy.correction != "none" else old
                    kl = kl * (logp[t] - sampler[t]).exp()
                term = term + settings.kl.coefficient * kl
            terms.append(term - settings.entropy * entropy[t])
        loss = loss + sum(terms) / (len(terms) if settings.reduction == "sample" else 1)
        weights += {"token": len(terms), "sample": 1, "constant": settings.row_tokens}[settings.reduction]
    return loss / (weights or 1)


def reference_advantages(rows, settings):
    """What the rows say, or the reward less the KL of the whole row, against the mean of the pair."""
    if settings.kl.place == "loss" or not settings.kl.coefficient:
        return [float(row.columns["advantage"][-1]) if row.trained_tokens else math.nan for row in rows]
    penalised = []
    for row in rows:
        old, reference = (row.columns[name][1:].astype(np.float64) for name in ("old", "reference"))
        reward = float(row.columns["reward"][-1]) if row.trained_tokens else math.nan
        penalised.append(reward - settings.kl.coefficient * float((old - reference).sum()))
    found = []
    for first in range(0, len(rows), 2):
        pair = np.array(penalised[first : first + 2])
        graded = pair[~np.isnan(pair)]
        if len(graded) < 2:
            found += (pair * 0).tolist()
        else:
            found += ((pair - graded.mean()) / (graded.std(ddof=1) + 1e-6)).tolist()
    return found


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_loss_and_gradient_are_those_of_the_formulas(variant, reduction):
    settings = settings_of(variant, reduction)
    scorer, rows = rollouts([3, 5, 2, 0, 4, 6], left_out={2})
    loss, gradient, _ = run_step(GrpoObjective(settings), scorer, cut(rows, [2, 4]))
    expected = reference_loss(scorer, rows, settings)
    (by_hand,) = torch.autograd.grad(expected, scorer.logp)
    assert loss == pytest.approx(float(expected.detach()), abs=1e-6)
    torch.testing.assert_close(gradient, by_hand, rtol=1e-5, atol=1e-7)


@hypothesis_settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.sets(st.integers(0, 7)),
    st.integers(0, 4),
    st.sampled_from(VARIANTS),
    st.sampled_from(REDUCTIONS),
    st.integers(0, 5),
)
def test_no_cut_into_micro_batches_changes_loss_gradient_or_metrics(pairs, left_out, place, variant, reduction, seed):
    """Groups stay whole; rows may be empty or ungraded, batches may be empty."""
    lengths = [length for first in pairs for length in (first, (first * 3 + seed) % 5)]
    scorer, rows = rollouts(lengths, seed=seed, left_out=left_out)
    objective = GrpoObjective(settings_of(variant, reduction))
    whole = run_step(objective, scorer, cut(rows, [len(rows)]))
    first = 2 * min(place, len(pairs))
    parts = run_step(objective, scorer, cut(rows, [first, 0, len(rows) - first]))
    assert math.isfinite(whole[0])
    assert parts[0] == pytest.approx(whole[0], abs=1e-9)
    torch.testing.assert_close(parts[1], whole[1], rtol=1e-9, atol=1e-12)
    assert parts[2] == pytest.approx(whole[2], abs=1e-9, nan_ok=True)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_six_rows_with_one_masked_are_the_same_in_one_piece_and_in_three(variant, reduction):
    lengths = [3, 5, 0, 4, 6, 1]  # the third, of 2 tokens, fully masked
    scorer, rows = rollouts(lengths)
    objective = GrpoObjective(settings_of(variant, reduction))
    sizes = [2, 4] if variant.get("kl", {}).get("place") == "reward" else [2, 3, 1]
    whole, parts = (run_step(objective, scorer, cut(rows, own)) for own in ([6], sizes))
    assert parts[0] == pytest.approx(whole[0], abs=1e-12)
    torch.testing.assert_close(parts[1], whole[1], rtol=0, atol=1e-12)


@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_parts_of_the_loss_add_up_to_it(variant, reduction):
    scorer, rows = rollouts([3, 5, 2, 4], left_out={2})
    loss, _, metrics = run_step(GrpoObjective(settings_of(variant, reduction)), scorer, cut(rows, [2, 2]))
    parts = [metrics[name] for name in ("policy_loss", "kl_loss", "entropy_loss") if name in metrics]
    assert sum(parts) == pytest.approx(loss, abs=1e-12)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_sample_without_a_grade_is_as_if_it_were_not_there(variant):
    scorer, rows = rollouts([3, 5, 2, 4], left_out={2, 3})
    objective = GrpoObjective(settings_of(variant))
    with_them, gradient, metrics = run_step(objective, scorer, cut(rows, [4]))
    without, expected, _ = run_step(objective, scorer, cut(rows[:2], [2]))
    assert with_them == pytest.approx(without, abs=1e-12)
    torch.testing.assert_close(gradient, expected)
    assert gradient[2:].abs().sum() == 0
    assert metrics["left_out"] >= 6 / 14


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("reduction", REDUCTIONS, ids=str)
def test_a_step_with_nothing_in_the_loss_is_zero_with_a_graph(variant, reduction):
    scorer, rows = rollouts([3, 0], left_out={0, 1})
    objective = GrpoObjective(settings_of(variant, reduction))
    for batches in (cut(rows, [2, 0]), cut([], [0])):
        loss, gradient, _ = run_step(objective, scorer, batches)
        assert loss == 0.0
        assert gradient.abs().sum() == 0
        assert sum(objective.weight(batch) for batch in objective.prepare(batches, scorer)) == 0.0


def test_every_micro_batch_names_the_same_metrics():
    """Processes add them up by place, so one without a token must name them too."""
    scorer, rows = rollouts([3, 2])
    for variant in VARIANTS:
        objective = GrpoObjective(settings_of(variant))
        full, empty = objective.prepare(cut(rows, [2, 0]), scorer)
        terms = [objective.loss(scorer, batch) for batch in (full, empty)]
        assert set(terms[0].sums) == set(terms[1].sums)
        assert terms[1].maxima == {}


@pytest.mark.parametrize("variant", [VARIANTS[0], VARIANTS[1], VARIANTS[2], VARIANTS[5], VARIANTS[8]], ids=str)
def test_extremes_with_zero_advantage_are_exactly_zero(variant):
    scorer = EntropyTable([EXTREMES], [[0.0, 0.0]])
    columns = {"behaviour": [0.0] * 2, "old": [0.0] * 2, "reference": EXTREMES, "advantage": [0.0] * 2}
    loss, gradient, _ = run_step(
        GrpoObjective(settings_of(variant)), scorer, cut([example(0, columns, trained=2)], [1])
    )
    assert loss == 0.0
    assert gradient.tolist() == [[0.0, 0.0]]


def test_the_first_step_on_fresh_rollouts_has_ratio_one_and_needs_no_second_pass():
    scorer, rows = rollouts([3, 5], columns=("behaviour", "advantage"))
    _, gradient, metrics = run_step(GrpoObjective(Grpo()), scorer, cut(rows, [2]))
    assert scorer.calls == 1
    assert metrics["clip_fraction"] == 0.0
    assert metrics["approx_kl"] == 0.0
    advantage = [row.columns["advantage"][-1] for row in rows]
    torch.testing.assert_close(
        gradient[:, :3], -torch.tensor(advantage, dtype=torch.float64)[:, None].expand(2, 3) / 8
    )


@pytest.mark.parametrize(
    ("variant", "scored"),
    [
        ({}, False),
        ({"off_policy": {"correction": "truncate"}}, False),
        ({"steps_per_batch": 2}, True),
        ({"off_policy": {"correction": "gate"}}, True),
        ({"steps_per_batch": 2, "policy": {"old": "behaviour"}}, False),
    ],
    ids=str,
)
def test_the_trainer_scores_first_only_where_that_is_needed(variant, scored):
    scorer, rows = rollouts([3, 5], columns=("behaviour", "advantage"))
    (batch,) = GrpoObjective(settings_of(variant)).prepare(cut(rows, [2]), scorer)
    assert ("old" in batch.columns) is scored
    assert scorer.calls == int(scored)
    if scored:
        torch.testing.assert_close(batch.columns["old"], scorer(batch))


def test_old_scores_are_those_before_the_update_in_the_second_step():
    scorer, rows = rollouts([3, 5], columns=("behaviour", "advantage"))
    objective = GrpoObjective(Grpo(steps_per_batch=2))
    batches = objective.prepare(cut(rows, [2]), scorer)
    with torch.no_grad():
        scorer.logp += 0.5
    _, _, metrics = run_step(objective, scorer, batches)  # prepares again, and must keep the column
    assert metrics["approx_kl"] == pytest.approx(math.exp(0.5) - 1.5, rel=1e-6)


def test_the_difference_to_the_sampler_counts_what_the_gate_rejects():
    columns = {"behaviour": [-1.0, -1.25, -6.0], "advantage": [1.0] * 3}
    scorer = TableScorer([[-1.0, -1.0, -1.0]])
    objective = GrpoObjective(settings_of({"off_policy": {"correction": "gate", "low": 0.5, "high": 2.0}}))
    (batch,) = objective.prepare(cut([example(0, columns, trained=3)], [1]), scorer)
    terms = objective.loss(scorer, batch)
    total, count = terms.sums["behaviour_diff"]
    assert (float(total), count) == (5.25, 3.0)
    assert largest([terms.maxima]) == {"behaviour_diff_max": 5.0}
    assert terms.sums["off_policy_cut"] == (1.0, 3.0)
    assert terms.sums["left_out"] == (1.0, 3.0)
    assert objective.weight(batch) == 2.0


def test_kl_in_the_reward_comes_off_before_the_mean_of_the_group():
    """Rewards 1 and 0; the first row's log-ratios to the reference sum to 2, the second's to 0."""
    settings = Grpo(kl={"coefficient": 0.25, "place": "reward", "estimator": "k1"}, advantage={"normalise": False})
    rows = [
        example(0, {"behaviour": [-1, -1], "reference": [-2, -2], "reward": [1, 1]}, trained=2, group=3),
        example(1, {"behaviour": [-1], "reference": [-1], "reward": [0]}, trained=1, group=3),
    ]
    objective = GrpoObjective(settings)
    (batch,) = objective.prepare(cut(rows, [2]), TableScorer([[-1.0, -1.0], [-1.0]]))
    # 1 − 0.25 · 2 = 0.5 against 0: ±0.25
    assert batch.columns["advantage"].tolist() == [0.25, 0.25, -0.25]
    terms = objective.loss(TableScorer([[-1.0, -1.0], [-1.0]]), batch)
    assert "kl_loss" not in terms.sums
    assert terms.sums["reference_kl"] == (2.0, 3.0)


def test_kl_in_the_reward_needs_groups():
    settings = Grpo(kl={"coefficient": 0.25, "place": "reward"})
    row = example(4, {"behaviour": [-1], "reference": [-2], "reward": [1]}, trained=1)
    with pytest.raises(DataError, match="group: row 4: no group"):
        GrpoObjective(settings).prepare(cut([row], [1]), TableScorer([[-1.0]] * 5))


def test_reference_scores_are_completed_once():
    scorer, rows = rollouts([3, 5], columns=("behaviour", "advantage"))
    frozen = TableScorer((scorer.logp + 0.1).tolist())
    objective = GrpoObjective(Grpo(kl={"coefficient": 0.1}), Reference(frozen))
    (batch,) = objective.prepare(objective.prepare(cut(rows, [2]), scorer), scorer)
    assert frozen.calls == 1
    torch.testing.assert_close(batch.columns["reference"], scorer(batch) + 0.1)


def test_a_penalty_without_a_reference_is_refused():
    scorer, rows = rollouts([3], columns=("behaviour", "advantage"))
    with pytest.raises(ConfigError, match="no reference to hold the policy to"):
        GrpoObjective(Grpo(kl={"coefficient": 0.1})).prepare(cut(rows, [1]), scorer)


def test_an_entropy_bonus_makes_a_real_model_less_decided(scorer):
    rows = [
        Example(
            row.ids,
            row.loss_mask,
            {"behaviour": np.zeros(len(row), np.float32), "advantage": np.zeros(len(row), np.float32)},
            key=row.key,
        )
        for row in random_examples([7, 6])
    ]
    objective, batch = GrpoObjective(Grpo(entropy=1.0)), collate(rows, layout="packed")
    terms = objective.loss(scorer, batch)
    before, count = terms.sums["entropy"]
    assert float(terms.numerator.detach()) == pytest.approx(-float(before), rel=1e-5)
    assert 0 < float(before) / count < math.log(50)
    (terms.numerator / objective.weight(batch)).backward()
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter -= 1e-3 * parameter.grad
    assert objective.loss(scorer, batch).sums["entropy"][0] > before


@pytest.mark.parametrize(
    ("name", "value"), [("behaviour", math.nan), ("behaviour", math.inf), ("advantage", -math.inf)]
)
def test_what_cannot_be_trained_on_is_refused_with_its_row(name, value):
    scorer, rows = rollouts([3, 2])
    rows[1].columns[name][1:] = value
    with pytest.raises(DataError, match=f"{name}: row 1: found {value}; expected a finite number"):
        GrpoObjective(Grpo()).prepare(cut(rows, [2]), scorer)


def test_on_a_real_model_one_step_raises_what_was_good_and_lowers_what_was_bad(scorer):
    rows = [
        Example(
            row.ids,
            row.loss_mask,
            {
                "behaviour": np.zeros(len(row), np.float32),
                "advantage": np.full(len(row), 1.0 - 2 * (row.key % 2), np.float32),
            },
            key=row.key,
            group=row.key // 2,
        )
        for row in random_examples([7, 6, 9, 5])
    ]
    objective = GrpoObjective(Grpo(kl={"coefficient": 0.01}), Reference.of(scorer))
    (batch,) = objective.prepare([collate(rows, layout="packed")], scorer)
    before = scorer(batch).detach()
    terms = objective.loss(scorer, batch)
    (terms.numerator / objective.weight(batch)).backward()
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter -= 1e-3 * parameter.grad
        change = scorer(batch) - before
    assert float((change * batch.columns["advantage"]).sum()) > 0
    assert terms.sums["reference_kl"][0] == 0.0
