import math

from firstchair.train.objective import largest


def test_maxima_are_never_divided_and_never_zero_for_want_of_a_value():
    # the second micro-batch has no token, the third none below −1
    assert largest([{"diff": 0.8}, {}, {"diff": 0.9, "other": -2.0}, {"other": -1.0}]) == {"diff": 0.9, "other": -1.0}
    assert largest([{}, {}]) == {}


def test_a_nan_is_the_largest_wherever_it_stands():
    for order in ([math.nan, 1.0], [1.0, math.nan]):
        assert math.isnan(largest([{"diff": value} for value in order])["diff"])
