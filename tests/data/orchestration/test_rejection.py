"""The rejection-sampling job: every task accounted for, whatever breaks or is killed on the way."""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from firstchair.chat.messages import assistant_message
from firstchair.core.append import LineAppender
from firstchair.core.errors import ConfigError, DataError, IntegrityError, RunFailed, UpstreamError
from firstchair.data.orchestration.groups import Group, encode_group, read_groups
from firstchair.data.orchestration.made_by import MadeBy
from firstchair.data.orchestration.rejection import Sampled, Shard, sample_tasks
from firstchair.data.orchestration.serialize import training_records
from firstchair.engines.base import Generation, Sampling, Stop
from firstchair.engines.scripted import ScriptedEngine
from firstchair.rollout.engine_policy import EnginePolicy
from firstchair.rollout.orchestration.environment import OrchestrationEnvironment
from firstchair.rollout.orchestration.run import run_orchestrations
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.rollout.orchestration.trajectory import TrajectoryEnd
from firstchair.rollout.rollouts import RolloutPlan
from firstchair.testing.orchestration import ExactGrader, ScriptedExperts, calls, model_on_offer
from firstchair.testing.trajectories import clean_trajectory


def tasks(count):
    return [OrchestrationTask(task_id=f"t{n}", problem=f"{n} + 1?", gold_answer=str(n + 1)) for n in range(count)]


class Player:
    """Plays three tasks at a time, sample by sample; every second sample is right."""

    def __init__(self, samples=8, *, breaks=(), dies_at=""):
        self.samples, self.breaks, self.dies_at = samples, set(breaks), dies_at
        self.asked = Counter()

    async def __call__(self, todo):
        while some := list(itertools.islice(todo, 3)):
            for sample in reversed(range(self.samples)):
                for task in some:
                    await asyncio.sleep(0)
                    if task.task_id == self.dies_at:
                        raise UpstreamError("the policy's server went away")
                    self.asked[task.task_id] += 1
                    broken = task.task_id in self.breaks
                    yield clean_trajectory(
                        task_id=task.task_id,
                        sample=sample,
                        correct=None if broken else bool(sample % 2),
                        end=TrajectoryEnd.FAILED if broken else TrajectoryEnd.ANSWERED,
                    )


def sample(made, player, out, **options):
    samples = getattr(player, "samples", 1)
    return asyncio.run(sample_tasks(made, player, out, **({"samples": samples} | options)))


def grades(out):
    return {group.task.task_id: [one.correct for one in group.trajectories] for group in read_groups(out)}


def test_every_sample_of_every_task_is_kept(tmp_path):
    player, out = Player(), tmp_path / "made" / "groups.jsonl"
    done = sample(tasks(20), player, out)
    assert done == Sampled(finished_before=0, tasks=20, trajectories=160, broken=0)
    assert player.asked == {f"t{n}": 8 for n in range(20)}
    assert grades(out) == {f"t{n}": [False, True] * 4 for n in range(20)}
    assert [one.sample for one in next(read_groups(out)).trajectories] == list(range(8))


def test_a_second_run_asks_for_nothing_that_is_there(tmp_path):
    out = tmp_path / "groups.jsonl"
    sample(tasks(5), Player(2), out)
    again = Player(2)
    assert sample(tasks(8), again, out) == Sampled(finished_before=5, tasks=3, trajectories=6)
    assert set(again.asked) == {"t5", "t6", "t7"}
    assert set(grades(out)) == {f"t{n}" for n in range(8)}
    more = sample(tasks(9), Player(3), out, samples=3)
    assert more == Sampled(finished_before=8, tasks=1, trajectories=3, fewer_before=8)


MADE = MadeBy(policy={}, weights="", offered={}, setup={}, instructions="", seed=0, max_steps=8)


def test_groups_whose_record_is_gone_or_spoilt_are_refused_until_they_are_begun_anew(tmp_path):
    out, record = tmp_path / "groups.jsonl", tmp_path / "groups.run.json"
    sample(tasks(2), Player(1), out, made_by=MADE)
    assert sample(tasks(3), Player(1), out, made_by=MADE).finished_before == 2
    record.write_text("{}")
    with pytest.raises(IntegrityError, match=r"groups\.run\.json cannot be read \(.*missing.*; choose another --out"):
        sample(tasks(3), Player(1), out, made_by=MADE)
    record.unlink()
    with pytest.raises(IntegrityError, match=r"is not known: .*groups\.run\.json is not there; .* --force"):
        sample(tasks(3), Player(1), out, made_by=MADE)
    assert sample(tasks(1), Player(1), out, made_by=MADE, force=True) == Sampled(tasks=1, trajectories=1)
    assert set(grades(out)) == {"t0"}
    assert record.is_file()


def test_a_task_of_which_everything_broke_is_tried_again_and_counts_once(tmp_path):
    out = tmp_path / "groups.jsonl"
    assert sample(tasks(4), Player(2, breaks={"t1", "t2"}), out).broken == 2
    assert grades(out)["t1"] == [None, None]
    assert sample(tasks(4), Player(2, breaks={"t2"}), out) == Sampled(2, 2, 4, broken=1)
    right = [False, True]
    assert grades(out) == {"t0": right, "t1": right, "t2": [None, None], "t3": right}
    assert len(list(read_groups(out))) == 4
    assert len(out.read_bytes().split(b"\n")) - 1 == 6


def test_shards_take_every_task_once(tmp_path):
    outs = [tmp_path / f"{number}.jsonl" for number in (1, 2, 3)]
    for number, out in enumerate(outs, start=1):
        sample(tasks(10), Player(1), out, shard=Shard(number, 3))
    assert [sorted(grades(out)) for out in outs] == [["t0", "t3", "t6", "t9"], ["t1", "t4", "t7"], ["t2", "t5", "t8"]]
    assert Shard.parse("2/3") == Shard(2, 3)
    for wrong in ("0/3", "4/3", "2", "a/3", "-1/3", "1/0"):
        with pytest.raises(ConfigError, match=r"shard .*expected K/N"):
            Shard.parse(wrong)


def test_what_was_finished_before_an_error_is_written(tmp_path):
    out = tmp_path / "groups.jsonl"
    with pytest.raises(UpstreamError, match="went away"):
        sample(tasks(9), Player(2, dies_at="t6"), out)
    assert set(grades(out)) == {f"t{n}" for n in range(6)}
    assert sample(tasks(9), Player(2), out) == Sampled(finished_before=6, tasks=3, trajectories=6)


def test_playing_that_ends_too_early_is_an_error_and_not_a_shorter_file(tmp_path):
    out = tmp_path / "groups.jsonl"
    with pytest.raises(RunFailed, match=r"ended with 3 tasks unfinished, 't0' after 2 of 3 samples"):
        sample(tasks(3), Player(2), out, samples=3)


def test_a_task_id_that_comes_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"task_id: task 't0' comes twice"):
        sample([*tasks(1), *tasks(1)], Player(), tmp_path / "groups.jsonl")


def test_two_jobs_cannot_write_to_one_file(tmp_path):
    out = tmp_path / "groups.jsonl"
    with LineAppender(out), pytest.raises(ConfigError, match="another process is writing to it"):
        sample(tasks(1), Player(), out)


def test_a_directory_in_place_of_the_file_is_no_lack_of_space(tmp_path):
    with pytest.raises(ConfigError, match="is a directory; expected a file"):
        sample(tasks(1), Player(), tmp_path)


def test_a_job_that_is_cancelled_stops_playing(tmp_path):
    closed = []

    async def play(todo):
        try:
            for task in todo:
                yield clean_trajectory(task_id=task.task_id)
                await asyncio.sleep(0 if task.task_id == "t0" else 3600)
        finally:
            closed.append(True)

    async def cancelled():
        async with asyncio.timeout(0.05):
            await sample_tasks(tasks(9), play, tmp_path / "groups.jsonl", samples=1)

    with pytest.raises(TimeoutError):
        asyncio.run(cancelled())
    assert closed == [True]
    assert list(grades(tmp_path / "groups.jsonl")) == ["t0", "t1"]


JOB = """
import asyncio, sys
from pathlib import Path
from firstchair.data.orchestration.rejection import sample_tasks
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.testing.trajectories import clean_trajectory
text = "x" * 20_000
tasks = (OrchestrationTask(task_id=f"t{n}", problem=text) for n in range(100_000))
async def play(todo):
    for task in todo:
        for sample in range(2):
            await asyncio.sleep(0)
            yield clean_trajectory(task_id=task.task_id, sample=sample, final_answer=text)
asyncio.run(sample_tasks(tasks, play, Path(sys.argv[1]), samples=2))
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
    assert sample(tasks(more), Player(1), out) == Sampled(len(whole), 3, 3)
    assert list(grades(out)) == [*whole, *(f"t{n}" for n in range(len(whole), more))]


def test_a_bad_line_is_named_with_what_was_expected(tmp_path):
    out = tmp_path / "groups.jsonl"
    sample(tasks(2), Player(1), out)
    lines = out.read_bytes().split(b"\n")
    half = b'{"task": {"task_id": "a"}}'
    for bad, why in ((b"{broken", "malformed"), (half, "missing required"), (b"[]", "array")):
        out.write_bytes(b"\n".join([lines[0], bad, lines[1], b""]))
        with pytest.raises(DataError, match=rf"groups\.jsonl:2: not a group of trajectories: .*{why}"):
            list(read_groups(out))
    with pytest.raises(DataError, match=r"nothing\.jsonl: cannot read: No such file"):
        list(read_groups(tmp_path / "nothing.jsonl"))
    out.write_bytes(b"")
    with pytest.raises(DataError, match=r"groups\.jsonl: no group in it"):
        list(read_groups(out))
    assert sample(tasks(2), Player(1), out).tasks == 2


def test_a_group_holds_trajectories_of_its_task_alone():
    with pytest.raises(ValueError, match="at least one"):
        Group(task=tasks(1)[0], trajectories=())
    with pytest.raises(ValueError, match="of task 't' in the group of 't0'"):
        Group(task=tasks(1)[0], trajectories=(clean_trajectory(),))


def test_half_a_surrogate_pair_is_written_as_a_question_mark(tmp_path):
    made = Group(task=tasks(1)[0], trajectories=(clean_trajectory(task_id="t0", final_answer="a\ud83d"),))
    (tmp_path / "g.jsonl").write_bytes(encode_group(made) + b"\n")
    assert next(read_groups(tmp_path / "g.jsonl")).trajectories[0].final_answer == "a?"


def test_tasks_with_faults_are_all_accounted_for(tmp_path):
    async def play(todo):
        numbers = itertools.count()
        for task, number in itertools.product(todo, range(2)):
            broken = next(numbers) % 5 == 0
            end = TrajectoryEnd.FAILED if broken else TrajectoryEnd.ANSWERED
            yield clean_trajectory(task_id=task.task_id, sample=number, correct=None, end=end, messages=())

    out = tmp_path / "groups.jsonl"
    done = sample(tasks(200), play, out, samples=2)
    groups = list(read_groups(out))
    ends = Counter(one.end for group in groups for one in group.trajectories)
    assert done.tasks == len(groups) == 200
    assert ends == {TrajectoryEnd.FAILED: 80, TrajectoryEnd.ANSWERED: 320}


def test_what_the_runner_plays_becomes_groups_and_records(tmp_path):
    def reply(request):
        if len(request.messages) == 2:
            return Generation("", Stop.END, message=calls(("big", {"input": "Add."})))
        return Generation("", Stop.END, message=assistant_message("FINAL_ANSWER: \\boxed{1}"))

    def environment():
        experts = ScriptedExperts(lambda *_: "It is 1.")
        return OrchestrationEnvironment(lambda task, seed: (model_on_offer("big"),), experts, None, ExactGrader())

    def play(todo):
        policy = EnginePolicy(ScriptedEngine(reply, model="made"), None, Sampling())
        return run_orchestrations(environment, todo, policy, RolloutPlan(samples=2, seed=0))

    out = tmp_path / "groups.jsonl"
    assert sample(tasks(3), play, out, samples=2) == Sampled(0, 3, 6)
    groups = list(read_groups(out))
    assert sorted(group.task.task_id for group in groups) == ["t0", "t1", "t2"]
    assert all(one.dispatches[0].kind == "model" for group in groups for one in group.trajectories)
    records = list(training_records(groups))
    assert len(records) == 6
    assert {record.messages[-1].text for record in records} == {"FINAL_ANSWER: 1"}
    assert {record.tools[0].name for record in records} == {"big"}
