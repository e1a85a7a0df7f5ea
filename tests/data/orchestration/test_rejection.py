"""The rejection-sampling job: every task accounted for, whatever breaks or is killed on the way."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter

import msgspec
import pytest

from firstchair.core.append import LineAppender
from firstchair.core.errors import ConfigError, DataError, UpstreamError
from firstchair.data.orchestration.groups import Group, encode_group, read_groups
from firstchair.data.orchestration.rejection import Sampled, Shard, sample_tasks
from firstchair.rewards.answers.base import Grade
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import TrajectoryEnd
from firstchair.testing.trajectories import clean_trajectory


def tasks(count):
    return [
        OrchestrationTask(task_id=f"t{n}", problem=f"What is {n} + 1?", gold_answer=str(n + 1)) for n in range(count)
    ]


class Player:
    """Answers right in every second sample; counts what it is asked, and how much at once."""

    def __init__(self, *, breaks=(), wait_s=0.0):
        self.asked, self.running, self.most = Counter(), 0, 0
        self.breaks, self.wait_s = set(breaks), wait_s

    async def __call__(self, task, sample):
        self.asked[task.task_id] += 1
        self.running += 1
        self.most = max(self.most, self.running)
        await asyncio.sleep(self.wait_s)
        self.running -= 1
        broken = task.task_id in self.breaks
        return clean_trajectory(
            task_id=task.task_id,
            sample=sample,
            correct=None,
            graded_by="",
            final_answer="" if broken else task.gold_answer if sample % 2 else "no",
            end=TrajectoryEnd.FAILED if broken else TrajectoryEnd.ANSWERED,
        )


class Exact:
    """Right is what equals gold."""

    async def grade(self, task, answer):
        return Grade(correct=answer == task.gold_answer, how="exact")

    async def close(self):
        """Nothing is open."""


EXACT = Exact()


def sample(made, player, out, grader=EXACT, **options):
    return asyncio.run(sample_tasks(made, player, grader, out, **options))


def grades(out):
    return {group.task.task_id: [one.correct for one in group.trajectories] for group in read_groups(out)}


def test_every_sample_of_every_task_is_kept_with_its_grade(tmp_path):
    player, out = Player(), tmp_path / "made" / "groups.jsonl"
    done = sample(tasks(20), player, out)
    assert done == Sampled(finished_before=0, tasks=20, trajectories=160, broken=0)
    assert player.asked == {f"t{n}": 8 for n in range(20)}
    assert grades(out) == {f"t{n}": [False, True] * 4 for n in range(20)}
    group = next(read_groups(out))
    assert [one.sample for one in group.trajectories] == list(range(8))
    assert {one.graded_by for one in group.trajectories} == {"exact"}


def test_a_second_run_asks_for_nothing_that_is_there(tmp_path):
    out = tmp_path / "groups.jsonl"
    sample(tasks(5), Player(), out, samples=2)
    again = Player()
    assert sample(tasks(8), again, out, samples=2) == Sampled(finished_before=5, tasks=3, trajectories=6)
    assert set(again.asked) == {"t5", "t6", "t7"}
    assert list(grades(out)) == [f"t{n}" for n in range(8)]


def test_a_task_of_which_everything_broke_is_tried_again_and_counts_once(tmp_path):
    out = tmp_path / "groups.jsonl"
    assert sample(tasks(4), Player(breaks={"t1", "t2"}), out, samples=2).broken == 2
    assert grades(out)["t1"] == [None, None]
    assert sample(tasks(4), Player(breaks={"t2"}), out, samples=2) == Sampled(2, 2, 4, broken=1)
    assert grades(out) == {"t0": [False, True], "t3": [False, True], "t1": [False, True], "t2": [None, None]}


def test_shards_take_every_task_once(tmp_path):
    outs = [tmp_path / f"{number}.jsonl" for number in (1, 2, 3)]
    for number, out in enumerate(outs, start=1):
        sample(tasks(10), Player(), out, samples=1, shard=Shard(number, 3))
    assert [list(grades(out)) for out in outs] == [["t0", "t3", "t6", "t9"], ["t1", "t4", "t7"], ["t2", "t5", "t8"]]
    assert Shard.parse("2/3") == Shard(2, 3)
    for wrong in ("0/3", "4/3", "2", "a/3", "-1/3", "1/0"):
        with pytest.raises(ConfigError, match=r"shard .*expected K/N"):
            Shard.parse(wrong)


def test_no_more_attempts_run_at_once_than_allowed_and_no_fewer(tmp_path):
    player = Player(wait_s=0.002)
    sample(tasks(12), player, tmp_path / "groups.jsonl", samples=3, at_once=5)
    assert player.most == 5


def test_an_answer_that_is_missing_is_wrong_and_one_that_was_graded_stays(tmp_path):
    async def play(task, number):
        graded = {"t0": {"final_answer": " ", "correct": None}, "t1": {"correct": True, "graded_by": "env"}}
        return clean_trajectory(task_id=task.task_id, sample=number, **graded[task.task_id])

    class Broken(Exact):
        async def grade(self, task, answer):
            raise AssertionError("not asked")

    out = tmp_path / "groups.jsonl"
    sample(tasks(2), play, out, Broken(), samples=1)
    assert grades(out) == {"t0": [False], "t1": [True]}
    sample(tasks(1), Player(), tmp_path / "ungraded.jsonl", None, samples=1)
    assert grades(tmp_path / "ungraded.jsonl") == {"t0": [None]}


def test_what_was_finished_before_an_error_is_written(tmp_path):
    out = tmp_path / "groups.jsonl"

    class Dies(Player):
        async def __call__(self, task, number):
            if task.task_id == "t6":
                raise UpstreamError("the policy's server went away")
            return await super().__call__(task, number)

    with pytest.raises(UpstreamError, match="went away"):
        sample(tasks(9), Dies(), out, samples=2, at_once=2)
    written = len(grades(out))
    assert 0 < written < 9
    assert sample(tasks(9), Player(), out, samples=2).tasks == 9 - written
    assert set(grades(out)) == {f"t{n}" for n in range(9)}


def test_a_task_id_that_comes_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"task_id: task 't0' comes twice"):
        sample([*tasks(1), *tasks(1)], Player(), tmp_path / "groups.jsonl", samples=1)


def test_two_jobs_cannot_write_to_one_file(tmp_path):
    out = tmp_path / "groups.jsonl"
    with LineAppender(out), pytest.raises(ConfigError, match="another process is writing to it"):
        sample(tasks(1), Player(), out)


JOB = """
import asyncio, sys
from pathlib import Path
from firstchair.data.orchestration.rejection import sample_tasks
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.testing.trajectories import clean_trajectory
text = "x" * 20_000
tasks = (OrchestrationTask(task_id=f"t{n}", problem=text) for n in range(100_000))
async def play(task, sample):
    await asyncio.sleep(0)
    return clean_trajectory(task_id=task.task_id, sample=sample, final_answer=task.problem)
asyncio.run(sample_tasks(tasks, play, None, Path(sys.argv[1]), samples=2))
"""


def test_sigkill_leaves_whole_groups_and_a_torn_line_is_cut_off(tmp_path):
    out = tmp_path / "groups.jsonl"
    job = subprocess.Popen([sys.executable, "-c", JOB, str(out)])
    while not out.is_file() or out.stat().st_size < 400_000:
        assert job.poll() is None
    os.kill(job.pid, signal.SIGKILL)
    job.wait()
    whole = list(grades(out))
    assert len(whole) > 4
    with out.open("ab") as handle:  # as a kill in the middle of a write leaves it
        handle.write(encode_group(next(read_groups(out)))[:-30])
    assert list(grades(out)) == whole
    more = len(whole) + 3
    assert sample(tasks(more), Player(), out, samples=1) == Sampled(len(whole), 3, 3)
    assert list(grades(out)) == [*whole, *(f"t{n}" for n in range(len(whole), more))]


def test_a_bad_line_is_named_with_what_was_expected(tmp_path):
    out = tmp_path / "groups.jsonl"
    sample(tasks(2), Player(), out, samples=1)
    lines = out.read_bytes().split(b"\n")
    for bad, why in (
        (b"{broken", "malformed"),
        (b'{"task": {"task_id": "a"}}', "missing required"),
        (b"[]", "array"),
    ):
        out.write_bytes(b"\n".join([lines[0], bad, lines[1], b""]))
        with pytest.raises(DataError, match=rf"groups\.jsonl:2: not a group of trajectories: .*{why}"):
            list(read_groups(out))
    with pytest.raises(DataError, match=r"nothing\.jsonl: cannot read: No such file"):
        list(read_groups(tmp_path / "nothing.jsonl"))


def test_a_group_holds_trajectories_of_its_task_alone(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        Group(task=tasks(1)[0], trajectories=())
    with pytest.raises(ValueError, match="of task 't' in the group of 't0'"):
        Group(task=tasks(1)[0], trajectories=(clean_trajectory(),))


def test_half_a_surrogate_pair_is_written_as_a_question_mark(tmp_path):
    made = Group(task=tasks(1)[0], trajectories=(clean_trajectory(task_id="t0", final_answer="a\ud83d"),))
    (tmp_path / "g.jsonl").write_bytes(encode_group(made) + b"\n")
    assert next(read_groups(tmp_path / "g.jsonl")).trajectories[0].final_answer == "a?"


def test_a_thousand_tasks_with_faults_are_all_accounted_for(tmp_path):
    numbers = itertools.count()

    async def play(task, number):
        broken = next(numbers) % 5 == 0
        return clean_trajectory(
            task_id=task.task_id,
            sample=number,
            correct=None,
            end=TrajectoryEnd.FAILED if broken else TrajectoryEnd.ANSWERED,
            messages=(),
        )

    out = tmp_path / "groups.jsonl"
    done = sample(tasks(1000), play, out, samples=2)
    groups = list(read_groups(out))
    ends = Counter(one.end for group in groups for one in group.trajectories)
    assert done.tasks == len(groups) == 1000
    assert ends == {TrajectoryEnd.FAILED: 400, TrajectoryEnd.ANSWERED: 1600}
    assert all((one.correct is None) == (one.end is TrajectoryEnd.FAILED) for g in groups for one in g.trajectories)
    assert msgspec.json.decode(out.read_bytes().split(b"\n")[0])["task"]["task_id"] == "t0"
