"""What breaks around a GRPO run is counted, masked out and named, and is no score; what it stops goes on later."""

import itertools
import threading
from collections import Counter

import orjson
import pytest
from tests.train.test_grpo_run import lines_of
from tests.train.test_grpo_run import recipe_of as plain_recipe

from firstchair.chat.actions import Action
from firstchair.core.errors import RunFailed
from firstchair.rollout.environment import Check, Outcome
from firstchair.rollout.python_environment import PythonEnvironment
from firstchair.testing.environment import WordTask
from firstchair.testing.fault_server import Answer, FaultServer
from firstchair.train.grpo_run import train_grpo
from firstchair.train.metrics import read_metrics
from firstchair.train.rollout_source import RolloutSource

pytestmark = pytest.mark.usefixtures("one_thread")

GOOD, BAD = "It rains; take a coat.", "Whatever."
PARTLY = {"name": "partly", "kind": "verifier", "check": "checks"}
TASTE = {
    "name": "taste",
    "kind": "judge",
    "mode": "rubric",
    "weight": 0.1,
    "dimensions": [{"name": "tone", "question": "Polite?"}],
    "probe": {"question": "Weather?", "good": GOOD, "bad": BAD},
}


def recipe_of(base, out, reward, *, prompts, samples, **changes):
    return plain_recipe(
        base,
        out,
        environment={"type": "python", "factory": f"{__name__}:errands"},
        reward=reward,
        rollouts={"prompts": prompts, "samples": samples, "max_steps": 3, "max_new_tokens": 8},
        **{"grpo": {"advantage": {"drop_flat": True}}, **changes},
    )


class Judge:
    """An HTTP judge: ``well``, in five ways ``ill`` at once, or ``down``."""

    def __init__(self):
        self.health, self.ill = "well", 0

    def __call__(self, seen, number):
        if self.health == "down":
            return Answer({}, status=503)
        if self.health == "ill":
            self.ill += 1
            return ILL[self.ill % len(ILL)] or self._verdict(seen)
        return self._verdict(seen)

    def _verdict(self, seen):
        shown = seen.body["messages"][1]["content"]
        verdict = orjson.dumps({"reason": "r", "tone": 2 if GOOD in shown or '"role"' in shown else 0}).decode()
        said = {"role": "assistant", "content": verdict}
        return Answer({"choices": [{"message": said, "finish_reason": "stop"}]})


ILL = (
    None,
    Answer({}, status=429, headers={"retry-after": "0"}),
    Answer({}, status=500),
    Answer(b"garbage"),
    Answer(stall=True),
    None,
)


class Errand:
    """Does what its task's name says once there is ``mood``; else it likes every second rollout."""

    mood = ""
    numbers = itertools.count()

    def __init__(self):
        self.number, self.said = next(self.numbers), ""

    def reset(self, task, seed):
        self.trouble = task.task_id if self.mood == "troubled" else ""
        if self.trouble == "raises":
            raise OSError("no database")
        return f"word {self.number} " * (9_000 if self.trouble == "is too long" else 1)

    def step(self, message):
        self.said = message["content"]
        # No judge is asked about silence, and each of these tests needs its answer.
        return ([], True) if self.said else ("Say something.", False)

    def verify(self):
        if self.trouble == "hangs":
            threading.Event().wait()
        if self.trouble == "babbles" and self.number % 2:
            return "fairly good"
        right, liked = self.said == "42", self.number % 2 == 0 and self.mood != "equal"
        return Outcome(right, (Check("right", right), Check("liked", right or liked)))


class Knows:
    def act(self, messages, tools):
        return Action(kind="final_reply", text="42")


NAMES = ("raises", "is too long", "hangs", "babbles", "is well")


def errands():
    tasks = [WordTask(task_id=name, words=()) for name in NAMES]
    return lambda: PythonEnvironment(Errand(), timeout_s=2.0), tasks, Knows()


def before_each_batch(monkeypatch, act):
    """Call ``act`` with the cursor before a batch is made; what a run proves at its start is over by then."""
    feed = RolloutSource.feed

    def acting(self, cursor):
        act(cursor)
        return feed(self, cursor)

    monkeypatch.setattr(RolloutSource, "feed", acting)


def test_groups_that_fail_whole_or_in_part_or_are_all_alike_are_left_out_and_the_run_goes_on(
    base, tmp_path, monkeypatch
):
    moods = {0: "troubled", 5: "equal", 10: "well"}
    before_each_batch(monkeypatch, lambda cursor: monkeypatch.setattr(Errand, "mood", moods[cursor]))
    run = train_grpo(recipe_of(base, tmp_path / "run", {"components": [PARTLY]}, prompts=5, samples=2))
    groups = [[line[f"groups_{sort}"] for sort in ("kept", "flat", "single", "empty")] for line in run.metrics]
    assert groups == [[1, 0, 1, 3], [0, 5, 0, 0], [5, 0, 0, 0]]
    assert [line["failed"] for line in run.metrics] == [7, 0, 0]
    assert [line["ungraded"] for line in run.metrics] == [7, 0, 0]
    assert [line["grad_norm"] > 0 for line in run.metrics] == [True, False, True]
    lines = [line for line in lines_of(run.run_dir) if line["batch"] == 0]
    assert all((line["status"] == "failed") == (line["reward"] is None) for line in lines)
    errors = {line["task_id"]: line["error"] for line in lines if line["error"] is not None}
    assert errors["raises"] == "environment.reset: OSError: no database"
    assert "context_overflow" in errors["is too long"]
    assert "Errand.verify: no answer within 2 s" in errors["hangs"]
    assert "Errand.verify: found 'fairly good'; expected True" in errors["babbles"]


def test_groups_of_a_narrow_spread_are_filtered_out_and_counted_and_so_are_rollouts_that_say_nothing(base, tmp_path):
    grpo = {"filters": {"min_spread": 0.6, "no_output": "drop"}, "advantage": {"drop_flat": True}}
    recipe = recipe_of(base, tmp_path / "run", {"components": [PARTLY]}, prompts=5, samples=2, grpo=grpo, batches=1)
    # Every second rollout is liked, which is worth ½: each group has a signal, and none of 0.6.
    with pytest.raises(RunFailed, match="no step had a gradient"):
        train_grpo(recipe)
    (figures,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    lines = lines_of(tmp_path / "run")
    sizes = Counter(line["group"] for line in lines if line["reward"] is not None)
    silent = figures["dropped_no_output"]
    assert figures["groups_narrow"] == 5 - figures["groups_empty"] - figures["groups_single"]
    assert (figures["groups_kept"], figures["groups_flat"], figures["dropped_broken"]) == (0, 0, 0)
    assert figures["groups_narrow"] >= 5 - silent
    assert sum(sizes.values()) == figures["groups_single"]


def test_a_judge_that_is_ill_costs_its_samples_and_one_that_is_down_stops_the_run_which_goes_on_later(
    base, tmp_path, monkeypatch
):
    judge, health = Judge(), {0: "well", 2: "ill", 4: "down"}
    before_each_batch(monkeypatch, lambda cursor: setattr(judge, "health", health[cursor]))
    with FaultServer(judge) as server:
        where = {"base_url": f"{server.base_url}/v1", "model": "m", "tries": 1, "question_s": 3.0}
        reward = {"components": [PARTLY, TASTE], "judge": where}
        recipe = recipe_of(base, tmp_path / "run", reward, prompts=2, samples=3)
        with pytest.raises(RunFailed, match=r"none of 6 rollouts could be graded: 6 × taste: server.*resume"):
            train_grpo(recipe)
        judge.health = health[4] = "well"  # a run begins by probing it
        run = train_grpo(recipe, resume=True)
    assert [line["ungraded"] for line in run.metrics] == [0, 4, 0]
    assert [line["grad_norm"] > 0 for line in (run.metrics[0], run.metrics[2])] == [True, True]
    lines = lines_of(run.run_dir)
    ill = [line for line in lines if line["batch"] == 2]
    assert sorted(line["reasons"]["taste"].partition(":")[0] for line in ill if line["reward"] is None) == [
        "bad_response",
        "deadline",
        "rate_limited",
        "server",
    ]
    assert all((line["reward"] is None) == (line["advantage"] is None) for line in lines)
    assert [line["batch"] for line in lines] == [0] * 6 + [2] * 6 + [4] * 6
    assert len({line["task_id"] for line in lines}) == 5
