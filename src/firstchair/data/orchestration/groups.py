"""A file of groups: one line holds a task and all the trajectories that were sampled of it.

A line is written when its task is finished, so a task is there whole or not at all. Of several lines of one task the
last counts: a task whose every trajectory broke is sampled again. What follows from a group (clean, kept, rewards,
statistics) is computed, not stored.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from firstchair.core.append import whole_lines
from firstchair.core.errors import DataError
from firstchair.core.jsontext import dumps
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import Trajectory, TrajectoryEnd

Shape = TypeVar("Shape", bound=msgspec.Struct)


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A task with every trajectory of it, right or wrong."""

    task: OrchestrationTask
    trajectories: tuple[Trajectory, ...]

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise ValueError("a group has at least one trajectory")
        for trajectory in self.trajectories:
            if trajectory.task_id != self.task.task_id:
                raise ValueError(f"a trajectory of task {trajectory.task_id!r} in the group of {self.task.task_id!r}")

    @property
    def broken(self) -> bool:
        """Whether the machinery failed in every trajectory, so that nothing is known."""
        return all(trajectory.end is TrajectoryEnd.FAILED for trajectory in self.trajectories)


class _Id(msgspec.Struct):
    task_id: str


class _Head(msgspec.Struct):
    task: _Id


_group_decoder = msgspec.json.Decoder(Group)
_head_decoder = msgspec.json.Decoder(_Head)
_encoder = msgspec.json.Encoder()


def encode_group(group: Group) -> bytes:
    """A group as one line, without its newline. Half a surrogate pair, which some servers send, becomes ``?``."""
    try:
        return _encoder.encode(group)
    except UnicodeEncodeError:
        return dumps(msgspec.to_builtins(group)).encode("utf-8", "replace")


def read_groups(path: Path) -> Iterator[Group]:
    """Stream the groups of a file, each task once. Raises ``DataError``: for a bad line (file, line), and for none.

    A last line without its newline was cut by a kill, or is being written, and is passed over.
    """
    none = True
    for group in _groups(path):
        none = False
        yield group
    if none:
        raise DataError("no group in it; `firstchair orchestrate run` writes one as a task is done", path=str(path))


def _groups(path: Path) -> Iterator[Group]:
    newest: dict[str, int] = {}
    for number, line in whole_lines(path):
        newest[_decoded(_head_decoder, line, path, number).task.task_id] = number
    current = frozenset(newest.values())
    for number, line in whole_lines(path):
        if number in current:
            yield _decoded(_group_decoder, line, path, number)


def finished_tasks(path: Path) -> dict[str, int]:
    """Ids of the tasks that need no more sampling → how many trajectories each has; empty where there is no file."""
    if not path.is_file():
        return {}
    return {group.task.task_id: len(group.trajectories) for group in _groups(path) if not group.broken}


def _decoded(decoder: msgspec.json.Decoder[Shape], line: bytes, path: Path, number: int) -> Shape:
    try:
        return decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DataError(
            f"not a group of trajectories: {error}; expected {{task, trajectories}}", path=str(path), line=number
        ) from None
