import json
import shutil
from contextlib import nullcontext

import numpy as np
import pytest
from tests.services import full, small_disk

from firstchair.chat.renderer import Renderer
from firstchair.chat.trained import trained_renderer, write_rendering
from firstchair.core.config import validate
from firstchair.core.errors import ConfigError, RunFailed
from firstchair.engines.transformers_engine import TransformersEngine
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.traces.session_file import read_catalogs
from firstchair.train.checkpoints import list_checkpoints
from firstchair.train.grpo_recipe import GrpoRecipe
from firstchair.train.grpo_run import train_grpo
from firstchair.train.metrics import read_metrics
from firstchair.train.rollout_batches import RolloutBatches
from firstchair.train.rollout_source import RolloutSource
from firstchair.train.trainer import Trainer

pytestmark = pytest.mark.usefixtures("one_thread")

# The base model completes no task of the desk, and its episodes differ in length: a reward that has a gradient.
REWARD = {
    "components": [
        {"name": "partly", "kind": "verifier", "check": "checks"},
        {"name": "tokens", "kind": "length", "weight": -0.01, "bounds": [0, 1000]},
    ]
}


def recipe_of(base, out, **changes):
    fields = {
        "model": str(base),
        "out": str(out),
        "environment": {"type": "desk", "tasks": 5, "seed": 3},
        "reward": REWARD,
        "rollouts": {"prompts": 2, "samples": 3, "max_steps": 2, "max_new_tokens": 24},
        "optimizer": {"type": "adamw", "lr": 1e-3},
        "schedule": {"kind": "constant", "warmup_ratio": 0.0},
        "batches": 3,
        "save": {"every": 1, "keep": 1},
        **changes,
    }
    return validate(GrpoRecipe, fields, source="test")


def lines_of(run):
    return [json.loads(line) for line in (run / "rollouts.jsonl").read_text().splitlines()]


def reproducible(run):
    """The step lines without what depends on how the engine happened to batch: roundings of its log-probabilities."""
    return [
        {name: value for name, value in line.items() if not name.startswith("behaviour_diff")}
        for line in read_metrics(run / "metrics.jsonl")
    ]


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "whole"
    return train_grpo(recipe_of(base, out))


def test_a_run_learns_from_what_was_sampled_and_says_how_each_rollout_ended(base, finished):
    assert finished.steps == 3
    for line in finished.metrics:
        assert line["rollouts"] == 6
        assert line["behaviour_diff_max"] < 1e-3
        assert line["grad_norm"] > 0
        assert line["ungraded"] == 0
    lines = lines_of(finished.run_dir)
    assert len(lines) == 18
    assert {line["status"] for line in lines} == {"truncated"}
    assert all(len(line["weights"]) == 1 for line in lines)
    assert len({line["weights"][0] for line in lines}) == 3
    for line in lines:
        expected = line["components"]["partly"] - 0.01 * line["components"]["tokens"]
        assert line["reward"] == pytest.approx(expected)
    sessions = [json.loads(line) for line in (finished.run_dir / "sessions.jsonl").read_text().splitlines()]
    assert [session["session_id"] for session in sessions] == [line["session_id"] for line in lines]
    assert [session["labels"]["reward"] for session in sessions] == [line["reward"] for line in lines]
    catalogs = read_catalogs(finished.run_dir)
    assert [session["catalog_id"] for session in sessions] == list(catalogs) * 18
    assert TransformersEngine(finished.model_dir).info().revision


def test_prompts_come_in_epochs_and_none_twice_in_one(finished):
    tasks = [line["task_id"] for line in lines_of(finished.run_dir) if line["sample"] == 0]
    assert len(tasks) == 6
    assert len(set(tasks[:5])) == 5


@pytest.mark.parametrize("staleness", [0, 1])
def test_a_killed_run_resumes_with_the_same_prompts_and_the_same_losses(base, tmp_path, monkeypatch, staleness):
    changes = {
        "rollouts": {"prompts": 2, "samples": 3, "max_steps": 2, "max_new_tokens": 24, "staleness": staleness},
        "grpo": {"off_policy": {"correction": "truncate"}} if staleness else {},
        "batches": 4,
    }
    whole = train_grpo(recipe_of(base, tmp_path / "whole", **changes))
    feed, calls = RolloutSource.feed, []

    def dying(self, cursor):
        calls.append(cursor)
        if len(calls) == 3:
            raise MemoryError("killed")
        return feed(self, cursor)

    monkeypatch.setattr(RolloutSource, "feed", dying)
    with pytest.raises(MemoryError):
        train_grpo(recipe_of(base, tmp_path / "cut", **changes))
    monkeypatch.setattr(RolloutSource, "feed", feed)
    # What a killed process had played without having trained on it is played again, and stands in the log once.
    with (tmp_path / "cut" / "rollouts.jsonl").open("a") as log:
        log.write(json.dumps({**lines_of(tmp_path / "cut")[-1], "batch": 10**6}) + "\n" + '{"batch": 10')
    resumed = train_grpo(recipe_of(base, tmp_path / "cut", **changes), resume=True)
    if (
        staleness
    ):  # the correction weighs by the engine's log-probabilities, so these losses differ in their last digits
        for left, right in zip(whole.metrics, resumed.metrics, strict=True):
            assert left["loss"] == pytest.approx(right["loss"], rel=1e-3, abs=1e-5)
    else:
        assert reproducible(resumed.run_dir) == reproducible(whole.run_dir)
    names = [
        [(line["batch"], line["task_id"], line["sample"], line["sampled_tokens"]) for line in lines_of(run)]
        for run in (whole.run_dir, resumed.run_dir)
    ]
    assert names[0] == names[1]
    assert len((resumed.run_dir / "sessions.jsonl").read_text().splitlines()) == len(names[0])


def test_batches_rolled_out_ahead_are_one_version_old(base, tmp_path):
    changes = {
        "rollouts": {"prompts": 2, "samples": 2, "max_steps": 1, "max_new_tokens": 24, "staleness": 1},
        "grpo": {"policy": {"old": "behaviour"}},
    }
    run = train_grpo(recipe_of(base, tmp_path / "run", **changes))
    weights = {line["batch"]: line["weights"][0] for line in lines_of(run.run_dir)}
    first, second, third = weights.values()
    assert first == second != third


def test_an_adapter_learns_and_answers(base, tmp_path):
    run = train_grpo(
        recipe_of(base, tmp_path / "run", method={"type": "lora", "rank": 4}, grpo={"kl": {"coefficient": 0.01}})
    )
    assert (run.model_dir / "adapter_config.json").is_file()
    assert all(line["behaviour_diff_max"] < 1e-3 for line in run.metrics)
    assert run.metrics[0]["reference_kl"] == pytest.approx(0.0, abs=1e-5)
    assert abs(run.metrics[-1]["reference_kl"]) > 0


def test_a_policy_is_prompted_as_it_was_trained(base, tmp_path):
    model = tmp_path / "respaced"
    shutil.copytree(base, model)
    write_rendering(Renderer.from_pretrained(model, arguments="respaced"), model)
    run = train_grpo(recipe_of(model, tmp_path / "run"))
    assert trained_renderer(run.model_dir).arguments == "respaced"


def test_several_steps_on_one_batch(base, tmp_path):
    run = train_grpo(recipe_of(base, tmp_path / "run", grpo={"steps_per_batch": 2}, batches=2))
    assert run.steps == 4
    assert [line["rows"] for line in run.metrics] == [3, 3, 3, 3]
    assert len(lines_of(run.run_dir)) == 12


def test_credit_at_branches_adds_up_to_what_each_rollout_earned_over_its_group(base, tmp_path, monkeypatch):
    feed, fed = RolloutSource.feed, []

    def seen(self, cursor):
        fed.append(feed(self, cursor))
        return fed[-1]

    monkeypatch.setattr(RolloutSource, "feed", seen)
    advantage = {"credit": "branch", "normalise": False}
    run = train_grpo(recipe_of(base, tmp_path / "run", grpo={"advantage": advantage}, batches=1))
    assert run.metrics[0]["grad_norm"] > 0
    examples = [example for step in fed[0].steps for example in step]
    assert len(examples) == 6
    earned = [line["advantage"] for line in lines_of(run.run_dir)]
    for example in examples:
        credit = example.columns["advantage"]
        assert credit.sum() == pytest.approx(earned[example.key], abs=1e-4)
        assert 0 < np.count_nonzero(credit) < example.trained_tokens / 2
        assert not credit[~example.loss_mask].any()


def test_an_engine_that_keeps_its_old_weights_stops_the_run(base, tmp_path, monkeypatch):
    take = TransformersEngine.take_weights
    taken = []

    async def once(self, weights):
        taken.append(1)
        return await take(self, weights) if len(taken) == 1 else self.info()

    monkeypatch.setattr(TransformersEngine, "take_weights", once)
    with pytest.raises(RunFailed, match="does not answer with the pushed weights"):
        train_grpo(recipe_of(base, tmp_path / "run", optimizer={"type": "adamw", "lr": 3e-2}))


def test_a_reward_that_never_differs_ends_the_run(base, tmp_path):
    reward = {"components": [{"name": "done", "kind": "verifier", "check": "completed"}]}
    rollouts = {"prompts": 1, "samples": 2, "max_steps": 1, "max_new_tokens": 8, "patience": 2}
    changes = {"reward": reward, "rollouts": rollouts, "grpo": {"advantage": {"drop_flat": True}}}
    with pytest.raises(RunFailed, match="2 batches in a row had no group with different rewards"):
        train_grpo(recipe_of(base, tmp_path / "run", **changes))


def test_other_prompts_are_played_in_place_of_flat_groups(base, tmp_path):
    reward = {"components": [{"name": "done", "kind": "verifier", "check": "completed"}]}
    rollouts = {"prompts": 2, "samples": 2, "max_steps": 1, "max_new_tokens": 8, "patience": 1, "refill": 2}
    with pytest.raises(RunFailed, match="1 batches in a row"):
        train_grpo(recipe_of(base, tmp_path / "run", reward=reward, rollouts=rollouts))


class Breaking(DeskEnvironment):
    """A desk whose verifier goes down."""

    down = False

    async def verify(self):
        if self.down:
            raise OSError("database gone")
        return await super().verify()


def breaking_desk():
    return Breaking, make_tasks(3, 5), Teacher()


def test_a_verifier_that_goes_down_stops_the_run_with_its_reason(base, tmp_path, monkeypatch):
    feed = RolloutSource.feed

    def after_the_first(self, cursor):
        monkeypatch.setattr(Breaking, "down", cursor > 0)
        return feed(self, cursor)

    monkeypatch.setattr(RolloutSource, "feed", after_the_first)
    environment = {"type": "python", "factory": "tests.train.test_grpo_run:breaking_desk"}
    with pytest.raises(RunFailed, match=r"none of 6 rollouts could be graded.*database gone"):
        train_grpo(recipe_of(base, tmp_path / "run", environment=environment))
    monkeypatch.undo()
    resumed = train_grpo(recipe_of(base, tmp_path / "run", environment=environment), resume=True)
    assert [line["step"] for line in resumed.metrics] == [1, 2, 3]


def test_a_batch_ahead_that_fails_takes_no_finished_step_along(base, tmp_path, monkeypatch):
    make = RolloutBatches.make

    async def down(self, cursor):
        if cursor > 0:
            raise RunFailed("the judge is down")
        return await make(self, cursor)

    changes = {
        "rollouts": {"prompts": 2, "samples": 2, "max_steps": 1, "max_new_tokens": 24, "staleness": 1},
        "grpo": {"policy": {"old": "behaviour"}},
    }
    monkeypatch.setattr(RolloutBatches, "make", down)
    with pytest.raises(RunFailed, match="the judge is down"):
        train_grpo(recipe_of(base, tmp_path / "run", **changes))
    monkeypatch.undo()
    assert [path.name for path in list_checkpoints(tmp_path / "run" / "checkpoints")] == ["step-00000001"]
    resumed = train_grpo(recipe_of(base, tmp_path / "run", **changes), resume=True)
    assert [line["step"] for line in resumed.metrics] == [1, 2, 3]
    tasks = [line["task_id"] for line in lines_of(resumed.run_dir) if line["sample"] == 0]
    assert len(set(tasks[:5])) == 5


@pytest.mark.parametrize("place", ["checkpoint", "log"])
def test_a_full_disk_stops_the_run_and_nothing_is_lost_once_there_is_space(
    base, finished, tmp_path, monkeypatch, place
):
    owner, name = (Trainer, "save") if place == "checkpoint" else (RolloutSource, "_note")
    write, calls = getattr(owner, name), []

    with small_disk(tmp_path / "disk", 128) as disk:

        def crowded(self, *given):
            calls.append(1)
            with full(disk) if len(calls) == 2 else nullcontext():
                return write(self, *given)

        monkeypatch.setattr(owner, name, crowded)
        with pytest.raises(RunFailed, match=r"cannot write.*free space and resume"):
            train_grpo(recipe_of(base, disk / "run"))
        assert len(calls) == 2
        resumed = train_grpo(recipe_of(base, disk / "run"), resume=True)
        assert reproducible(resumed.run_dir) == reproducible(finished.run_dir)
        played = [
            [(line["batch"], line["task_id"], line["sample"]) for line in lines_of(run)]
            for run in (finished.run_dir, resumed.run_dir)
        ]
        assert played[0] == played[1]


def test_an_engine_that_ends_in_mid_batch_stops_the_run_and_a_new_one_goes_on(base, finished, tmp_path, monkeypatch):
    generate, asked = TransformersEngine.generate, []

    async def ending(self, *given, **named):
        asked.append(1)
        if len(asked) == 3:  # each batch asks twice: the first action of all its episodes, then the second
            await self.close()
        async for answered in generate(self, *given, **named):
            yield answered

    monkeypatch.setattr(TransformersEngine, "generate", ending)
    with pytest.raises(RunFailed, match="closed"):
        train_grpo(recipe_of(base, tmp_path / "run"))
    monkeypatch.undo()
    resumed = train_grpo(recipe_of(base, tmp_path / "run"), resume=True)
    assert reproducible(resumed.run_dir) == reproducible(finished.run_dir)


def test_a_reward_of_measures_alone_is_refused_before_anything_is_trained(base, tmp_path):
    reward = {"components": [{"name": "short", "kind": "length", "weight": -1.0, "bounds": [0, 9]}]}
    with pytest.raises(ConfigError, match="alone reward doing nothing"):
        train_grpo(recipe_of(base, tmp_path / "run", reward=reward))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"rollouts": {"staleness": 1}}, "staleness=1"),
        ({"rollouts": {"samples": 1}}, "rollouts.samples"),
        ({"rollouts": {"stall_s": 0}}, "rollouts.stall_s"),
        # What is trained on is sampled at temperature 1, and nothing else can be asked for.
        ({"rollouts": {"temperature": 0.0}}, "rollouts.temperature: unknown field"),
        ({"rollouts": {"staleness": 2}}, "rollouts.staleness"),
        ({"rollouts": {"staleness": True}}, "rollouts.staleness"),
        (
            {"reward": {"components": [*REWARD["components"], {"name": "usd", "kind": "cost", "bounds": [0, 1]}]}},
            "usd is a cost, and the policy that is sampled here has no price",
        ),
        (
            {"grpo": {"kl": {"place": "reward", "coefficient": 0.1}, "advantage": {"mask_truncated": True}}},
            "put the KL",
        ),
        ({"environment": {"type": "python", "factory": "nowhere"}}, "environment.python.factory"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(base, tmp_path, changes, problem):
    with pytest.raises(ConfigError, match=problem):
        recipe_of(base, tmp_path / "run", **changes)


def test_a_factory_that_cannot_be_imported_is_named(base, tmp_path):
    with pytest.raises(ConfigError, match=r"tests.nowhere:f.*can be imported"):
        train_grpo(recipe_of(base, tmp_path / "run", environment={"type": "python", "factory": "tests.nowhere:f"}))
