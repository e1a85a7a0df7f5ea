"""Rows to numbers: two intervals, cost, latency, and what is left out."""

import pytest

from firstchair.catalog.token_counts import TokenCounts
from firstchair.evals.benchmarks.rows import BenchRow
from firstchair.evals.benchmarks.summary import seed_interval, summarize


def row(sample: str, seed: int, score: float | None, **fields: object) -> BenchRow:
    outcome = "graded" if score is not None else fields.pop("outcome", "ungraded")
    given = {"calls": 1, "cost_nano": 1_000_000, "latency_s": 1.0, "usage": TokenCounts(input=10, output=2), **fields}
    return BenchRow(sample_id=sample, seed=seed, outcome=outcome, score=score, **given)  # type: ignore[arg-type]


def test_the_interval_over_seeds_is_students_t_of_their_means():
    # 0.5, 0.6, 0.7: mean 0.6, s = 0.1, t(0.975; 2) = 4.302653; 4.302653 · 0.1 / √3 = 0.248414
    found = seed_interval([0.5, 0.6, 0.7])
    assert (found.mean, found.seeds) == (pytest.approx(0.6), 3)
    assert (found.low, found.high) == (pytest.approx(0.351586, abs=1e-6), pytest.approx(0.848414, abs=1e-6))
    # Two seeds: t = 12.7062; 12.7062 · 0.0707107 / √2 = 0.63531, which reaches beyond 0 and 1.
    wide = seed_interval([0.9, 1.0])
    assert (wide.low, wide.high) == (pytest.approx(0.31469, abs=1e-5), 1.0)


def test_one_seed_has_a_mean_and_no_interval():
    found = seed_interval([0.4])
    assert (found.mean, found.low, found.high, found.seeds) == (0.4, None, None, 1)
    assert seed_interval([]).mean is None


def test_more_seeds_of_the_same_questions_are_not_more_questions():
    samples = [str(number) for number in range(40)]
    once = summarize([row(one, 0, float(int(one) % 2)) for one in samples], [0])
    five = summarize([row(one, seed, float(int(one) % 2)) for one in samples for seed in range(5)], range(5))
    alone = summarize([row(str(number), 0, float(number % 2)) for number in range(200)], [0])
    width = lambda found: found.over_samples.high - found.over_samples.low  # noqa: E731 - said once
    assert width(five) == pytest.approx(width(once), rel=0.1)
    assert width(five) > 1.8 * width(alone)
    assert (five.samples, five.rows, five.over_seeds.deviation) == (40, 200, 0.0)


def test_what_was_not_graded_is_counted_and_is_no_zero():
    rows = [
        row("a", 0, 1.0),
        row("b", 0, 0.0),
        row("c", 0, None, error="429 too many requests\nand more"),
        row("d", 0, None, outcome="failed", error="connection refused", latency_s=99.0),
    ]
    found = summarize(rows, [0])
    assert (found.over_samples.value, found.by_seed[0].mean) == (0.5, 0.5)
    assert (found.graded, found.ungraded, found.failed) == (2, 1, 1)
    assert found.errors == {"ungraded: 429 too many requests": 1, "failed: connection refused": 1}
    assert found.latency.p95_s == 1.0  # of a sample that broke nothing is known


def test_nothing_graded_has_no_mean():
    found = summarize([row("a", 0, None)], [0])
    assert (found.over_samples.value, found.over_seeds.mean, found.by_seed[0].mean) == (None, None, None)


def test_costs_add_up_and_one_unknown_price_makes_the_sum_unknown():
    rows = [row("a", 0, 1.0), row("b", 0, 0.0, helper_calls=1, helper_cost_nano=5)]
    found = summarize(rows, [0]).cost
    assert (found.endpoint_usd, found.per_sample_usd, found.helper_usd) == (0.002, 0.001, 5e-9)
    assert found.usage == TokenCounts(input=20, output=4)
    assert summarize([*rows, row("c", 0, 1.0, cost_nano=None)], [0]).cost.endpoint_usd is None
