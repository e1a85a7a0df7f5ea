import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firstchair.train.policy_loss import (
    Clip,
    approximate_kl,
    clipped_surrogate,
    safe_exponent,
    sequence_log_ratios,
)

EXTREMES = [-1000.0, 1000.0, math.nan, math.inf, -math.inf]
CLIP = Clip(0.2, 0.2)


def naive(log_ratio, advantage, low, high, dual=None):
    """The formula of the paper for one token, in Python floats."""
    ratio = math.exp(log_ratio)
    loss = -min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)
    return min(loss, -dual * advantage) if dual is not None and advantage < 0 else loss


@pytest.mark.parametrize("dual", [None, 3.0])
def test_a_zero_advantage_is_a_loss_of_exactly_zero_at_every_extreme(dual):
    log_ratio = torch.tensor(EXTREMES, requires_grad=True)
    loss, clipped = clipped_surrogate(log_ratio, torch.zeros(len(EXTREMES)), Clip(0.2, 0.2, dual))
    assert loss.tolist() == [0.0] * len(EXTREMES)
    assert not clipped.any()
    loss.sum().backward()
    assert log_ratio.grad.tolist() == [0.0] * len(EXTREMES)


@pytest.mark.parametrize("advantage", [2.0, -2.0])
def test_extremes_stay_finite_with_any_advantage(advantage):
    log_ratio = torch.tensor(EXTREMES, requires_grad=True)
    loss, _ = clipped_surrogate(log_ratio, torch.full((len(EXTREMES),), advantage), CLIP)
    loss.sum().backward()
    assert loss.isfinite().all()
    assert log_ratio.grad.isfinite().all()
    assert approximate_kl(torch.tensor(EXTREMES)).isfinite().all()


def test_the_loss_is_the_naive_formula():
    # d = old − new ∈ {−.1, 0, .1}, A ∈ {1, −2, .5}
    for d in (-0.1, 0.0, 0.1):
        for advantage in (1.0, -2.0, 0.5):
            loss, _ = clipped_surrogate(torch.tensor([-d]), torch.tensor([advantage]), CLIP)
            assert float(loss) == pytest.approx(naive(-d, advantage, 0.2, 0.2), rel=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "clipped"),
    [
        (1.5, 1.0, -1.3, True),  # rose far enough: 1 + 0.3
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),  # fell far enough: 1 − 0.2
        (1.5, -1.0, 1.5, False),
        (9.0, -1.0, 3.0, False),  # dual clip: at most 3
        (9.0, 1.0, -1.3, True),  # and only for bad tokens
        (0.01, -1.0, 0.8, True),
    ],
)
def test_what_is_clipped_and_what_is_not(ratio, advantage, expected, clipped):
    log_ratio = torch.tensor([math.log(ratio)], requires_grad=True)
    loss, flag = clipped_surrogate(log_ratio, torch.tensor([advantage]), Clip(0.2, 0.3, 3.0))
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-6)
    assert bool(flag) is clipped
    loss.backward()
    free = expected == pytest.approx(-ratio * advantage)
    assert float(log_ratio.grad) == pytest.approx(-ratio * advantage if free else 0.0, rel=1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.floats(-3, 3), st.floats(-5, 5)), min_size=1, max_size=8),
    st.floats(0, 0.9),
    st.floats(0, 2),
    st.none() | st.floats(1.1, 5),
)
def test_loss_and_gradient_are_those_of_the_paper(tokens, low, high, dual):
    log_ratio = torch.tensor([r for r, _ in tokens], dtype=torch.float64, requires_grad=True)
    loss, _ = clipped_surrogate(
        log_ratio, torch.tensor([a for _, a in tokens], dtype=torch.float64), Clip(low, high, dual)
    )
    loss.sum().backward()
    step = 1e-6
    for place, (r, a) in enumerate(tokens):
        assert float(loss[place].detach()) == pytest.approx(naive(r, a, low, high, dual), rel=1e-9, abs=1e-9)
        left, right = (naive(r + d, a, low, high, dual) for d in (-step, step))
        middle = naive(r, a, low, high, dual)
        slopes = sorted([(middle - left) / step, (right - middle) / step])
        assert slopes[0] - 1e-3 <= float(log_ratio.grad[place]) <= slopes[1] + 1e-3


def test_half_precision_is_exponentiated_in_single():
    assert safe_exponent(torch.tensor([0.1], dtype=torch.bfloat16)).dtype == torch.float32


def test_a_sequence_has_one_ratio_the_mean_of_its_log_ratios():
    # rows 0: (0.1 + 0.3) / 2, 2: −0.4; row 1 has no token
    log_ratio = torch.tensor([0.1, 0.3, -0.4], requires_grad=True)
    found = sequence_log_ratios(log_ratio, torch.tensor([0, 0, 2]), 3)
    torch.testing.assert_close(found, torch.tensor([0.2, 0.2, -0.4]))
    # exp(0.2) · A flows to both tokens in equal parts
    loss, _ = clipped_surrogate(found, torch.tensor([-1.0, -1.0, 0.0]), CLIP)
    loss.sum().backward()
    torch.testing.assert_close(log_ratio.grad, torch.tensor([math.exp(0.2), math.exp(0.2), 0.0]))


def test_the_distance_from_sampling_is_never_negative():
    # e^0.5 − 1 − 0.5
    found = approximate_kl(torch.tensor([0.0, 0.5, -0.5]))
    assert found.tolist() == pytest.approx([0.0, math.exp(0.5) - 1.5, math.exp(-0.5) - 0.5], rel=1e-5)
