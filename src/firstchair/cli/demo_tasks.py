"""The demo's tasks: each stage draws its own, so that no task is in two of them."""

from __future__ import annotations

from enum import IntEnum

from firstchair.rollout.desk.task import DeskTask
from firstchair.rollout.desk.tasks import make_tasks


class Purpose(IntEnum):
    """What tasks are for."""

    TRAIN = 0
    GOLDEN = 1
    DEV = 2
    EPISODES = 3
    LIVE = 4
    LESSONS = 5
    """The DAgger round."""
    RECOVERY = 6


def task_seed(seed: int, purpose: Purpose) -> int:
    """The seed of a purpose's tasks in the demo of ``seed``."""
    return seed * 1000 + purpose


def tasks_for(seed: int, purpose: Purpose, count: int) -> list[DeskTask]:
    """The tasks of one stage."""
    return make_tasks(count, task_seed(seed, purpose))
