"""The world of one run: a single process, or several under ``torchrun`` that hold the same weights.

Every rank takes its share of a step's micro-batches; sums, weights and gradients are added over ranks once a step, so
that the numbers equal those of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn

from firstchair.core.errors import ConfigError, RunFailed


@dataclass(frozen=True, slots=True)
class World:
    """Which of how many processes this is. What they do together raises ``RunFailed`` when one of them is gone."""

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
            with _together():
                torch_dist.all_reduce(total)
        return [float(value) for value in total]

    def add_gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Sum gradients over ranks in place; a rank without one adds zeros."""
        if self.size == 1:
            return
        with _together():
            for parameter in parameters:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                torch_dist.all_reduce(parameter.grad)

    def gather(self, value: Any) -> list[Any]:
        """``value`` of every rank, in rank order."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with _together():
            torch_dist.all_gather_object(values, value)
        return values

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank."""
        return self.add([float(flag)])[0] > 0 if self.size > 1 else flag

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            with _together():
                torch_dist.barrier()


@contextmanager
def _together() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise RunFailed(f"another process of the run is gone; its own message says why ({error})") from error


ALONE = World()
"""A world of one process."""


def _asked_for() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def refuse_many(kind: str) -> None:
    """Raise ``ConfigError`` under ``torchrun`` with several processes: each would play and train by itself."""
    if _asked_for() > 1:
        raise ConfigError(f"train {kind} is one process, found WORLD_SIZE={_asked_for()}; start it without torchrun")


@contextmanager
def joined_world() -> Iterator[World]:
    """The world that ``torchrun`` describes in the environment, or a world of one, for the length of the block.

    At its end the ranks wait for each other; without that some abort at exit. A rank that fails leaves at once, and
    what the others then wait for fails too: none hangs on one that is gone.
    """
    size = _asked_for()
    if size == 1:
        yield ALONE
        return
    if not torch_dist.is_initialized():
        torch_dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    world, failed = World(torch_dist.get_rank(), size), False
    try:
        yield world
    except Exception:
        failed = True
        raise
    finally:
        if not failed:
            world.wait()
        torch_dist.destroy_process_group()
