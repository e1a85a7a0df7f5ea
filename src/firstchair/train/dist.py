"""The world of one run: a single process, or several under ``torchrun`` that hold the same weights.

Every rank takes its share of a step's micro-batches; sums, weights and gradients are added over ranks once a step, so
that the numbers equal those of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn


@dataclass(frozen=True, slots=True)
class World:
    """Which of how many processes this is."""

    rank: int = 0
    size: int = 1

    @property
    def is_main(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def share(self, items: Sequence[Any]) -> Sequence[Any]:
        """This rank's items; the number of items is a multiple of ``size``."""
        return items[self.rank :: self.size]

    def add(self, values: Iterable[float]) -> list[float]:
        """Sums over all ranks, in float64."""
        total = torch.tensor(list(values), dtype=torch.float64)
        if self.size > 1:
            torch_dist.all_reduce(total)
        return [float(value) for value in total]

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over ranks in place; a rank without one adds zeros."""
        if self.size == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            torch_dist.all_reduce(parameter.grad)

    def gather(self, value: Any) -> list[Any]:
        """``value`` of every rank, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        torch_dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.add([float(flag)])[0] > 0 if self.size > 1 else flag

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            torch_dist.barrier()


ALONE = World()
"""A world of one process."""


def join_world() -> World:
    """The world that ``torchrun`` describes in the environment, or a world of one."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    if size == 1:
        return ALONE
    if not torch_dist.is_initialized():
        torch_dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    return World(torch_dist.get_rank(), size)


def leave_world(world: World) -> None:
    """Wait for the others, then close the connection; without the wait some ranks abort at exit."""
    if world.size > 1 and torch_dist.is_initialized():
        torch_dist.barrier()
        torch_dist.destroy_process_group()
