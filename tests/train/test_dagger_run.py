import asyncio
import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from firstchair.core.config import load_recipe, validate
from firstchair.core.errors import ConfigError, IntegrityError, RunFailed
from firstchair.data.sft import read_sft
from firstchair.rollout.dagger import run_dagger
from firstchair.rollout.dagger_teacher import Spent
from firstchair.rollout.desk.definitions import desk_tools
from firstchair.rollout.desk.environment import DeskEnvironment
from firstchair.rollout.desk.server import running_teacher
from firstchair.rollout.desk.tasks import make_tasks
from firstchair.rollout.desk.teacher import Teacher
from firstchair.rollout.episodes import Limits
from firstchair.testing.fault_server import Answer, FaultServer
from firstchair.train import dagger_run
from firstchair.train.dagger_figures import DaggerFigures, RoundFigures, Taught
from firstchair.train.dagger_recipe import DaggerRecipe, ScriptedTeacher
from firstchair.train.dagger_run import train_dagger
from firstchair.train.dagger_teachers import open_teacher

pytestmark = pytest.mark.usefixtures("one_thread")

ROOT = Path(__file__).parents[2]


def recipe_of(base, out, **changes):
    fields = {
        "model": str(base),
        "out": str(out),
        "rounds": 2,
        "tasks": {"per_round": 2, "seed": 12},
        # One at a time: what is generated together rounds together, and an untaught model hesitates.
        "rollouts": {"temperature": 0.0, "max_steps": 3, "max_new_tokens": 32, "concurrency": 1},
        "replay": {"share": 0.0},
        "lessons": {"agreed": 1},
        "max_steps": 1,
        "batch": {"sessions": 2},
        "recovery": {"cases": 1, "seed": 13},
        **changes,
    }
    return validate(DaggerRecipe, fields, source="test")


@pytest.fixture(scope="module")
def finished(base, tmp_path_factory):
    return train_dagger(recipe_of(base, tmp_path_factory.mktemp("runs") / "whole"))


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_run_plays_relabels_trains_and_measures_round_by_round(finished):
    figures, out = finished.figures, finished.run_dir
    assert [line.round for line in figures.rounds] == [0, 1, 2]
    assert msgspec.json.decode((out / "result.json").read_bytes(), type=DaggerFigures) == figures
    assert figures.before.n == figures.after.n == 1
    tasks: set[str] = set()
    for line in figures.rounds[1:]:
        here = out / f"round-{line.round}"
        assert line.taught.episodes == len(lines_of(here / "rollouts.jsonl")) == 2
        assert line.taught.records == {"agreed": 2, **line.taught.records} or line.taught.records["derailed"] > 0
        assert line.taught.derailed.value > 0
        assert (line.taught.errors, line.taught.unlabelled, line.taught.failures) == ({}, 0, {})
        assert line.steps == 1
        tasks |= {row["labels"]["task_id"] for row in lines_of(here / "rollouts.jsonl")}
        assert (here / "model" / "model.safetensors").is_file()
        assert not (here / "sft" / "checkpoints").exists()
    assert len(tasks) == 4
    assert finished.model_dir.resolve() == (out / "round-2" / "model").resolve()


def test_the_second_round_trains_on_the_lessons_of_both(finished):
    first, second = (list(read_sft(finished.run_dir / f"round-{n}" / "records.jsonl")) for n in (1, 2))
    trained = list(read_sft(finished.run_dir / "round-2" / "train.jsonl"))
    assert trained == first + second
    assert {record.meta["round"] for record in first} == {1}
    assert finished.figures.rounds[2].records == len(trained)


def test_the_second_round_begins_with_what_the_first_left(finished):
    started = json.loads((finished.run_dir / "round-2" / "sft" / "run.json").read_text())["recipe"]["model"]
    assert started == str(finished.run_dir / "round-1" / "model")


def test_recovery_is_measured_on_the_same_cases_and_on_tasks_of_their_own(finished):
    out = finished.run_dir
    cases = [[row["labels"]["task_id"] for row in lines_of(out / f"round-{n}" / "recovery.jsonl")] for n in (0, 1, 2)]
    assert cases[0] == cases[1] == cases[2]
    assert cases[0][0].startswith("desk-13-")
    assert figures_of(out, 0).taught is None


def figures_of(out, number):
    return msgspec.json.decode((out / f"round-{number}" / "round.json").read_bytes(), type=RoundFigures)


def test_a_run_stopped_in_a_rounds_training_plays_nothing_again(base, tmp_path, finished, monkeypatch):
    train, made = dagger_run.train_sft, []

    def dying(recipe, **options):
        made.append(recipe.out)
        if len(made) == 2:
            raise KeyboardInterrupt
        return train(recipe, **options)

    monkeypatch.setattr(dagger_run, "train_sft", dying)
    recipe = recipe_of(base, tmp_path / "cut")
    with pytest.raises(KeyboardInterrupt):
        train_dagger(recipe)
    assert not (recipe.out / "result.json").exists()
    kept = {path: path.stat().st_mtime_ns for path in recipe.out.rglob("*") if path.is_file()}
    monkeypatch.setattr(dagger_run, "train_sft", train)
    monkeypatch.setattr(dagger_run, "run_dagger", None)
    resumed = train_dagger(recipe, resume=True)
    done_before = [path for path in kept if "round-2/train.jsonl" not in str(path)]
    assert all(path.stat().st_mtime_ns == kept[path] for path in done_before)
    lessons = [
        [(record.id, record.messages, record.loss) for record in read_sft(run / "round-2" / "records.jsonl")]
        for run in (recipe.out, finished.run_dir)
    ]
    assert lessons[0] == lessons[1]
    assert [line.tokens for line in resumed.figures.rounds] == [line.tokens for line in finished.figures.rounds]


def test_a_finished_run_is_not_done_again(finished, base, monkeypatch):
    monkeypatch.setattr(dagger_run, "run_dagger", None)
    monkeypatch.setattr(dagger_run, "train_sft", None)
    again = train_dagger(recipe_of(base, finished.run_dir), resume=True)
    assert again.figures.rounds == finished.figures.rounds


def test_another_recipe_is_not_resumed(finished, base):
    with pytest.raises(ConfigError, match=r"beta\.first: was 0\.2, is 0\.8"):
        train_dagger(recipe_of(base, finished.run_dir, beta={"first": 0.8}), resume=True)


def test_damaged_figures_are_named(finished, base):
    path = finished.run_dir / "round-2" / "round.json"
    text = path.read_bytes()
    path.write_bytes(b"{")
    try:
        with pytest.raises(IntegrityError, match=r"round-2/round\.json.*delete it and resume"):
            train_dagger(recipe_of(base, finished.run_dir), resume=True)
    finally:
        path.write_bytes(text)


def test_an_adapter_becomes_the_model_of_the_next_round_and_the_base_can_be_trained_anew(base, tmp_path, finished):
    records = finished.run_dir / "round-1" / "records.jsonl"
    changes = {"method": {"type": "lora", "rank": 2}, "retrain": "base"}
    run = train_dagger(recipe_of(base, tmp_path / "run", replay={"records": str(records), "share": 0.3}, **changes))
    second = run.run_dir / "round-2"
    assert (second / "sft" / "model" / "adapter_config.json").is_file()
    assert (second / "model" / "model.safetensors").is_file()
    assert json.loads((second / "sft" / "run.json").read_text())["recipe"]["model"] == str(base)
    assert 0 < run.figures.rounds[2].replayed < run.figures.rounds[2].records


def test_a_round_without_any_label_stops_the_run_with_the_reasons(base, tmp_path):
    with FaultServer(lambda seen, number: Answer({"error": {"message": "overloaded"}}, status=503)) as server:
        teacher = {"type": "openai", "base_url": f"{server.base_url}/v1", "model": "t", "tries": 1}
        recipe = recipe_of(base, tmp_path / "run", teacher=teacher)
        with pytest.raises(RunFailed, match=r"round 1 gave nothing to learn.*'server': \d+"):
            train_dagger(recipe)
    # What was played is there to be looked at, and is played again.
    assert (recipe.out / "round-1" / "rollouts.jsonl").is_file()
    assert not (recipe.out / "round-1" / "taught.json").exists()


class Troubled(DeskEnvironment):
    """The first task is never judged, and the second's first step raises; ``everywhere``, each task's does."""

    everywhere = False

    async def reset(self, task, seed):
        self.number = int(task.task_id.split("-")[2])
        return await super().reset(task, seed)

    async def step(self, action):
        if self.number == 1 or self.everywhere:
            raise OSError("no database")
        return await super().step(action)

    async def verify(self):
        if self.number == 0:
            await asyncio.Event().wait()
        return await super().verify()


def troubled(base, out, monkeypatch):
    """A run whose only round is played in ``Troubled``; the teacher takes every step, so nobody else can be late."""

    def hurried(environment, tasks, learner, teacher, plan, **options):
        return run_dagger(Troubled, tasks, learner, teacher, replace(plan, limits=Limits(stall_s=0.1)), **options)

    monkeypatch.setattr(dagger_run, "run_dagger", hurried)
    return recipe_of(base, out, rounds=1, tasks={"per_round": 3, "seed": 12}, beta={"first": 1.0}, noise=0.0)


def test_episodes_whose_environment_hangs_or_raises_are_counted_and_the_round_learns_from_the_rest(
    base, tmp_path, monkeypatch
):
    run = train_dagger(troubled(base, tmp_path / "run", monkeypatch))
    taught = run.figures.rounds[1].taught
    assert taught.errors == {"environment.verify": 1, "environment.step": 1}
    assert taught.episodes == 3
    sessions = lines_of(run.run_dir / "round-1" / "rollouts.jsonl")
    assert [session["labels"].get("error") for session in sessions] == [
        "environment.verify: no answer within 0.1 s",
        "environment.step: OSError: no database",
        None,
    ]
    assert ["completed" in session["labels"] for session in sessions] == [False, False, True]
    (record,) = read_sft(run.run_dir / "round-1" / "records.jsonl")
    assert record.meta["labels"]["task_id"] == sessions[2]["labels"]["task_id"]


def test_a_round_that_loses_every_episode_to_its_environment_stops_with_the_reason(base, tmp_path, monkeypatch):
    monkeypatch.setattr(Troubled, "everywhere", True)
    recipe = troubled(base, tmp_path / "run", monkeypatch)
    lost = r"lost to errors: {'environment.step': 3} \(the first: environment.step: OSError: no database\)"
    with pytest.raises(RunFailed, match=lost):
        train_dagger(recipe)


@pytest.fixture(scope="module")
def served():
    with running_teacher() as server:
        yield server


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
def test_a_provider_says_what_the_scripted_teacher_says(served, tmp_path, dialect):
    url = served.openai_url if dialect == "openai" else served.base_url
    fields = {"type": dialect, "base_url": url, "model": "desk-teacher", "prices": {"input": 1, "output": 2}}
    spec = recipe_of("m", "o", teacher={**fields, "budget": {"calls": 2, "usd": 5}}).teacher

    async def asked():
        messages = (await DeskEnvironment().reset(make_tasks(1, 3)[0], 0)).messages
        async with open_teacher(spec, cache=tmp_path / "kept.sqlite", spent=Spent(calls=1)) as teacher:
            answers = [await teacher.ask("e", messages[:end], desk_tools()) for end in (2, 2, 1)]
        return messages, answers, teacher

    messages, answers, teacher = asyncio.run(asked())
    right = Teacher().act(messages, desk_tools())
    assert [call.name for call in answers[0].calls] == [call.name for call in right.calls]
    assert [call.parsed() for call in answers[0].calls] == [call.parsed() for call in right.calls]
    assert answers[0].text == right.text
    assert answers[1] == answers[0]
    assert answers[2] is None
    assert (teacher.spent.calls, teacher.spent.cached) == (2, 1)
    assert teacher.spent.usd > 0
    assert teacher.failures == {"budget: calls": 1}


def test_a_key_that_is_not_set_is_told_before_anything_is_played(base, tmp_path):
    teacher = {
        "type": "anthropic",
        "base_url": "http://127.0.0.1:1",
        "model": "t",
        "api_key_env": "NO_SUCH_KEY",
    }
    with pytest.raises(ConfigError, match="NO_SUCH_KEY is not set"):
        train_dagger(recipe_of(base, tmp_path / "run", teacher=teacher))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"replay": {"share": 0.5}}, "replay.share needs replay.records"),
        ({"replay": {"share": 1.0}}, "replay.share"),
        ({"recovery": {"seed": 12}}, "recovery.seed and tasks.seed are both 12"),
        ({"max_tokens": 99999}, "batch.micro_tokens"),
        ({"beta": {"first": 1.5}}, "beta.first"),
        ({"beta": {"first": 0.9}, "noise": 0.2}, "more than all steps together"),
        ({"teacher": {"type": "openai", "base_url": "http://u:p@h/v1", "model": "m"}}, "without user or query"),
        (
            {"teacher": {"type": "openai", "base_url": "http://h/v1", "model": "m", "budget": {"usd": 1}}},
            "budget.usd needs prices",
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(changes, problem):
    with pytest.raises(ConfigError, match=problem):
        recipe_of("m", "o", **changes)


def test_beta_falls_from_round_to_round():
    beta = recipe_of("m", "o", beta={"first": 0.4, "factor": 0.5}).beta
    assert [beta.at(number) for number in (1, 2, 3)] == [0.4, 0.2, 0.1]


def test_the_recipe_in_the_repository_loads():
    recipe = load_recipe(DaggerRecipe, ROOT / "recipes" / "dagger.yaml")
    assert recipe.teacher == ScriptedTeacher()


def test_what_a_round_taught_is_counted_from_its_steps(finished):
    taught = msgspec.json.decode((finished.run_dir / "round-1" / "taught.json").read_bytes(), type=Taught)
    sessions = lines_of(finished.run_dir / "round-1" / "rollouts.jsonl")
    assert taught.steps == sum(message["role"] == "assistant" for s in sessions for message in s["messages"])
    assert 0 < taught.derailed.n == taught.learner_steps <= taught.steps
    assert taught.spent.calls >= taught.steps
