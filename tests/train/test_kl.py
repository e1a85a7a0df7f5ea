import math

import pytest
import torch

from firstchair.train.kl import kl_estimate, unbiased_kl

EXTREMES = [-1000.0, 1000.0, math.nan, math.inf, -math.inf]


def test_estimators_by_hand():
    # log policy − log reference = 0.5
    logp, reference = torch.tensor([-1.0]), torch.tensor([-1.5])
    by_hand = {"k1": 0.5, "k2": 0.125, "k3": math.exp(-0.5) - 1 + 0.5, "low_var": math.exp(-0.5) - 0.5}
    for name, expected in by_hand.items():
        assert float(kl_estimate(logp, reference, name)) == pytest.approx(expected, rel=1e-6)


def test_k1_and_k3_have_the_mean_of_the_divergence():
    policy, reference = torch.tensor([0.5, 0.3, 0.2]).log(), torch.tensor([0.2, 0.2, 0.6]).log()
    exact = float((policy.exp() * (policy - reference)).sum())
    for name in ("k1", "k3", "low_var"):
        assert float((policy.exp() * kl_estimate(policy, reference, name)).sum()) == pytest.approx(exact, rel=1e-5)


def test_low_var_is_finite_where_plain_k3_is_not():
    policy = torch.tensor(EXTREMES, requires_grad=True)
    found = kl_estimate(policy, torch.zeros(len(EXTREMES)), "low_var")
    found.sum().backward()
    assert found.isfinite().all()
    assert found.abs().max() <= 10
    assert policy.grad.isfinite().all()
    assert kl_estimate(torch.tensor([-1000.0]), torch.zeros(1), "k3").isinf()


def test_the_unbiased_gradient_has_its_score_term():
    x = torch.tensor([0.4, -0.7, 1.2], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([0.1, -0.2, 0.9], dtype=torch.float64)
    reference = torch.tensor([0.0, 0.3, 1.0], dtype=torch.float64)
    unbiased_kl(x, reference, old, "k3").sum().backward()
    w, r = (x - old).exp().detach(), (reference - x).detach()
    k3 = r.exp() - 1 - r
    torch.testing.assert_close(x.grad, w * (k3 + 1 - r.exp()), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("value", [120.0, -120.0])
@pytest.mark.parametrize("estimator", ["k1", "k2", "low_var"])
def test_the_weight_stays_finite(value, estimator):
    x = torch.tensor([value], requires_grad=True)
    found = unbiased_kl(x, torch.zeros(1), torch.zeros(1), estimator)
    found.backward()
    assert found.isfinite()
    assert x.grad.isfinite()


def test_within_the_band_the_weight_is_the_plain_ratio():
    x, old = torch.tensor([0.3], dtype=torch.float64), torch.tensor([-0.5], dtype=torch.float64)
    found = unbiased_kl(x, torch.zeros(1, dtype=torch.float64), old, "k1")
    assert float(found) == pytest.approx(math.exp(0.8) * 0.3, rel=1e-12)


def exact_gradient(logits, reference):
    probabilities = logits.log_softmax(-1)
    return torch.autograd.grad((probabilities.exp() * (probabilities - reference)).sum(), logits)[0]


@pytest.mark.parametrize(("estimator", "right"), [("k1", True), ("k3", True), ("k2", False)])
def test_the_unbiased_estimate_has_the_gradient_of_the_divergence_under_another_sampler(estimator, right):
    """Summed over a vocabulary of three, weighted by the sampler's probabilities, it is exact."""
    logits = torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).log()
    sampler = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64).log()
    estimate = unbiased_kl(logits.log_softmax(-1), reference, sampler, estimator)
    found = torch.autograd.grad((sampler.exp() * estimate).sum(), logits)[0]
    assert torch.allclose(found, exact_gradient(logits, reference), atol=1e-12) is right


@pytest.mark.parametrize(("estimator", "right"), [("k2", True), ("k1", False), ("k3", False)])
def test_on_fresh_samples_only_k2_has_the_gradient_of_the_divergence_without_a_weight(estimator, right):
    logits = torch.tensor([0.5, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64).log()
    logp = logits.log_softmax(-1)
    found = torch.autograd.grad((logp.detach().exp() * kl_estimate(logp, reference, estimator)).sum(), logits)[0]
    assert torch.allclose(found, exact_gradient(logits, reference), atol=1e-12) is right
    if estimator == "k1":
        assert found.abs().max() < 1e-12  # it holds nobody to anything
