"""Muon over stacks of matrices: torch's optimizer, its many small products joined into few large ones.

``torch.optim.Muon`` orthogonalises one matrix at a time, 15 products each. The blocks of a tiny model hold dozens of
matrices of two or three shapes, and on a CPU the products are so small that starting them costs more than computing
them. Here the matrices of one shape are orthogonalised together; what is computed, and the state, are torch's.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from firstchair.train.precision import multiplies_bf16

STACK_ELEMENTS = 2**22
"""A stack holds at most so many numbers (or one matrix): large matrices keep the cores busy alone and need memory."""


class StackedMuon(torch.optim.Muon):
    """``torch.optim.Muon`` with Nesterov momentum and the step size of Moonshot's AdamW match, and its state."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]  # losses are computed before the step
        """Update every matrix that has a gradient (Jordan et al. 2024; step size: Liu et al. 2025, eq. 4)."""
        for group in self.param_groups:
            decay = 1 - group["lr"] * group["weight_decay"]
            for matrices in _stacks([p for p in group["params"] if p.grad is not None]):
                momenta = torch.stack([_lying(self._momentum(p, group["momentum"])) for p in matrices])
                updates = orthogonalised(momenta, group["ns_coefficients"], group["ns_steps"], group["eps"])
                size = 0.2 * math.sqrt(momenta.shape[2]) * group["lr"]
                for p, update in zip(matrices, updates.to(momenta.dtype).unbind(), strict=True):
                    _lying(p).mul_(decay).add_(update, alpha=-size)

    def _momentum(self, p: Tensor, momentum: float) -> Tensor:
        """Nesterov's look-ahead; the buffer lies where torch's lies, so that checkpoints fit both."""
        assert p.grad is not None, "filtered above"
        state = self.state[p]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(p.grad, memory_format=torch.preserve_format)
        buffer: Tensor = state["momentum_buffer"]
        buffer.lerp_(p.grad, 1 - momentum)
        return p.grad.lerp(buffer, momentum)


def orthogonalised(stack: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """Newton-Schulz: ``[n, rows, columns]`` with ``rows <= columns`` to the same with singular values near 1.

    In bfloat16, as torch does it, or in float32 where the device has no instructions for bfloat16.
    """
    a, b, c = coefficients
    x = stack.bfloat16() if multiplies_bf16(stack.device) else stack.float()
    x = x / x.flatten(1).norm(dim=1).clamp(min=eps)[:, None, None]
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x


def _stacks(parameters: list[Tensor]) -> list[list[Tensor]]:
    """The matrices by shape (tall ones lie down), type and device, in stacks of bounded size."""
    alike: defaultdict[object, list[Tensor]] = defaultdict(list)
    for p in parameters:
        alike[tuple(sorted(p.shape)), p.dtype, p.device].append(p)
    stacks = []
    for matrices in alike.values():
        count = max(1, STACK_ELEMENTS // matrices[0].numel())
        stacks += [matrices[first : first + count] for first in range(0, len(matrices), count)]
    return stacks


def _lying(matrix: Tensor) -> Tensor:
    """A view with no more rows than columns."""
    return matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
