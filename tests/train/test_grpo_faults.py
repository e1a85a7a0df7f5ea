"""What breaks around a GRPO run is counted, masked out and named, and is no score; what it stops goes on later."""

import itertools
import math
import threading
from collections import Counter
from dataclasses import replace

import orjson
import pytest
from tests.train.test_grpo_run import lines_of
from tests.train.test_grpo_run import recipe_of as plain_recipe

from firstchair.chat.actions import Action
from firstchair.core.errors import RunFailed
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.rollout.engine_policy import EnginePolicy
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
    """An HTTP judge: ``well``, in six ways ``ill`` at once, or ``down``."""

    def __init__(self):
        self.health, self.ill = "well", 0

    def __call__(self, seen, number):
        if self.health == "down":
            return Answer({}, status=503)
        if self.health == "ill":
            if len(seen.body["messages"]) > 2:  # asked to mend its chatter, it chats on
                return ILL[0]
            self.ill += 1
            return ILL[self.ill % len(ILL)] or self._verdict(seen)
        return self._verdict(seen)

    def _verdict(self, seen):
        shown = seen.body["messages"][1]["content"]
        return said(orjson.dumps({"reason": "r", "tone": 2 if GOOD in shown or '"role"' in shown else 0}).decode())


def said(text):
    return Answer({"choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"}]})


ILL = (
    said("It was lovely."),
    Answer({}, status=429, headers={"retry-after": "0"}),
    Answer({}, status=500),
    Answer(b"garbage"),
    Answer({}, status=504),
    Answer(stall=True),
    None,
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
        if self.trouble == "is no number":
            return Outcome(True, score=math.nan)
        right, liked = self.said == "42", self.number % 2 == 0 and self.mood != "equal"
        return Outcome(right, (Check("right", right), Check("liked", right or liked)))


class Knows:
    def act(self, messages, tools):
        return Action(kind="final_reply", text="42")


NAMES = ("raises", "is too long", "hangs", "babbles", "is no number", "is well")


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
    moods = {0: "troubled", 6: "equal", 12: "well"}
    before_each_batch(monkeypatch, lambda cursor: monkeypatch.setattr(Errand, "mood", moods[cursor]))
    run = train_grpo(recipe_of(base, tmp_path / "run", {"components": [PARTLY]}, prompts=6, samples=2))
    groups = [[line[f"groups_{sort}"] for sort in ("kept", "flat", "single", "empty")] for line in run.metrics]
    assert groups == [[1, 0, 1, 4], [0, 6, 0, 0], [6, 0, 0, 0]]
    assert [line["failed"] for line in run.metrics] == [9, 0, 0]
    assert [line["ungraded"] for line in run.metrics] == [9, 0, 0]
    assert [line["grad_norm"] > 0 for line in run.metrics] == [True, False, True]
    lines = [line for line in lines_of(run.run_dir) if line["batch"] == 0]
    assert all((line["status"] == "failed") == (line["reward"] is None) for line in lines)
    errors = {line["task_id"]: line["error"] for line in lines if line["error"] is not None}
    assert errors["raises"] == "environment.reset: OSError: no database"
    assert "context_overflow" in errors["is too long"]
    assert "Errand.verify: no answer within 2 s" in errors["hangs"]
    assert "Errand.verify: found 'fairly good'; expected True" in errors["babbles"]
    assert "score: found nan; expected a finite number" in errors["is no number"]


def test_rollouts_in_which_nothing_was_sampled_or_nothing_is_learnt_are_counted_and_left_out(
    base, tmp_path, monkeypatch
):
    now = Counter()
    before_each_batch(monkeypatch, lambda cursor: now.update(batches=1))
    generate, take = TransformersEngine.generate, EnginePolicy.take

    async def silent(self, requests):
        async for made in generate(self, requests):
            mute = now["batches"] == 1 and "#1:" in made.request_id
            yield replace(made, text="", ids=(), logprobs=()) if mute else made

    def masked(self, episode_id):
        tokens = take(self, episode_id)
        if now["batches"] < 3:
            return tokens
        return replace(tokens, segments=tuple(replace(s, loss_mask=[False] * len(s)) for s in tokens.segments))

    monkeypatch.setattr(TransformersEngine, "generate", silent)
    monkeypatch.setattr(EnginePolicy, "take", masked)
    run = train_grpo(recipe_of(base, tmp_path / "run", {"components": [PARTLY]}, prompts=2, samples=2))
    assert [(line["empty"], line["all_masked"]) for line in run.metrics] == [(2, 0), (0, 0), (0, 4)]
    groups = [[line[f"groups_{sort}"] for sort in ("kept", "flat", "single", "empty")] for line in run.metrics]
    assert groups == [[0, 0, 2, 0], [2, 0, 0, 0], [0, 0, 0, 2]]
    assert [line["grad_norm"] > 0 for line in run.metrics] == [False, True, False]
    left_out = [line for line in lines_of(run.run_dir) if line["reward"] is None]
    assert Counter((line["batch"], line["components"]["partly"] is None) for line in left_out) == {
        (0, False): 2,
        (4, False): 4,
    }


def test_a_run_of_cut_rollouts_alone_says_that_nothing_was_learnt_where_those_are_masked(base, tmp_path):
    changes = {
        "rollouts": {"prompts": 1, "samples": 2, "max_steps": 1, "max_new_tokens": 8},
        "grpo": {"advantage": {"mask_truncated": True}},
        "batches": 1,
    }
    with pytest.raises(RunFailed, match="no step had a gradient"):
        train_grpo(plain_recipe(base, tmp_path / "run", **changes))
    (figures,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert (figures["truncated"], figures["grad_norm"]) == (2, 0.0)


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
        recipe = recipe_of(base, tmp_path / "run", reward, prompts=2, samples=4)
        with pytest.raises(RunFailed, match=r"none of 8 rollouts could be graded: 8 × taste: server.*resume"):
            train_grpo(recipe)
        judge.health = health[4] = "well"  # a run begins by probing it
        run = train_grpo(recipe, resume=True)
    assert [line["ungraded"] for line in run.metrics] == [0, 6, 0]
    assert [line["grad_norm"] > 0 for line in (run.metrics[0], run.metrics[2])] == [True, True]
    lines = lines_of(run.run_dir)
    ill = [line for line in lines if line["batch"] == 2]
    assert sorted(line["reasons"]["taste"].partition(":")[0] for line in ill if line["reward"] is None) == [
        "bad_json",
        "bad_response",
        "deadline",
        "rate_limited",
        "server",
        "timeout",
    ]
    assert all((line["reward"] is None) == (line["advantage"] is None) for line in lines)
    assert [line["batch"] for line in lines] == [0] * 8 + [2] * 8 + [4] * 8
    assert len({line["task_id"] for line in lines}) == 6
