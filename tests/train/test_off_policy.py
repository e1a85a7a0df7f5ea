import math

import pytest
import torch

from firstchair.train.off_policy import (
    gate,
    importance_ratio,
    in_band,
    log_difference,
    on_policy_log_ratio,
    truncated_weights,
)
from firstchair.train.policy_loss import Clip, clipped_surrogate


def test_the_gate_drops_what_is_outside_the_band():
    # log-ratios 0, 0, 5, −5 in [.5, 2] → keep, keep, 0, 0
    ratio = importance_ratio(torch.tensor([0.0, 0.0, 5.0, -5.0]), torch.zeros(4))
    assert gate(ratio, low=0.5, high=2.0).tolist() == [1.0, 1.0, 0.0, 0.0]


def test_the_band_includes_its_ends():
    ratio = torch.tensor([0.4999, 0.5, 2.0, 2.0001])
    assert in_band(ratio, low=0.5, high=2.0).tolist() == [False, True, True, False]
    assert gate(ratio, low=0.5, high=2.0).tolist() == [0.0, 0.5, 2.0, 0.0]


def test_forced_ratios_are_one_while_weights_are_cut():
    # trainer ln[.1, 1, 10], sampler 0, bounds [.2, 5] → weights [.2, 1, 5]
    trainer = torch.tensor([0.1, 1.0, 10.0]).log().requires_grad_()
    weights = truncated_weights(importance_ratio(trainer, torch.zeros(3)), low=0.2, high=5.0)
    assert weights.tolist() == pytest.approx([0.2, 1.0, 5.0])
    assert not weights.requires_grad
    log_ratio = on_policy_log_ratio(trainer)
    assert log_ratio.exp().tolist() == [1.0, 1.0, 1.0]
    loss, _ = clipped_surrogate(log_ratio, torch.tensor([1.0, -2.0, 0.5]), Clip(0.2, 0.2))
    loss.sum().backward()
    assert trainer.grad.tolist() == [-1.0, 2.0, -0.5]  # −A


def test_ratios_are_finite_without_a_graph_and_one_where_nothing_is_known():
    trainer = torch.tensor([1000.0, -1000.0, math.nan], requires_grad=True)
    ratio = importance_ratio(trainer, torch.zeros(3))
    assert ratio.isfinite().all()
    assert not ratio.requires_grad
    assert float(ratio[2]) == 1.0


def test_differences_are_absolute_and_a_nan_is_not_hidden():
    found = log_difference(torch.tensor([-1.0, -1.5, -1.0]), torch.tensor([-1.0, -1.25, -1.5]))
    assert found.tolist() == [0.0, 0.25, 0.5]
    assert float(found.mean()) == 0.25
    assert math.isnan(float(log_difference(torch.tensor([math.nan, 0.0]), torch.zeros(2)).max()))
