import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.evals import stats
from firstchair.evals.ppi import power_tuning, ppi_mean, true_rate
from firstchair.evals.stats import (
    Share,
    careful_difference,
    careful_rate,
    cluster_sums,
    design_effect,
    difference_needed,
    mcnemar_p,
    newcombe,
    paired_difference,
    rate,
    replicate_sums,
    samples_needed,
    wilson,
)


def test_wilson_gives_the_textbook_interval():
    # 8 of 10: p = 0.8, z² = 3.8415; centre (0.8 + 0.19207)/1.38415, half 1.96/1.38415 · √(0.016 + 0.0096037).
    low, high = wilson(8, 10)
    assert (round(low, 4), round(high, 4)) == (0.4902, 0.9433)


@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_holds_its_own_rate_and_mirrors(pair):
    hits, trials = pair
    low, high = wilson(hits, trials)
    assert 0 <= low <= hits / trials <= high <= 1
    mirror_low, mirror_high = wilson(trials - hits, trials)
    assert math.isclose(low, 1 - mirror_high, abs_tol=1e-12)
    assert math.isclose(high, 1 - mirror_low, abs_tol=1e-12)


def test_mcnemar_gives_the_exact_binomial_value():
    # 1 of 6 changed decisions broken: 2 · (C(6,0) + C(6,1)) / 2⁶ = 14/64.
    assert mcnemar_p(5, 1) == pytest.approx(14 / 64)
    assert mcnemar_p(1, 5) == mcnemar_p(5, 1)
    assert mcnemar_p(0, 0) == mcnemar_p(3, 3) == 1.0


def test_clusters_keep_their_order_and_their_sums():
    sums, ones = cluster_sums(["b", "a", "b"], [1.0, 2.0, 3.0], [1, 1, 1])
    assert (sums.tolist(), ones.tolist()) == ([4.0, 2.0], [2.0, 1.0])


def test_every_bootstrap_replicate_draws_as_many_sessions_as_there_are():
    sums = replicate_sums((np.ones(7), np.arange(7.0)), seed=1, resamples=50)
    assert sums.shape == (50, 2)
    assert (sums[:, 0] == 7).all()
    assert sums[:, 1].std() > 0


def test_many_sessions_are_resampled_in_blocks_with_the_same_result(monkeypatch):
    columns = (np.arange(40.0), np.ones(40))
    whole = replicate_sums(columns, seed=3, resamples=100)
    monkeypatch.setattr(stats, "BLOCK", 40 * 7)
    assert np.array_equal(replicate_sums(columns, seed=3, resamples=100), whole)


def test_very_many_sessions_are_drawn_by_kind_from_the_same_distribution(monkeypatch):
    # Two kinds of session, right twice of two and wrong once of one: how they are drawn must not matter.
    hits, trials = [2, 0] * 300, [2, 1] * 300
    one_by_one = rate(hits, trials, range(600))
    monkeypatch.setattr(stats, "MANY_CLUSTERS", 500)
    sums = replicate_sums((np.array(hits, float), np.array(trials, float), np.ones(600)), seed=1, resamples=20)
    assert (sums[:, 2] == 600).all()
    by_kind = rate(hits, trials, range(600))
    assert by_kind.value == one_by_one.value
    assert by_kind.low == pytest.approx(one_by_one.low, abs=0.004)
    assert by_kind.high == pytest.approx(one_by_one.high, abs=0.004)


def test_the_interval_of_independent_decisions_is_near_the_normal_one():
    rng = np.random.default_rng(0)
    hits = (rng.random(1000) < 0.3).astype(float)
    found = rate(hits, np.ones(1000), range(1000))
    half = 1.96 * math.sqrt(found.value * (1 - found.value) / 1000)
    assert found.method == "cluster_bootstrap"
    assert found.low == pytest.approx(found.value - half, abs=0.006)
    assert found.high == pytest.approx(found.value + half, abs=0.006)


def test_sessions_that_agree_with_themselves_widen_the_interval():
    # 50 sessions of 20 decisions, all right or all wrong: 50 independent facts, so √20 times the naive width.
    hits = np.repeat(np.arange(50) % 2, 20).astype(float)
    clusters = np.repeat(np.arange(50), 20)
    found = rate(hits, np.ones(1000), clusters.tolist())
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * math.sqrt(0.25 / 50), rel=0.1)


def test_the_same_seed_gives_the_same_interval():
    hits, clusters = [float(i % 3 == 0) for i in range(90)], [i // 3 for i in range(90)]
    assert rate(hits, [1] * 90, clusters, seed=5) == rate(hits, [1] * 90, clusters, seed=5)


def test_few_sessions_get_wilson_with_the_effective_count():
    # Two sessions, one all right, one all wrong: p = ½, Σ(h − p·t)² = 2·5² · 2/1 / 20² = ¼, binomial ¼/20: effect 20.
    hits, clusters = [1.0] * 10 + [0.0] * 10, ["a"] * 10 + ["b"] * 10
    assert design_effect(np.array([10.0, 0.0]), np.array([10.0, 10.0])) == pytest.approx(20)
    found = rate(hits, [1] * 20, clusters)
    assert found.method == "wilson"
    assert (found.low, found.high) == pytest.approx(wilson(0.5, 1))


def test_a_perfect_score_still_has_an_interval():
    found = rate([1.0] * 100, [1] * 100, range(100))
    assert found.value == 1.0
    assert found.low == pytest.approx(0.963, abs=1e-3)
    assert found.high == 1.0


def test_no_trial_is_no_rate():
    assert rate([], [], []).value is None
    assert rate([0.0], [0], ["s"]).n == 0


def test_the_paired_difference_cancels_what_both_runs_share():
    rng = np.random.default_rng(1)
    before = (rng.random(400) < 0.5).astype(float)
    after = before.copy()
    flips = np.flatnonzero(before == 0)[:20]
    after[flips] = 1.0
    found = paired_difference((before, np.ones(400)), (after, np.ones(400)), range(400))
    assert found.value == pytest.approx(0.05)
    assert 0.02 < found.low < 0.05 < found.high < 0.08


def test_a_run_against_itself_differs_by_exactly_nothing():
    hits = [1.0, 0.0, 1.0]
    found = paired_difference((hits, [1] * 3), (hits, [1] * 3), ["a", "b", "c"])
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)


def test_ratios_with_different_denominators_can_be_compared():
    found = paired_difference(([1, 0, 0], [1, 0, 0]), ([1, 0, 1], [1, 1, 1]), ["a", "b", "c"])
    assert found.value == pytest.approx(2 / 3 - 1)
    assert found.n == 3


def test_ppi_gives_the_hand_computed_value():
    # λ = 1: mean of f on the others 0.75; residuals Y − f: 0, −1, 0, 0 → −0.25; estimate 0.5.
    # Sample variances of (1, 1, 1, 0) and (0, −1, 0, 0) are both ¼, each over 4 cases.
    found = ppi_mean([1, 0, 1, 0], [1, 1, 1, 0], [1, 1, 1, 0], power=1.0, guard=False)
    assert found.value == pytest.approx(0.5)
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * math.sqrt(0.25 / 4 + 0.25 / 4))


def test_without_trust_ppi_is_the_mean_of_the_labels():
    found = ppi_mean([1, 0, 1, 1], [0, 1, 0, 1], [1] * 50, power=0.0, guard=False)
    assert found.value == pytest.approx(0.75)
    assert (found.high - found.low) / 2 == pytest.approx(1.959964 * math.sqrt(0.25 / 4))


def test_power_tuning_trusts_a_perfect_judge_and_not_a_constant_one():
    labels = [1, 0] * 20
    assert power_tuning(labels, labels, [1, 0] * 2000) == pytest.approx(0.99, abs=0.02)
    assert power_tuning(labels, [1] * 40, [1] * 2000) == 0.0
    assert power_tuning(labels, [1 - y for y in labels], [1, 0] * 2000) == 0.0


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10_000))
def test_ppi_is_narrower_than_labels_alone_when_the_judge_is_good(seed):
    rng = np.random.default_rng(seed)
    truth = (rng.random(1000) < 0.6).astype(float)
    judge = np.where(rng.random(1000) < 0.95, truth, 1 - truth)
    tuned = ppi_mean(truth[:100], judge[:100], judge[100:])
    plain = ppi_mean(truth[:100], judge[:100], judge[100:], power=0.0)
    assert tuned.high - tuned.low < plain.high - plain.low


def test_ppi_covers_the_truth_about_as_often_as_it_says():
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(300):
        truth = (rng.random(600) < 0.3).astype(float)
        judge = np.where(rng.random(600) < 0.85, truth, 1 - truth)
        found = ppi_mean(truth[:60], judge[:60], judge[60:])
        hits += found.low <= 0.3 <= found.high
    assert 0.91 <= hits / 300 <= 0.99


def test_the_true_rate_of_decided_cases_is_their_plain_rate():
    found = true_rate([1, 0, 1, 1], [None] * 4, [None] * 4, ["a", "b", "c", "d"])
    assert found == rate([1, 0, 1, 1], [1] * 4, ["a", "b", "c", "d"])
    # Ten of ten has no spread, and is no certainty.
    assert true_rate([1] * 10, [None] * 10, [None] * 10, range(10)).low == pytest.approx(0.722, abs=1e-3)


def test_the_true_rate_is_not_estimated_without_labels():
    assert true_rate([1, None, None], [None, 1, 1], [None] * 3, ["a", "b", "c"]) is None
    assert true_rate([1, None, None], [None, 1, 1], [None, 1, None], ["a", "b", "c"]) is None
    assert true_rate([], [], [], []) is None


def test_labels_alone_fill_the_undecided_share():
    # 6 decided right, 4 undecided of which 2 labelled, one right: (6 + 4 · ½) / 10.
    decided = [1.0] * 6 + [None] * 4
    labelled = [None] * 6 + [1.0, 0.0, None, None]
    assert true_rate(decided, [None] * 10, labelled, range(10)).value == pytest.approx(0.8)


def test_a_flattering_judge_is_corrected_by_the_labels():
    rng = np.random.default_rng(3)
    truth = (rng.random(2000) < 0.4).astype(float)
    judge = np.where(truth == 1, 1.0, (rng.random(2000) < 0.5).astype(float))
    labelled = [float(y) if i < 200 else None for i, y in enumerate(truth)]
    found = true_rate([None] * 2000, judge.tolist(), labelled, range(2000))
    assert found.low <= truth.mean() <= found.high
    assert found.high < judge.mean()


def test_labels_that_all_agree_do_not_make_the_interval_vanish():
    found = true_rate([None] * 100, [1.0] * 100, [1.0] * 5 + [None] * 95, range(100))
    assert found.value == 1.0
    assert found.low < 0.8


def test_newcombe_gives_the_papers_interval():
    # Newcombe 1998 on 36 both, 12 only the second, 2 only the first, 0 neither: 0.0569 to 0.3404.
    # φ = (36·0 − 12·2)/√(48·2·38·12) = −24/209.2 = −0.11471.
    low, high = newcombe(Share(38, 50), Share(48, 50), -0.11471)
    assert (round(low, 4), round(high, 4)) == (0.0569, 0.3404)
    first, second = [1] * 36 + [0] * 12 + [1] * 2, [1] * 36 + [1] * 12 + [0] * 2
    found = careful_difference((first, [1] * 50), (second, [1] * 50), range(50))
    # With as many sessions as decisions the design effect is 50/49.
    assert (found.low, found.high) == pytest.approx(
        newcombe(Share(38, 50, 50 / 49), Share(48, 50, 50 / 49), -0.11471), abs=1e-5
    )
    assert found.method == "newcombe"


def test_newcombe_of_two_faultless_sides_is_as_wide_as_wilson():
    # Both 30 of 30: no correlation can be told; Wilson's lower bound is 30/(30 + 3.8415) = 0.88649.
    low, high = newcombe(Share(30, 30), Share(30, 30), 0.0)
    assert (round(low, 5), round(high, 5)) == (-0.11351, 0.11351)


def test_a_difference_is_never_certain_for_being_seen_seldom():
    ones, zeros = [1.0] * 3, [0.0] * 3
    assert paired_difference((zeros, ones), (ones, ones), range(3)).low == 1.0
    found = careful_difference((zeros, ones), (ones, ones), range(3))
    # Wilson of 3 of 3: from 3/(3 + 3.8415) = 0.43850; of 0 of 3: to 0.56150. 1 − √2 · 0.56150.
    assert found.low == pytest.approx(1 - math.sqrt(2) * 0.561497, abs=1e-5)
    assert (found.value, found.high) == (1.0, 1.0)


def test_many_sessions_that_differ_often_are_bootstrapped_as_ever():
    rng = np.random.default_rng(0)
    before, after = ((rng.random(200) < share).astype(float) for share in (0.4, 0.6))
    sides = ((before, np.ones(200)), (after, np.ones(200)), np.arange(200) // 4)
    assert careful_difference(*sides, seed=5) == paired_difference(*sides, seed=5)


def test_one_rare_event_makes_a_rate_no_surer_than_none():
    sessions = np.arange(672) // 10
    one, none = (
        careful_rate([1.0] + [0.0] * 671, [1.0] * 672, sessions),
        careful_rate([0.0] * 672, [1.0] * 672, sessions),
    )
    assert none.high == pytest.approx(3.8415 / (672 + 3.8415), abs=1e-5)
    assert one.high > none.high
    assert rate([1.0] + [0.0] * 671, [1.0] * 672, sessions).high < none.high  # what the bootstrap says


def test_the_samples_that_would_decide_are_those_that_do():
    for hits, n, bound in ((5, 5, 0.8), (0, 100, 0.005), (19, 20, 0.8), (12, 20, 0.8)):
        found = rate([1.0] * hits + [0.0] * (n - hits), [1.0] * n, range(n))
        needed = samples_needed(found, bound)
        effect = n / (n - 1) if 0 < hits < n else 1.0
        for count, decided in ((needed - 1, False), (needed, True)):
            low, high = wilson(hits / n * count / effect, count / effect)
            assert (low >= bound or high <= bound) is decided, (hits, n, bound, needed)
    # All right, at least 0.8: n/(n + z²) ≥ 0.8 from n = 4z² = 15.4 on; without a trial as well.
    assert samples_needed(rate([1.0] * 5, [1.0] * 5, range(5)), 0.8) == 16
    assert samples_needed(rate([], [], []), 0.8) == 16
    assert samples_needed(rate([1.0, 0.0], [1.0] * 2, range(2)), 0.5) is None


def test_the_samples_that_would_decide_a_difference_are_those_that_do():
    ones = [1.0] * 8
    found = careful_difference((ones, ones), (ones, ones), range(8))
    needed = difference_needed((ones, ones), (ones, ones), range(8), found, -0.1)
    # z²/(n + z²) ≤ 0.1 from n = 9z² = 34.6 on.
    assert needed == 35
    assert difference_needed((ones, ones), (ones, ones), range(8), found, 0.0) is None
    rng = np.random.default_rng(1)
    columns = [((rng.random(100) < share).astype(float), np.ones(100)) for share in (0.5, 0.56)]
    found = careful_difference(*columns, np.arange(100))
    assert found.low < 0 < found.value
    needed = difference_needed(*columns, np.arange(100), found, 0.0)
    assert needed == math.ceil(100 * ((found.value - found.low) / found.value) ** 2)


@given(
    st.integers(1, 60).flatmap(lambda n: st.lists(st.tuples(st.booleans(), st.booleans()), min_size=n, max_size=n))
)
@settings(max_examples=50)
def test_an_interval_of_a_difference_holds_it_and_mirrors(pairs):
    before, after = ([float(pair[side]) for pair in pairs] for side in (0, 1))
    ones = [1.0] * len(pairs)
    found = careful_difference((before, ones), (after, ones), range(len(pairs)))
    assert -1 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    if found.method == "newcombe":
        back = careful_difference((after, ones), (before, ones), range(len(pairs)))
        assert (back.low, back.high) == pytest.approx((-found.high, -found.low))
