"""Thread pools are given back, so that the one that computes may wait actively."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from firstchair.engines.openmp import compute_threads, release_pool
from firstchair.engines.transformers_engine import TransformersEngine

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")


def tasks() -> int:
    return len(os.listdir("/proc/self/task"))


def in_a_new_thread(work: Callable[[list[int]], None]) -> list[int]:
    """Run with three OpenMP threads, whatever the machine has; the number is a thread's own."""
    before, counts = torch.get_num_threads(), list[int]()

    def run() -> None:
        torch.set_num_threads(3)
        work(counts)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    torch.set_num_threads(before)
    return counts


def parallel_kernel() -> None:
    torch.ones(1 << 20).exp_()


def test_a_pool_goes_and_comes_again() -> None:
    def work(counts: list[int]) -> None:
        counts.append(tasks())
        parallel_kernel()
        counts.append(tasks())
        counts.append(int(release_pool()))
        counts.append(tasks())
        parallel_kernel()
        counts.append(tasks())

    start, used, freed, after, again = in_a_new_thread(work)
    # A PyTorch without a libgomp of its own says that it freed nothing.
    assert (used, after, again) == (start + 2, start if freed else used, start + 2)


def test_an_engine_leaves_no_pool_with_its_caller(
    model_dirs: Callable[..., Path], open_engine: Callable[..., TransformersEngine]
) -> None:
    directory = model_dirs("Qwen3")

    def work(counts: list[int]) -> None:
        counts.append(tasks())
        parallel_kernel()
        open_engine(directory)
        counts.append(tasks())
        counts.append(int(release_pool()))

    start, after, can_free = in_a_new_thread(work)
    assert after == start + (0 if can_free else 2)  # an engine's own thread begins with its first request


def test_a_block_on_one_thread_holds_for_threads_that_begin_in_it_and_for_nothing_after_it():
    before = torch.get_num_threads()
    seen: list[int] = []

    def look() -> None:
        seen.append(torch.get_num_threads())

    with pytest.raises(RuntimeError, match="over"), compute_threads(1):
        worker = threading.Thread(target=look)
        worker.start()
        worker.join()
        look()
        raise RuntimeError("over")
    look()
    assert seen == [1, 1, before]
