import copy

import pytest
import torch
from torch import nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from firstchair.train.norms import rms_norm, speed_up_norms


@pytest.mark.parametrize("shape", [(1, 7, 16), (2, 3, 4, 8)])
def test_values_and_gradients_are_those_of_the_usual_form(shape):
    generator = torch.Generator().manual_seed(0)
    module = Qwen3RMSNorm(shape[-1])
    with torch.no_grad():
        module.weight.copy_(torch.randn(shape[-1], generator=generator))
    x, upstream = (torch.randn(shape, generator=generator, requires_grad=place == 0) for place in range(2))
    weight = module.weight.detach().clone().requires_grad_()
    other = x.detach().clone().requires_grad_()
    module(x).backward(upstream)
    rms_norm(other, weight, module.variance_epsilon).backward(upstream)
    torch.testing.assert_close(rms_norm(other, weight, module.variance_epsilon), module(x))
    torch.testing.assert_close(other.grad, x.grad)
    torch.testing.assert_close(weight.grad, module.weight.grad)


def test_gradients_are_those_of_finite_differences():
    generator = torch.Generator().manual_seed(1)
    shapes = ((3, 5), (5,))
    inputs = [torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes]
    assert torch.autograd.gradcheck(lambda x, weight: rms_norm(x, weight, 1e-6), inputs)


def test_a_copy_of_the_model_computes_with_its_own_weights(scorer):
    speed_up_norms(scorer.model)
    twin = copy.deepcopy(scorer.model)
    with torch.no_grad():
        twin.model.norm.weight.zero_()
    ids = torch.arange(12)[None]
    assert float(twin(input_ids=ids).logits.detach().abs().max()) == 0.0
    assert float(scorer.model(input_ids=ids).logits.detach().abs().max()) > 0.0


def test_norms_that_compute_something_else_are_left_alone():
    model = nn.ModuleList([Qwen3RMSNorm(8), GemmaRMSNorm(8), nn.RMSNorm(8), nn.LayerNorm(8)])
    assert speed_up_norms(model) == 1


def test_a_model_computes_the_same_with_faster_norms(scorer):
    ids = torch.arange(12)[None]
    before = scorer.model(input_ids=ids).logits
    assert speed_up_norms(scorer.model) == 9  # two a layer, two inside its attention, one at the end
    torch.testing.assert_close(scorer.model(input_ids=ids).logits, before, rtol=1e-4, atol=1e-4)
