"""Optimizers from a recipe: AdamW, or Muon for the matrices inside the blocks with AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from firstchair.core.errors import IntegrityError
from firstchair.train.config import AdamW, Muon
from firstchair.train.muon import StackedMuon


@dataclass(frozen=True, slots=True)
class OptimizerPart:
    """One torch optimizer and the peak learning rate of each of its groups."""

    optimizer: torch.optim.Optimizer
    peaks: tuple[float, ...]
    names: tuple[str, ...]
    """Parameters in the optimizer's order; their state is saved under these names."""


class Optimizers:
    """One or two torch optimizers that step together at ``factor`` × their peak rates."""

    def __init__(self, parts: Sequence[OptimizerPart]):
        self.parts = tuple(parts)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Everything that is trained."""
        return [p for part in self.parts for group in part.optimizer.param_groups for p in group["params"]]

    @property
    def peak(self) -> float:
        """The peak rate of the first group, for the log."""
        return self.parts[0].peaks[0]

    def step(self, factor: float) -> None:
        """Update at ``factor`` × peak, then free the gradients."""
        for part in self.parts:
            for group, peak in zip(part.optimizer.param_groups, part.peaks, strict=True):
                group["lr"] = peak * factor
            part.optimizer.step()
        self.forget_gradients()

    def forget_gradients(self) -> None:
        """Free the gradients of every parameter."""
        for part in self.parts:
            part.optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        """State of every part, with the names of its parameters."""
        return [{"names": list(part.names), "state": part.optimizer.state_dict()} for part in self.parts]

    def load_state_dict(self, saved: Sequence[Mapping[str, Any]]) -> None:
        """Restore; raises ``IntegrityError`` when the parameters are not the saved ones."""
        if [tuple(part["names"]) for part in saved] != [part.names for part in self.parts]:
            raise IntegrityError(
                "the optimizer state belongs to other parameters; resume with the model and method saved"
            )
        for part, state in zip(self.parts, saved, strict=True):
            part.optimizer.load_state_dict(dict(state["state"]))


def build_optimizers(model: nn.Module, config: AdamW | Muon) -> Optimizers:
    """Optimizers for the parameters of ``model`` that require a gradient."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if isinstance(config, AdamW):
        return Optimizers([_adamw(named, config.lr, (config.beta1, config.beta2), config.eps, config.weight_decay)])
    matrices = [(name, p) for name, p in named if p.ndim == 2 and not _is_table(model, p)]
    inside = {id(parameter) for _, parameter in matrices}
    rest = [(name, p) for name, p in named if id(p) not in inside]
    parts = [_muon(matrices, config)] if matrices else []
    if rest:
        parts.append(_adamw(rest, config.adamw_lr, (config.beta1, config.beta2), config.eps, 0.0))
    return Optimizers(parts)


def _is_table(model: nn.Module, parameter: Tensor) -> bool:
    """Whether the matrix is an embedding or the LM head: its rows are tokens, not directions to orthogonalise."""
    tables = [module.weight for module in model.modules() if isinstance(module, nn.Embedding)]
    heads = [getattr(module, "lm_head", None) for module in model.modules()]
    tables += [head.weight for head in heads if isinstance(head, nn.Linear)]
    return any(parameter is table for table in tables)


def _adamw(
    named: Sequence[tuple[str, nn.Parameter]], lr: float, betas: tuple[float, float], eps: float, decay: float
) -> OptimizerPart:
    decayed = [(name, p) for name, p in named if p.ndim >= 2]
    plain = [(name, p) for name, p in named if p.ndim < 2]
    groups = [(decayed, decay), (plain, 0.0)]
    optimizer = torch.optim.AdamW(
        [{"params": [p for _, p in members], "weight_decay": value} for members, value in groups if members],
        lr=lr,
        betas=betas,
        eps=eps,
        fused=True,
    )
    names = tuple(name for members, _ in groups for name, _ in members)
    return OptimizerPart(optimizer, (lr,) * len(optimizer.param_groups), names)


def _muon(named: Sequence[tuple[str, nn.Parameter]], config: Muon) -> OptimizerPart:
    optimizer = StackedMuon(
        [p for _, p in named],
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        adjust_lr_fn="match_rms_adamw",
    )
    return OptimizerPart(optimizer, (config.lr,), tuple(name for name, _ in named))
