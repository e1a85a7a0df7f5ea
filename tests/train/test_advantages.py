import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.core.errors import DataError
from firstchair.train.advantages import (
    Moments,
    branch_advantages,
    group_advantages,
    moments,
    overlong_penalty,
    whiten,
    without_truncated,
)


def test_an_advantage_is_the_reward_less_the_mean_of_its_group():
    found = group_advantages([1.0, 5.0, 0.0, 7.0], [0, 1, 0, 1], normalise=False)
    assert found.values == (0.5, -1.0, -0.5, 1.0)
    assert found.kept == (0, 1)


def test_normalising_divides_by_the_unbiased_standard_deviation():
    # mean 2, squares (1 + 0 + 1) / (3 − 1) = 1
    found = group_advantages([1.0, 2.0, 3.0], [4, 4, 4], normalise=True)
    assert found.values == pytest.approx((-1.0, 0.0, 1.0), abs=1e-5)
    # two members: ±0.5 / sqrt(0.5), not the ±1 of the biased one
    assert group_advantages([0.0, 1.0], [0, 0], normalise=True).values == pytest.approx(
        (-(0.5**0.5), 0.5**0.5), abs=1e-5
    )


@pytest.mark.parametrize("nothing", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("normalise", [True, False])
def test_a_sample_without_a_grade_is_left_out_counted_and_never_zero(nothing, normalise):
    with_it = group_advantages([1.0, nothing, 0.0], [0, 0, 0], normalise=normalise)
    without = group_advantages([1.0, 0.0], [0, 0], normalise=normalise)
    assert with_it.values == (without.values[0], None, without.values[1])
    assert with_it.ungraded == 1
    assert with_it.kept == (0,)


@pytest.mark.parametrize("normalise", [True, False])
def test_groups_without_a_signal_are_told_apart(normalise):
    rewards = [1.0, 1.0, 0.3, None, None, math.nan, 0.0, 1.0]
    found = group_advantages(rewards, [5, 5, 6, 6, 7, 7, 8, 8], normalise=normalise)
    assert (found.flat, found.single, found.empty, found.kept) == ((5,), (6,), (7,), (8,))
    assert found.values[:6] == (0.0, 0.0, 0.0, None, None, None)
    assert found.ungraded == 3


def test_sums_of_weights_that_differ_by_a_rounding_are_alike():
    found = group_advantages([0.1 + 0.2, 0.3], [0, 0], normalise=True)
    assert found.values == (0.0, 0.0)
    assert found.flat == (0,)


def test_no_samples_are_no_groups():
    found = group_advantages([], [], normalise=True)
    assert (found.values, found.kept, found.ungraded) == ((), (), 0)


def test_rewards_and_groups_must_match():
    with pytest.raises(DataError, match="rewards: 1 rewards for 2 groups"):
        group_advantages([1.0], [0, 0], normalise=True)


REWARDS = st.none() | st.just(math.nan) | st.integers(-3, 3).map(float)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(REWARDS, st.integers(0, 3)), max_size=20), st.booleans(), st.randoms())
def test_order_does_not_matter_and_every_group_is_in_one_list(samples, normalise, random):
    rewards, groups = [reward for reward, _ in samples], [group for _, group in samples]
    found = group_advantages(rewards, groups, normalise=normalise)
    assert sorted(found.kept + found.flat + found.single + found.empty) == sorted(set(groups))
    for value, reward in zip(found.values, rewards, strict=True):
        assert (value is None) == (reward is None or math.isnan(reward))
    for group in found.kept:
        assert sum(
            v for v, g in zip(found.values, groups, strict=True) if g == group and v is not None
        ) == pytest.approx(0)
    order = list(range(len(samples)))
    random.shuffle(order)
    again = group_advantages([rewards[i] for i in order], [groups[i] for i in order], normalise=normalise)
    for place, index in enumerate(order):
        assert again.values[place] == pytest.approx(found.values[index])


def test_truncated_samples_leave_the_loss_and_are_counted():
    masked, count = without_truncated([0.5, None, -0.5], [True, True, False])
    assert masked == (None, None, -0.5)
    assert count == 1  # the second was out already


def test_the_overlong_penalty_grows_over_the_buffer():
    # limit 20, buffer 4: whole up to 16, −1 from 20 on (DAPO, eq. 13)
    assert [overlong_penalty(n, limit=20, buffer=4) for n in (0, 16, 17, 18, 20, 21, 500)] == [
        0.0,
        0.0,
        -0.25,
        -0.5,
        -1.0,
        -1.0,
        -1.0,
    ]


def test_whitening_gives_mean_0_and_unbiased_variance_1():
    x = torch.tensor([1.0, 2.0, 3.0, 6.0])
    # mean 3, unbiased variance (4 + 1 + 0 + 9) / 3
    expected = (x - 3) / (14 / 3 + 1e-8) ** 0.5
    torch.testing.assert_close(whiten(x, moments(x)), expected)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-100, 100), min_size=1, max_size=30), st.integers(0, 30))
def test_moments_of_parts_add_up_to_those_of_the_whole(values, place):
    x = torch.tensor(values, dtype=torch.float32)
    parts = [moments(x[:place]), moments(x[place:])]
    assert Moments(*map(sum, zip(*parts, strict=True))) == pytest.approx(moments(x))


def test_half_precision_is_summed_in_full():
    # bfloat16 knows 4096 and 4112, nothing between
    x = torch.ones(4097, dtype=torch.bfloat16)
    assert moments(x) == (4097.0, 4097.0, 4097.0)
    assert whiten(x, moments(x)).dtype == torch.float32


def test_whitening_one_value_or_none_is_defined():
    one, none = torch.tensor([3.0]), torch.zeros(0)
    assert whiten(one, moments(one)).tolist() == [0.0]
    assert whiten(none, moments(none)).tolist() == []


def test_equal_values_whiten_to_zero():
    x = torch.full((5,), 0.1)
    assert whiten(x, moments(x)).abs().max() < 1e-3


def branches(rows, rewards, *, normalise=False):
    found = branch_advantages([np.array(row, np.int32) for row in rows], rewards, normalise=normalise)
    return [values.tolist() for values in found]


def test_credit_stands_where_rows_part_and_nowhere_else():
    # Three begin with 7, 8; their mean is 2/3. Behind 8 one goes on with 1 (mean 0), two with 2 (mean 1).
    rows = [[7, 8, 1, 4], [7, 8, 2, 4, 5], [7, 8, 2, 4, 6]]
    found = branches(rows, [0.0, 1.0, 1.0])
    assert found[0] == pytest.approx([0, 0, -2 / 3, 0])
    assert found[1] == pytest.approx([0, 0, 1 / 3, 0, 0])
    assert found[1] == found[2]
    deviation = 3**-0.5
    assert branches(rows, [0.0, 1.0, 1.0], normalise=True)[0][2] == pytest.approx(-2 / 3 / deviation, abs=1e-4)


def test_a_row_that_ends_where_others_go_on_has_no_token_there():
    assert branches([[7, 8], [7, 8, 9]], [0.0, 1.0]) == [[0.0, 0.0], [0.0, 0.0, 0.5]]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.floats(-2, 2)), min_size=1, max_size=8)
)
def test_along_a_row_credit_adds_up_to_what_its_like_earned_over_the_mean(group):
    rows = [[*ids, 9] for ids, _ in group]  # each ends in a token of its own kind, so that none ends within another
    rewards = [reward for _, reward in group]
    for row, found in zip(rows, branches(rows, rewards), strict=True):
        alike = [reward for other, reward in zip(rows, rewards, strict=True) if other == row]
        assert sum(found) == pytest.approx(sum(alike) / len(alike) - sum(rewards) / len(rewards), abs=1e-5)
