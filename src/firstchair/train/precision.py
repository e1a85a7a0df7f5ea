"""In which type matrices are multiplied: bfloat16 where the device does it in hardware, float32 elsewhere.

A CPU without bfloat16 instructions multiplies it in plain loops: a training step takes some twenty times as long.
"""

from __future__ import annotations

from typing import TypeVar

import torch

from firstchair.train.config import RunRecipe
from firstchair.train.models import pick_device

Recipe = TypeVar("Recipe", bound=RunRecipe)

BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "bf16")
"""Names in ``torch.cpu.get_capabilities()``: x86 twice, then ARM."""


def multiplies_bf16(device: torch.device) -> bool:
    """Whether ``device`` multiplies bfloat16 in hardware."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    found = torch.cpu.get_capabilities()
    return device.type == "cpu" and any(found.get(name, False) for name in BF16_INSTRUCTIONS)


def settled(recipe: Recipe) -> Recipe:
    """The recipe with ``precision: auto`` made what it means on this machine.

    What is settled is what the run records, so a run resumed on another kind of machine is told of the difference.
    """
    if recipe.precision != "auto":
        return recipe
    found = "bf16" if multiplies_bf16(pick_device(recipe.device)) else "fp32"
    return recipe.model_copy(update={"precision": found})


def precision_advice(recipe: RunRecipe) -> str | None:
    """What to change when ``recipe`` asks this machine for products that it has no instructions for."""
    fields = [name for name in ("precision", "base_precision") if getattr(recipe, name) == "bf16"]
    if not fields or multiplies_bf16(pick_device(recipe.device)):
        return None
    change = "precision=auto" if fields == ["precision"] else " and ".join(f"{name}=fp32" for name in fields)
    return (
        f"{' and '.join(fields)}: bf16, which this device multiplies without hardware, many times slower than fp32; "
        f"set {change}"
    )
