from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.rewards.group_filters import Filtered, filter_groups


def filtered(rewards: list[float | None], groups: list[int], **marks: Any) -> Filtered:
    broken = [index in marks.get("broken", ()) for index in range(len(rewards))]
    silent = [index in marks.get("no_output", ()) for index in range(len(rewards))]
    return filter_groups(rewards, groups, broken=broken, no_output=silent, min_spread=marks.get("min_spread", 0.1))


def test_groups_whose_rewards_spread_less_than_the_least_are_left_out_and_counted():
    found = filtered([1.0, 0.95, 1.0, 0.9, 1.0, -1.0], [0, 0, 1, 1, 2, 2])
    assert found.rewards == (None, None, 1.0, 0.9, 1.0, -1.0)
    assert found.narrow == (0,)


def test_broken_and_silent_rollouts_are_left_out_once_each_before_the_spread_is_looked_at():
    found = filtered([1.0, -1.0, 1.0, -1.0], [0, 0, 0, 1], broken={1}, no_output={1, 3})
    # Without its only failure the first group is narrow.
    assert found == Filtered((None, None, None, None), broken=1, no_output=1, narrow=(0,))


def test_what_had_no_reward_is_counted_nowhere():
    assert filtered([None, 1.0], [0, 0], broken={0}) == Filtered((None, 1.0), 0, 0, ())


def test_with_no_least_spread_even_equal_rewards_stay():
    assert filtered([1.0, 1.0], [0, 0], min_spread=0.0).narrow == ()


@settings(max_examples=40)
@given(st.lists(st.tuples(st.none() | st.floats(-2, 2), st.integers(0, 3)), max_size=12))
def test_a_reward_is_kept_as_it_is_or_left_out(rows):
    rewards = [reward for reward, _ in rows]
    found = filtered(rewards, [group for _, group in rows])
    assert all(left is None or left == reward for left, reward in zip(found.rewards, rewards, strict=True))
