"""One OpenMP thread pool at a time.

PyTorch's CPU kernels run on libgomp, which keeps a pool of threads for every thread that ever ran a parallel kernel.
As soon as the pools together hold more threads than there are cores, libgomp stops waiting actively between kernels
and puts threads to sleep instead, also those of the one pool that works. A tiny model, whose kernels take
microseconds, then decodes at half its speed or less. So whoever has done its part gives its pool back.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch

SOFT = 1
"""``omp_pause_soft``: free what can be made again at the next parallel region (OpenMP 5.0, section 3.2.44)."""


def release_pool() -> bool:
    """Free the calling thread's pool; its next parallel kernel makes a new one. Whether there is a way to do so."""
    pause = _pause()
    return pause is not None and pause(SOFT) == 0


@contextmanager
def compute_threads(count: int) -> Iterator[None]:
    """Kernels of threads that begin within the block, and of this one, run on ``count`` threads.

    A tiny model decodes about as fast on one: its kernels are over before a second thread has begun. And one does not
    wait, at each of them, for another that the system has given to somebody else.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@cache
def _pause() -> Callable[[int], int] | None:
    """``omp_pause_resource_all`` of PyTorch's own libgomp; other runtimes do not have the problem."""
    for library in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            found: Callable[[int], int] = ctypes.CDLL(str(library)).omp_pause_resource_all
        except (OSError, AttributeError):
            continue
        return found
    return None
