import pytest

from firstchair.train.config import Schedule
from firstchair.train.schedule import factor


def curve(total=10, **fields):
    return [factor(step, total, Schedule(**fields)) for step in range(total)]


def test_warm_up_rises_in_equal_steps_and_reaches_the_peak():
    assert curve(warmup_ratio=0.4, kind="constant")[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_linear_decay_ends_on_the_floor_at_the_last_step():
    # 10 steps, none of warm-up, floor 0.1: 1.0, 0.9, ..., 0.1
    assert curve(kind="linear", warmup_ratio=0.0, floor=0.1) == pytest.approx(
        [1.0 - 0.1 * step for step in range(10)]
    )


def test_cosine_decay_is_half_way_in_the_middle():
    values = curve(total=11, kind="cosine", warmup_ratio=0.0, floor=0.0)
    assert values[0] == 1.0
    assert values[5] == pytest.approx(0.5)
    assert values[10] == pytest.approx(0.0)


def test_one_step_trains_at_the_peak():
    assert curve(total=1, kind="cosine", warmup_ratio=0.0, floor=0.1) == [1.0]


@pytest.mark.parametrize("kind", ["cosine", "linear", "constant"])
def test_no_rate_is_above_the_peak_or_below_zero(kind):
    values = curve(total=57, kind=kind, warmup_ratio=0.1, floor=0.05)
    assert all(0.0 < value <= 1.0 for value in values)
