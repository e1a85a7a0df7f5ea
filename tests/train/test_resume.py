"""A run that is stopped at any moment and resumed writes the metrics of a run that was never stopped."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from firstchair.core.errors import ConfigError, IntegrityError
from firstchair.engines.weights import weights_revision
from firstchair.train.metrics import MetricLog, read_metrics
from firstchair.train.optimizers import Optimizers
from firstchair.train.sft import train_sft

STEPS = 5
FIELDS = {
    "max_steps": STEPS,
    "save": {"every": 2, "keep": 1},
    "eval": {"every": 2},
    # Dropout draws random numbers at every step, so a lost generator state would show.
    "method": {"type": "lora", "rank": 2, "dropout": 0.3},
}


class Killed(BaseException):
    """Stands for the end of the process: nothing after it runs, clean-up least of all."""


class Killer:
    """Ends the run at the n-th moment that touches the disk or the weights."""

    def __init__(self, monkeypatch, at=None):
        self.moments, self.at, self.dead = 0, at, False
        places = [(os, "fsync"), (os, "replace"), (MetricLog, "write"), (Optimizers, "step"), (Path, "rename")]
        for owner, name in places:
            monkeypatch.setattr(owner, name, self.wrap(getattr(owner, name)))
        for owner, name in [(shutil, "rmtree"), (Path, "unlink")]:
            monkeypatch.setattr(owner, name, self.wrap(getattr(owner, name), cleanup=True))

    def wrap(self, call, *, cleanup=False):
        def wrapped(*arguments, **options):
            if self.dead and cleanup:
                return None
            self.moments += 1
            if self.moments == self.at:
                self.dead = True
                raise Killed
            return call(*arguments, **options)

        return wrapped


@pytest.fixture(scope="module")
def reference():
    """Bytes of the metrics and hash of the weights of the undisturbed run; filled by the first test that needs it."""
    return {}


def undisturbed(recipe_of, tmp_path, reference):
    if not reference:
        with pytest.MonkeyPatch.context() as patch:
            counter = Killer(patch)
            result = train_sft(recipe_of(out=tmp_path / "reference", **FIELDS))
        metrics = (result.run_dir / "metrics.jsonl").read_bytes()
        reference.update(metrics=metrics, weights=weights_revision(result.model_dir), moments=counter.moments)
    return reference


def resume_or_start(recipe):
    """What a person does: resume, or start when the run had not even begun."""
    return train_sft(recipe, resume=recipe.out.exists())


@pytest.mark.parametrize("part", range(8))
def test_a_run_killed_at_any_moment_resumes_bit_for_bit(recipe_of, tmp_path, reference, part):
    expected = undisturbed(recipe_of, tmp_path, reference)
    at = 1 + random.Random(part).randrange(expected["moments"] * part // 8, expected["moments"] * (part + 1) // 8)
    recipe = recipe_of(**FIELDS)
    with pytest.MonkeyPatch.context() as patch:
        Killer(patch, at)
        with pytest.raises(Killed):
            train_sft(recipe)
    result = resume_or_start(recipe)
    assert (result.run_dir / "metrics.jsonl").read_bytes() == expected["metrics"], f"killed at moment {at}"
    assert weights_revision(result.model_dir) == expected["weights"]
    assert [path.name for path in (result.run_dir / "checkpoints").iterdir()] == [f"step-{STEPS:08d}"]


def test_a_run_killed_twice_and_again_while_resuming_still_ends_the_same(recipe_of, tmp_path, reference):
    expected = undisturbed(recipe_of, tmp_path, reference)
    recipe = recipe_of(**FIELDS)
    for at, resume in ((expected["moments"] // 2, False), (9, True), (14, True)):
        with pytest.MonkeyPatch.context() as patch:
            Killer(patch, at)
            with pytest.raises(Killed):
                train_sft(recipe, resume=resume)
    result = train_sft(recipe, resume=True)
    assert (result.run_dir / "metrics.jsonl").read_bytes() == expected["metrics"]


def test_resuming_a_finished_run_trains_nothing(recipe_of):
    recipe = recipe_of(max_steps=2)
    first = train_sft(recipe)
    again = train_sft(recipe, resume=True)
    assert again.seconds == 0.0
    assert again.metrics == first.metrics


def test_a_lost_export_is_written_again(recipe_of):
    recipe = recipe_of(max_steps=2)
    weights = weights_revision(train_sft(recipe).model_dir)
    shutil.rmtree(recipe.out / "model")
    assert weights_revision(train_sft(recipe, resume=True).model_dir) == weights


def interrupted(recipe):
    """Stop a run after its second step, as a kill would."""
    with pytest.MonkeyPatch.context() as patch:
        own, calls = Optimizers.step, []

        def step(self, factor):
            calls.append(factor)
            if len(calls) == 3:
                raise Killed
            own(self, factor)

        patch.setattr(Optimizers, "step", step)
        with pytest.raises(Killed):
            train_sft(recipe)


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"optimizer": {"type": "adamw", "lr": 1e-5}}, "optimizer.lr: was 0.003, is 1e-05"),
        ({"max_steps": 9}, "max_steps: was 4, is 9"),
        ({"seed": 3}, "seed: was 0, is 3"),
    ],
)
def test_another_recipe_cannot_resume_the_run(recipe_of, fields, line):
    base = {"max_steps": 4, "save": {"every": 1}}
    interrupted(recipe_of(**base))
    with pytest.raises(ConfigError, match=f"the recipe is not the one that the run began with.*\n  {line}"):
        train_sft(recipe_of(**{**base, **fields}), resume=True)


def test_changed_data_cannot_resume_the_run(recipe_of, corpus, tmp_path):
    path = tmp_path / "train.jsonl"
    path.write_bytes(corpus.read_bytes())
    recipe = recipe_of(max_steps=4, save={"every": 1}, data={"train": path})
    interrupted(recipe)
    path.write_bytes(b"\n".join(corpus.read_bytes().split(b"\n")[1:]))
    with pytest.raises(IntegrityError, match=r"run\.json: train was .* when the run began"):
        train_sft(recipe, resume=True)


def test_resuming_nothing_is_refused(recipe_of):
    with pytest.raises(ConfigError, match=r"no run at .*; check `out`, or start it without --resume"):
        train_sft(recipe_of(), resume=True)


def test_resume_and_force_exclude_each_other(recipe_of):
    with pytest.raises(ConfigError, match="give one of them"):
        train_sft(recipe_of(), resume=True, force=True)


def test_lost_checkpoints_are_not_taken_for_a_run_that_just_began(recipe_of):
    recipe = recipe_of(max_steps=4, save={"every": 1})
    interrupted(recipe)
    shutil.rmtree(recipe.out / "checkpoints")
    with pytest.raises(IntegrityError, match="no checkpoint, though 2 steps were trained and one was due at step 1"):
        train_sft(recipe, resume=True)


def test_a_damaged_checkpoint_is_refused_and_nothing_is_changed(recipe_of):
    recipe = recipe_of(max_steps=4, save={"every": 1})
    interrupted(recipe)
    path = recipe.out / "checkpoints" / "step-00000002" / "weights.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    before = (recipe.out / "metrics.jsonl").read_bytes()
    with pytest.raises(IntegrityError, match=r"weights\.safetensors: bytes differ"):
        train_sft(recipe, resume=True)
    assert (recipe.out / "metrics.jsonl").read_bytes() == before


def test_a_damaged_run_record_is_refused(recipe_of):
    recipe = recipe_of(max_steps=1)
    train_sft(recipe)
    (recipe.out / "run.json").write_text('{"schema": "other"')
    with pytest.raises(IntegrityError, match=r"run\.json: damaged"):
        train_sft(recipe, resume=True)


# With a real process and real signals. Each start imports torch, which takes seconds; nothing shorter is a real kill.

COMMAND = [sys.executable, "-c", "from firstchair.cli.main import main; main()", "train", "sft"]


def arguments(recipe, out):
    pairs = {
        "model": recipe.model,
        "out": out,
        "data.train": recipe.data.train,
        "data.dev": recipe.data.dev,
        "max_steps": 60,
        "batch.sessions": 2,
        "save.every": 3,
        "eval.every": 20,
        "optimizer.lr": "1e-3",
    }
    return [*COMMAND, *(word for name, value in pairs.items() for word in ("--set", f"{name}={value}"))]


def start(command):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def wait_for_step(process, out, step):
    """Until the log shows that step; the process must not have ended before."""
    while True:
        if any(line["event"] == "step" and line["step"] >= step for line in read_metrics(out / "metrics.jsonl")):
            return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.002)


def test_a_killed_process_and_an_interrupted_one_resume_bit_for_bit(recipe_of, tmp_path):
    recipe, draw = recipe_of(), random.Random(1)
    expected, out = tmp_path / "expected", tmp_path / "disturbed"
    reference = start(arguments(recipe, expected))
    reference.communicate()
    assert reference.returncode == 0

    process = start(arguments(recipe, out))
    wait_for_step(process, out, draw.randrange(5, 20))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL

    process = start([*arguments(recipe, out), "--resume"])
    wait_for_step(process, out, draw.randrange(25, 45))
    process.send_signal(signal.SIGINT)
    text = process.communicate()[0]
    assert process.returncode == 1, text
    assert "interrupted" in text
    steps = [line["step"] for line in read_metrics(out / "metrics.jsonl") if line["event"] == "step"]
    newest = max(path.name for path in (out / "checkpoints").iterdir())
    assert newest == f"step-{steps[-1]:08d}"

    process = start([*arguments(recipe, out), "--resume"])
    text = process.communicate()[0]
    assert process.returncode == 0, text
    assert (out / "metrics.jsonl").read_bytes() == (expected / "metrics.jsonl").read_bytes()
    assert weights_revision(out / "model") == weights_revision(expected / "model")
