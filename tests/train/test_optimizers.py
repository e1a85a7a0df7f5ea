import copy

import pytest
import torch
from torch import nn

from firstchair.core.errors import IntegrityError
from firstchair.train.config import AdamW, Muon
from firstchair.train.optimizers import build_optimizers
from firstchair.train.tiny import build_model


def tiny():
    return build_model(40, hidden=16, layers=1, heads=2, intermediate=32)


def test_weight_decay_acts_on_matrices_only():
    (part,) = build_optimizers(tiny(), AdamW(weight_decay=0.1)).parts
    matrices, vectors = part.optimizer.param_groups
    assert matrices["weight_decay"] == 0.1
    assert all(parameter.ndim == 2 for parameter in matrices["params"])
    assert vectors["weight_decay"] == 0.0
    assert all(parameter.ndim == 1 for parameter in vectors["params"])


@pytest.mark.parametrize("config", [AdamW(), Muon()])
def test_every_trained_parameter_is_updated_once(config):
    model = tiny()
    optimizers = build_optimizers(model, config)
    assert len(optimizers.parameters) == len({id(p) for p in optimizers.parameters}) == len(list(model.parameters()))


def test_frozen_parameters_are_left_out():
    model = tiny().requires_grad_(False)
    model.model.norm.weight.requires_grad_(True)
    assert [name for part in build_optimizers(model, AdamW()).parts for name in part.names] == ["model.norm.weight"]


def test_the_rate_of_a_step_is_the_factor_times_the_peak():
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    optimizers = build_optimizers(layer, AdamW(lr=0.1, eps=1e-12))
    layer.weight.grad = torch.ones_like(layer.weight)
    optimizers.step(0.5)
    # AdamW's first step has size lr, whatever the gradient: 1 − 0.5 × 0.1.
    assert layer.weight.item() == pytest.approx(0.95)
    assert layer.weight.grad is None


def test_muon_orthogonalises_the_update_of_a_matrix():
    layer = nn.Linear(8, 8, bias=False)
    before = layer.weight.detach().clone()
    layer.weight.grad = torch.randn(8, 8, generator=torch.Generator().manual_seed(0))
    gradient = layer.weight.grad.clone()
    build_optimizers(layer, Muon(lr=1.0, momentum=0.0)).step(1.0)
    update = (before - layer.weight).detach()
    left, _, right = torch.linalg.svd(gradient)
    wanted = left @ right
    cosine = (update * wanted).sum() / (update.norm() * wanted.norm())
    # Five quintic Newton-Schulz steps come close to the orthogonal factor, not all the way.
    assert cosine > 0.95


@pytest.mark.parametrize("config", [AdamW(), Muon()])
def test_state_goes_back_where_it_came_from_and_nowhere_else(config):
    first, second = tiny(), tiny()
    optimizers, others = (build_optimizers(model, config) for model in (first, second))
    for parameter in first.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(1.0)
    second.load_state_dict(first.state_dict())
    others.load_state_dict(copy.deepcopy(optimizers.state_dict()))
    for model, own in ((first, optimizers), (second, others)):
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        own.step(1.0)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    larger = build_optimizers(build_model(40, hidden=16, layers=2, heads=2, intermediate=32), config)
    with pytest.raises(IntegrityError, match="belongs to other parameters"):
        larger.load_state_dict(optimizers.state_dict())
