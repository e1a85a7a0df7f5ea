"""RMS normalisation with fewer passes over memory, for CPUs.

A tiny model on a CPU spends a seventh of its time in norms, nearly all of it moving memory: the usual form makes five
passes forward and about ten backward. This one makes three and five, and keeps one tensor instead of four.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn


class _RmsNorm(torch.autograd.Function):
    """y = x / sqrt(mean(x²) + eps) ⊙ w over the last dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, eps: float) -> Tensor:
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        unit = x * scale
        ctx.save_for_backward(unit, scale, w)
        result: Tensor = unit * w
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        unit, scale, w = ctx.saved_tensors
        (grad,) = grads
        grad_w = (grad * unit).flatten(0, -2).sum(0)
        grad_unit = grad * w
        along = (grad_unit * unit).mean(-1, keepdim=True)
        return torch.addcmul(grad_unit, unit, along, value=-1).mul_(scale), grad_w, None


def rms_norm(x: Tensor, w: Tensor, eps: float) -> Tensor:
    """``x / sqrt(mean(x²) + eps) · w``: ``x`` ``[..., H]``, ``w`` ``[H]``; half precision is raised to float32."""
    if x.dtype in (torch.bfloat16, torch.float16):
        x = x.float()
    result = _RmsNorm.apply(x, w, eps)  # type: ignore[no-untyped-call]
    assert isinstance(result, Tensor)
    return result


def speed_up_norms(model: nn.Module) -> int:
    """Let norms that compute exactly this compute it this way; returns how many.

    A module qualifies by what it does, not by its name alone: it has a weight and an epsilon, and on random input it
    gives what ``rms_norm`` gives. Others (a norm with ``1 + weight``, with a bias) are left as they are.
    """
    count = 0
    for module in model.modules():
        eps = getattr(module, "variance_epsilon", None)
        if type(module).__name__.endswith("RMSNorm") and isinstance(eps, float) and _is_plain(module, eps):
            # A bound method, so that a deep copy of the model computes with its own weights.
            module.forward = MethodType(_forward, module)
            count += 1
    return count


def _is_plain(module: nn.Module, eps: float) -> bool:
    if [name for name, _ in module.named_parameters()] != ["weight"]:
        return False
    weight = module.get_parameter("weight")
    if weight.device.type != "cpu" or weight.dtype != torch.float32:
        return False
    x = torch.linspace(-2.0, 3.0, 2 * len(weight)).view(2, -1)
    with torch.no_grad():
        return torch.allclose(module(x), rms_norm(x, weight, eps), rtol=1e-5, atol=1e-6)


def _forward(self: Any, hidden_states: Tensor) -> Tensor:
    return rms_norm(hidden_states, self.weight, self.variance_epsilon)
