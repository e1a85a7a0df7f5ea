"""Stacked Muon is torch's Muon: the same matrices, the same state, whatever the shapes."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from firstchair.train import muon
from firstchair.train.muon import StackedMuon, orthogonalised

SHAPES = [(8, 8), (8, 24), (24, 8), (8, 8), (8, 24), (16, 4)]
OPTIONS = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.9, "adjust_lr_fn": "match_rms_adamw"}


def matrices(seed: int) -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def feed(parameters: list[nn.Parameter], seed: int) -> None:
    for p, grad in zip(parameters, matrices(seed), strict=True):
        p.grad = grad.detach().clone()


@pytest.mark.parametrize(("stack", "bf16"), [(2**22, True), (1, True), (2**22, False)])
def test_steps_are_those_of_torch(monkeypatch: pytest.MonkeyPatch, stack: int, bf16: bool) -> None:
    monkeypatch.setattr(muon, "STACK_ELEMENTS", stack)
    monkeypatch.setattr(muon, "multiplies_bf16", lambda device: bf16)
    ours, theirs = matrices(0), matrices(0)
    stacked, single = StackedMuon(ours, **OPTIONS), torch.optim.Muon(theirs, **OPTIONS)
    for seed in range(1, 5):
        feed(ours, seed)
        feed(theirs, seed)
        before = [p.detach().clone() for p in theirs]
        stacked.step()
        single.step()
        for mine, other, old in zip(ours, theirs, before, strict=True):
            # bfloat16 products in another order: 2**-8 of an update whose entries are about equally large.
            scale = (other - old).abs().max().item()
            torch.testing.assert_close(mine, other, rtol=0, atol=0.03 * scale * seed)
    assert any(not torch.equal(p, start) for p, start in zip(ours, matrices(0), strict=True))


def test_state_fits_torch_and_a_matrix_without_gradient_stays() -> None:
    ours, theirs = matrices(0), matrices(0)
    stacked, single = StackedMuon(ours, **OPTIONS), torch.optim.Muon(theirs, **OPTIONS)
    feed(ours, 1)
    ours[3].grad = None
    stacked.step()
    assert torch.equal(ours[3], matrices(0)[3])
    assert not torch.equal(ours[0], matrices(0)[0])
    single.load_state_dict(stacked.state_dict())
    torch.testing.assert_close(single.state[theirs[1]]["momentum_buffer"], ours[1].grad * 0.1)


def test_singular_values_come_out_near_one() -> None:
    stack = torch.randn(5, 16, 40, generator=torch.Generator().manual_seed(3))
    out = orthogonalised(stack, (3.4445, -4.7750, 2.0315), 5, 1e-7).float()
    values = torch.linalg.svdvals(out)
    assert values.min() > 0.4
    assert values.max() < 1.4
    # The same directions: an orthogonalised matrix agrees with what it came from.
    assert (out * stack).sum() > 0


def test_a_zero_gradient_changes_nothing_but_the_decay() -> None:
    (p,) = parameters = [nn.Parameter(torch.ones(4, 8))]
    optimizer = StackedMuon(parameters, **OPTIONS)
    p.grad = torch.zeros(4, 8)
    optimizer.step()
    torch.testing.assert_close(p.detach(), torch.full((4, 8), 1 - 0.02 * 0.1))
