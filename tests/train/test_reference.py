import pytest
import torch
from tests.train.conftest import random_examples

from firstchair.core.errors import ConfigError
from firstchair.train.batching import collate
from firstchair.train.config import LoraMethod
from firstchair.train.models import apply_method
from firstchair.train.reference import Reference, score
from firstchair.train.scorer import TokenScorer


def batch():
    return collate(random_examples([7, 4]), layout="padded")


@pytest.fixture
def adapted(scorer):
    """The same model with an adapter that changes what it says, and dropout in it."""
    model = apply_method(scorer.model, LoraMethod(rank=2, dropout=0.5), gradient_checkpointing=False)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.fill_(0.1)
    return TokenScorer(model.train())


@pytest.fixture
def base_scores(scorer):
    return score(scorer, batch())


def test_the_reference_of_an_adapter_is_its_base_without_a_second_model(base_scores, adapted):
    reference = Reference.of(adapted)
    assert reference.frozen is None
    torch.testing.assert_close(reference.score(adapted, batch()), base_scores)
    assert (score(adapted, batch()) - base_scores).abs().max() > 1e-3


def test_the_adapter_is_on_again_also_after_an_error(adapted):
    before = score(adapted, batch())
    hook = adapted.head.register_forward_pre_hook(lambda *args: (_ for _ in ()).throw(RuntimeError("out of memory")))
    with pytest.raises(RuntimeError, match="out of memory"):
        Reference.of(adapted).score(adapted, batch())
    hook.remove()
    assert adapted.training
    assert all(parameter.requires_grad for name, parameter in adapted.named_parameters() if "lora_" in name)
    torch.testing.assert_close(score(adapted, batch()), before)


def test_a_frozen_copy_does_not_follow_the_policy(scorer):
    reference = Reference.of(scorer)
    before = score(scorer, batch())
    with torch.no_grad():
        for parameter in scorer.parameters():
            parameter.mul_(1.1)
    torch.testing.assert_close(reference.score(scorer, batch()), before)
    assert (score(scorer, batch()) - before).abs().max() > 1e-3
    assert not any(parameter.requires_grad for parameter in reference.frozen.parameters())


def test_scoring_has_neither_dropout_nor_a_graph_and_leaves_the_mode(adapted):
    once, again = score(adapted, batch()), score(adapted, batch())
    torch.testing.assert_close(once, again, rtol=0, atol=0)
    assert not once.requires_grad
    assert adapted.training
    adapted.eval()
    score(adapted, batch())
    assert not adapted.training


def test_a_policy_without_adapter_needs_a_copy(scorer):
    with pytest.raises(ConfigError, match="no adapter to switch off"):
        Reference().score(scorer, batch())
