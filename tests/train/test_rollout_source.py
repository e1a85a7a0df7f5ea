"""Batches of rollouts as a source: what a checkpoint keeps of them, and what stands in the log."""

import json
from contextlib import contextmanager

import msgspec
import numpy as np
import pytest

from firstchair.core.errors import IntegrityError
from firstchair.data.prompt_source import PromptSource
from firstchair.testing.environment import WordTask
from firstchair.train.examples import Example
from firstchair.train.rollout_source import CATALOG, SESSION, Course, LoopThread, RolloutSource
from firstchair.train.sources import Feed

TASKS = [WordTask(task_id=f"t{number}", words=()) for number in range(10)]
PROMPTS, SAMPLES = 2, 2


class Weights:
    """An engine that takes whatever it is given, and counts."""

    pushed = 0

    def expected(self):
        return []

    async def push(self, expected):
        self.pushed += 1
        return f"v{self.pushed}"


class Played:
    """Batches of two prompts, played twice each; notes where each began."""

    def __init__(self, prompts, weights):
        self.prompts, self.weights, self.begun = prompts, weights, []

    async def make(self, cursor):
        self.begun.append(cursor)
        lines = [
            {
                "batch": cursor,
                "task_id": task.task_id,
                "sample": sample,
                "weights": [f"v{self.weights.pushed}"],
                SESSION: {"session_id": f"{task.task_id}#{sample}"},
                CATALOG: {"catalog_id": "c", "tools": []},
            }
            for task in self.prompts.take(cursor, PROMPTS)
            for sample in range(SAMPLES)
        ]
        example = Example(np.array([cursor, 1], np.int32), np.array([False, True]), key=cursor, group=0)
        return Feed([[example]], cursor + PROMPTS, {}, PROMPTS * SAMPLES), lines


@contextmanager
def source_in(folder, *, staleness=0, prompts=None):
    """A source of four batches that logs into ``folder``, and what makes its batches."""
    weights = Weights()
    prompts = prompts or PromptSource(TASKS, seed=0)
    course = Course(
        batches=4,
        steps_per_batch=1,
        rollouts_per_batch=PROMPTS * SAMPLES,
        prompts=prompts,
        staleness=staleness,
        patience=9,
        log=folder / "rollouts.jsonl",
        sessions=folder / "sessions.jsonl",
    )
    played = Played(prompts, weights)
    with LoopThread() as thread:
        yield RolloutSource(played, weights, thread, course), played


def logged(folder, name="rollouts.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_a_checkpoint_has_the_cursor_of_what_was_trained_on_though_the_next_batch_is_played_already(tmp_path):
    """Two prompts, two samples each: batch 0 is trained on and saved while batch 1 is there."""
    with source_in(tmp_path, staleness=1) as (source, played):
        feed, saved = source.feed(0), source.state()
    assert (feed.cursor, played.begun) == (2, [0, 2])
    state = msgspec.msgpack.decode(saved)
    assert (state["made"], state["prompts"]["cursor"], state["ahead"]["cursor"]) == (1, 2, 4)
    with source_in(tmp_path, staleness=1) as (source, played):
        source.restore(saved)
        cursors = [2]
        for _ in range(3):
            cursors.append(source.feed(cursors[-1]).cursor)
        assert cursors == [2, 4, 6, 8]
        assert played.begun == [4, 6]  # the batch at 2 came with the checkpoint
    lines = logged(tmp_path)
    assert [line["batch"] for line in lines] == [0] * 4 + [2] * 4 + [4] * 4 + [6] * 4
    expected = [task.task_id for task in PromptSource(TASKS, seed=0).take(0, 8) for _ in range(SAMPLES)]
    assert [line["task_id"] for line in lines] == expected
    assert len(logged(tmp_path, "sessions.jsonl")) == 16


def test_what_was_played_before_the_first_checkpoint_is_played_again_and_stands_in_the_log_once(tmp_path):
    with source_in(tmp_path) as (source, _):
        source.feed(source.feed(0).cursor)
    with source_in(tmp_path) as (source, _):
        source.feed(0)
    assert [line["batch"] for line in logged(tmp_path)] == [0] * 4
    assert len(logged(tmp_path, "sessions.jsonl")) == 4
    assert len(logged(tmp_path, "catalogs.jsonl")) == 1


@pytest.mark.parametrize(
    ("prompts", "match"),
    [
        (PromptSource(TASKS[1:], seed=0), "prompts: saved with"),
        (PromptSource(TASKS, seed=1), "seed: saved with 0"),
        (PromptSource(TASKS, seed=0, source="another file"), "prompts: saved with"),
    ],
)
def test_a_run_does_not_go_on_with_other_prompts(tmp_path, prompts, match):
    with source_in(tmp_path) as (source, _):
        source.feed(0)
        saved = source.state()
    with source_in(tmp_path, prompts=prompts) as (source, _), pytest.raises(IntegrityError, match=match):
        source.restore(saved)


@pytest.mark.parametrize("state", [b"", b"\x80", b"\x00pending"])
def test_what_is_no_state_of_rollouts_is_refused(tmp_path, state):
    with source_in(tmp_path) as (source, _), pytest.raises(IntegrityError, match="not one of rollouts"):
        source.restore(state)
