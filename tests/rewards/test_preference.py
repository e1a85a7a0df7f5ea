from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.rewards.preference import Played, preference_rewards
from firstchair.rewards.samples import NoValue


def played(right: bool = True, cost: float | None = 0.0, latency: float | None = 0.0, wants=None, **calls: float):
    return Played(right, cost, latency, calls, {} if wants is None else wants)


def test_a_right_rollout_earns_its_normalised_row_times_the_preference_and_a_wrong_one_nothing():
    wants = {"accuracy": 1.0, "cost": 0.5, "latency": 0.25, "search": 0.1}
    found = preference_rewards(
        [
            played(True, 0.02, 10.0, wants, search=1, expert=1),
            played(True, 0.10, 2.0, wants, search=3, expert=0),
            played(False, 0.00, 4.0, wants, search=0, expert=0),
        ]
    )
    # accuracy 1; cost spans 0 to .10; latency 2 to 10; search 0 to 3
    first = 1 * 1 + 0.5 * (0.10 - 0.02) / 0.10 + 0.25 * 0 + 0.1 * 1 / 3
    second = 1 * 1 + 0.5 * 0 + 0.25 * 1 + 0.1 * 1
    assert found == [pytest.approx(first), pytest.approx(second), 0.0]


def test_each_task_of_a_batch_is_weighed_by_its_own_preference():
    cheap, quick = {"cost": 1.0}, {"latency": 1.0}
    found = preference_rewards([played(True, 0.0, 9.0, cheap), played(True, 0.1, 1.0, quick), played(True, 0.1, 9.0)])
    assert found == [1.0, 1.0, 1.0]


def test_a_column_that_is_the_same_in_all_rollouts_has_a_value_of_its_own():
    wants = {"accuracy": 1.0, "cost": 2.0, "latency": 4.0, "used": 8.0, "idle": 16.0}
    # Nobody did better on cost or latency; `used` was called by all, `idle` by none; all were right.
    assert preference_rewards([played(True, 0.03, 5.0, wants, used=2, idle=0)] * 3) == [1 + 2 + 4 + 8 + 0] * 3
    # A batch in which all are wrong has a constant accuracy too, and that is 0.
    assert preference_rewards([played(False, 0.03, 5.0, wants, used=2, idle=0)] * 2) == [0.0, 0.0]


def test_what_a_preference_weighs_and_a_rollout_lacks_leaves_no_reward_and_is_named():
    unpriced = played(True, None, 1.0, {"cost": 1.0})
    untimed = played(True, 0.1, math.nan, {"latency": 1.0})
    never_offered = played(True, 0.1, 1.0, {"accuracy": 1.0, "search": 0.5}, other=1)
    known = played(True, 0.0, 1.0, {"cost": 1.0}, search=1)
    found = preference_rewards([unpriced, untimed, never_offered, known])
    assert [one.why for one in found[:3] if isinstance(one, NoValue)] == [
        "not_measured",
        "not_measured",
        "not_offered",
    ]
    assert "search" in found[2].detail
    assert found[3] == 1.0  # of the two whose cost is known it is the cheaper


def test_what_no_preference_weighs_need_not_be_known():
    assert preference_rewards([played(True, None, None, {"accuracy": 1.0, "cost": 0.0})]) == [1.0]
    assert preference_rewards([played(True, None, None)]) == [1.0]


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_a_weight_below_zero_would_make_a_right_answer_worth_less_than_a_wrong_one_and_is_refused(weight):
    (found,) = preference_rewards([played(True, 0.1, 1.0, {"cost": weight})])
    assert isinstance(found, NoValue)
    assert found.why == "bad_preference"


def test_a_tool_called_like_a_column_is_not_that_column():
    wants = {"calls.cost": 1.0}
    rows = [Played(True, 0.0, 0.0, {"cost": 0.0}, wants), Played(True, 0.1, 0.0, {"cost": 4.0}, wants)]
    assert preference_rewards(rows) == [0.0, 1.0]


ROWS = st.builds(
    Played,
    right=st.booleans(),
    cost_usd=st.none() | st.floats(0, 10),
    latency_s=st.none() | st.floats(0, 1000),
    calls=st.dictionaries(st.sampled_from("ab"), st.integers(0, 5).map(float)),
    preference=st.dictionaries(st.sampled_from(["accuracy", "cost", "latency", "a", "b"]), st.floats(0, 10)),
)


@settings(max_examples=40)
@given(st.lists(ROWS, max_size=6), st.randoms())
def test_rewards_lie_between_nothing_and_the_whole_preference_and_follow_their_rollouts(batch, rng):
    found = preference_rewards(batch)
    for row, value in zip(batch, found, strict=True):
        if isinstance(value, float):
            assert 0.0 <= value <= sum((row.preference or {"accuracy": 1.0}).values()) + 1e-9
    order = rng.sample(range(len(batch)), len(batch))
    assert preference_rewards([batch[i] for i in order]) == [found[i] for i in order]
