import json
from pathlib import Path

import pytest

from firstchair.evals.completion import Completion
from firstchair.evals.stats import Difference, Rate
from firstchair.rollout.dagger_teacher import Spent
from firstchair.train import dagger_run
from firstchair.train.dagger_figures import DaggerFigures, RoundFigures, Taught
from firstchair.train.dagger_run import DaggerResult

FIELDS = ("model=m", "out=o", "replay.share=0")


def rate(value: float) -> Rate:
    return Rate(value=value, n=40, low=value - 0.1, high=value + 0.1, method="wilson")


def recovery(value: float) -> Completion:
    return Completion(
        completed=rate(value), by_row={}, malformed=rate(0.1), episodes=40, errors={}, ends={}, mean_steps=8.0
    )


TAUGHT = Taught(
    beta=0.2,
    episodes=60,
    errors={},
    steps=700,
    learner_steps=560,
    derailed=rate(0.2),
    unlabelled=3,
    failures={"timeout": 3},
    spent=Spent(calls=900),
    records={"derailed": 50, "recovery": 60, "agreed": 58},
    duplicates=2,
)
FIGURES = DaggerFigures(
    finished_at="2026-01-01T00:00:00Z",
    before=rate(0.5),
    after=rate(0.7),
    difference=Difference(value=0.2, n=40, low=0.1, high=0.3),
    rounds=(
        RoundFigures(round=0, recovery=recovery(0.5), seconds={}),
        RoundFigures(round=1, taught=TAUGHT, replayed=168, steps=84, recovery=recovery(0.7), seconds={}),
    ),
)


def options(*fields: str) -> list[str]:
    return [word for field in fields for word in ("--set", field)]


@pytest.fixture
def trained(monkeypatch):
    """Recipes that a training which takes no time was asked for."""
    asked = []

    def train(recipe, **how):
        asked.append((recipe, how["resume"]))
        return DaggerResult(Path("o"), Path("o/model"), FIGURES, 1.0)

    monkeypatch.setattr(dagger_run, "train_dagger", train)
    return asked


def test_rounds_are_shown_with_their_intervals(run, trained):
    code, out, err = run("train", "dagger", *options(*FIELDS), "--resume")
    assert code == 0, err
    ((recipe, resume),) = trained
    assert (recipe.rounds, resume) == (1, True)
    words = " ".join(out.replace("│", " ").split())
    for part in (
        "derailed steps – 20.0% [10.0, 30.0], n = 40",
        "lessons: agreed – 58",
        "recovery 50.0% [40.0, 60.0], n",
        "recovery +20.0 points [10.0, 30.0], n = 40 on the same cases; the model is o/model",
    ):
        assert part in words


def test_json_holds_every_figure(run, trained):
    code, out, _ = run("train", "dagger", *options(*FIELDS), "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["run"], found["model"]) == ("o", "o/model")
    assert found["difference"]["value"] == 0.2
    assert found["rounds"][1]["taught"]["failures"] == {"timeout": 3}


def test_a_wrong_recipe_is_explained(run):
    code, _, err = run("train", "dagger", *options(*FIELDS, "recovery.seed=2"))
    assert code == 2
    assert "recovery would be measured on tasks that were trained on" in " ".join(err.split())
