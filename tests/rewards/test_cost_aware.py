from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from typing import Any

import pytest
from tests.rewards.conftest import sample

from firstchair.core.config import validate
from firstchair.core.errors import ConfigError
from firstchair.rewards.composition import Composition
from firstchair.rewards.cost_aware import cost_aware
from firstchair.rewards.grading import Grader
from firstchair.rewards.samples import GradedSample, NoValue, Sample, count_reasons, task_labels
from firstchair.rollout.environment import Outcome
from firstchair.rollout.episodes import Episode, EpisodeEnd
from firstchair.rollout.orchestration.task import OrchestrationTask
from firstchair.traces.session import Session

COST_AWARE = {"name": "right", "kind": "cost_aware", "lambda_cost": 0.4}
PREFERRED = {"name": "wanted", "kind": "preference"}


def orchestrated(completed: bool | None, labels: Any = None, **measures: float) -> Sample:
    """A sample of an orchestration episode; ``None``: it broke."""
    outcome = None if completed is None else Outcome(completed, measures=measures)
    session = Session(
        session_id="s", source="rollout", created_at="2026-01-01T00:00:00Z", catalog_id="c", messages=()
    )
    episode = Episode(
        0, "t", 0, session, (), outcome, EpisodeEnd.DONE, 1, 0, 9, 0.0, 0.0, None if outcome else "down"
    )
    return sample("42", episode=episode, measures=measures, labels=labels or {})


def grade(samples: list[Sample], *components: dict[str, Any]) -> list[GradedSample]:
    composition = validate(Composition, {"components": list(components)}, source="test")
    return asyncio.run(Grader(composition).grade(samples))


@pytest.mark.parametrize(
    ("right", "cost", "weight", "reward"),
    [
        (True, 0.05, 0.4, 0.8),  # 1 − .4 · .5
        (False, 0.05, 0.4, -1.2),
        (True, 0.10, 0.1, 0.9),
        (True, 0.10, 0.05, 0.95),
        (True, 0.0, 0.4, 1.0),
        (True, 0.02, 0.0, 1.0),
        (True, 0.30, 0.2, 0.4),  # not capped: three times the most
    ],
)
def test_the_reward_is_plus_or_minus_one_less_lambda_times_the_share_of_the_most(right, cost, weight, reward):
    assert cost_aware(right, cost, lambda_cost=weight) == pytest.approx(reward)


def test_a_composition_weighs_outcome_and_cost_and_keeps_the_value_beside_the_reward():
    right, wrong, free = grade(
        [orchestrated(True, cost_usd=0.05), orchestrated(False, cost_usd=0.1), orchestrated(True, cost_usd=0.0)],
        COST_AWARE,
    )
    assert [right.reward, wrong.reward, free.reward] == pytest.approx([0.8, -1.4, 1.0])
    assert right.components == {"right": pytest.approx(0.8)}
    # Below the lower bound of any verifier, and not cut.
    (dear,) = grade([orchestrated(False, cost_usd=5.0)], COST_AWARE)
    assert dear.reward == pytest.approx(-1 - 0.4 * 50)


@pytest.mark.parametrize("measures", [{}, {"latency_s": 1.0}])
def test_an_unknown_cost_leaves_no_reward_but_for_lambda_zero(measures):
    (found,) = grade([orchestrated(True, **measures)], COST_AWARE)
    assert found.reward is None
    assert found.reasons["reward"] == NoValue("not_measured", "right: the sample has no cost")
    # What the policy itself was billed is not the whole when the experts' part is unknown.
    if measures:
        (found,) = grade([replace(orchestrated(True, **measures), cost_usd=0.01)], COST_AWARE)
        assert found.reward is None
    (found,) = grade([orchestrated(True, **measures)], {**COST_AWARE, "lambda_cost": 0.0})
    assert found.reward == 1.0


def test_an_episode_that_broke_has_no_reward_and_moves_no_column():
    samples = [orchestrated(None), orchestrated(True, cost_usd=0.02), orchestrated(True, cost_usd=0.04)]
    for sample_ in samples:
        sample_.labels["preference"] = {"accuracy": 1.0, "cost": 1.0}
    broken, cheap, dear = grade(samples, PREFERRED)
    assert broken.reward is None
    assert broken.reasons["reward"].why == "episode_failed"
    assert (cheap.reward, dear.reward) == (2.0, 1.0)
    assert count_reasons([broken, cheap, dear]) == {"wanted: episode_failed": 1, "reward: episode_failed": 1}


def test_preferences_are_compared_over_the_whole_batch_and_come_with_the_task():
    task = OrchestrationTask(task_id="t", problem="?", preference={"latency": 1.0, "search": 1.0})
    labels = task_labels(task)
    rows = [{"latency_s": 1.0, "calls.search": 0.0}, {"latency_s": 3.0, "calls.search": 2.0}, {"latency_s": 2.0}]
    quick, used, lacks = grade([orchestrated(True, labels, **row) for row in rows], PREFERRED)
    assert (quick.reward, used.reward) == (1.0, 1.0)
    assert lacks.reward is None
    assert lacks.reasons["wanted"].why == "not_offered"


def test_cost_and_latency_components_read_what_the_environment_counted():
    price = {"name": "usd", "kind": "cost", "weight": -1.0, "bounds": [0, 1]}
    wait = {"name": "s", "kind": "latency", "weight": -0.1, "bounds": [0, 100]}
    (found,) = grade([orchestrated(True, cost_usd=0.25, latency_s=5.0)], price, wait)
    assert found.reward == pytest.approx(-0.25 - 0.5)


@pytest.mark.parametrize(
    "field", [{"lambda_cost": -0.1}, {"cost_max_usd": 0.0}, {"lambda_cost": math.inf}, {"check": "x"}]
)
def test_what_no_reward_can_be_made_of_is_refused_by_name(field):
    with pytest.raises(ConfigError, match=next(iter(field))):
        grade([], {**COST_AWARE, **field})
