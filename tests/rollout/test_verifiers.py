"""Tasks of the real ``verifiers`` package, in the environment that ``make verifiers-env`` makes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.services import missing

from firstchair.core.errors import ConfigError, GradingError, RunFailed
from firstchair.rollout.verifiers_environment import outcome_of_trace, verifiers_environment, verifiers_tasks

ROOT = Path(__file__).parents[2]


def reward(score: float, weight: float = 1.0) -> SimpleNamespace:
    return SimpleNamespace(score=score, weight=weight)


def trace(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(
        **{"ok": True, "errors": [], "stop_condition": None, "rewards": {}, "reward": 0.0, **fields}
    )


def test_rewards_become_checks_and_a_score():
    outcome = outcome_of_trace(trace(rewards={"right": reward(1.0), "short": reward(0.5, 0.2)}, reward=1.1), 1.0)
    assert (outcome.completed, outcome.score) == (True, 1.1)
    assert [(check.name, check.ok, check.detail) for check in outcome.checks] == [
        ("right", True, "1 × 1"),
        ("short", False, "0.5 × 0.2"),
    ]
    assert not outcome_of_trace(trace(rewards={"right": reward(0.9)}, reward=0.9), 1.0).completed


def test_a_rollout_that_failed_or_was_not_graded_is_an_error_and_no_score():
    error = SimpleNamespace(type="SandboxError", message="no container")
    with pytest.raises(RunFailed, match="SandboxError: no container"):
        outcome_of_trace(trace(ok=False, errors=[error]), 1.0)
    with pytest.raises(GradingError, match="no value for the reward right"):
        outcome_of_trace(trace(rewards={"right": None}), 1.0)


def test_what_is_missing_is_named():
    with pytest.raises(ConfigError, match=r"pip install 'verifiers>=0\.4'"):
        verifiers_environment(None)

    class Endless(list[Any]):
        INFINITE = True

    with pytest.raises(ConfigError, match="Endless: has no end; pass limit"):
        verifiers_tasks(Endless())
    tasks = verifiers_tasks(Endless([SimpleNamespace(key="a"), SimpleNamespace(key="b")]), limit=1)
    assert [task.task_id for task in tasks] == ["a"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_real_tasks_with_tools_are_played_and_scored_by_their_own_rewards():
    python = ROOT / ".venv-verifiers" / "bin" / "python"
    if not python.exists():
        missing("verifiers", "make verifiers-env")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{Path(__file__).parent}"}
    script = Path(__file__).with_name("verifiers_play.py")
    done = subprocess.run([python, script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    played = {row["task_id"]: row for row in json.loads(done.stdout)}
    used, unused, wrong, broken = (played[f"sum-{number}-3"] for number in range(4))
    assert used["roles"] == ["system", "user", "assistant", "tool", "assistant"]
    assert used["tools"] == ["add"]
    assert (used["completed"], used["score"]) == (True, 1.5)
    assert used["checks"] == {"right": True, "used_tool": True}
    assert (unused["completed"], unused["score"], unused["checks"]["used_tool"]) == (True, 1.0, False)
    assert (wrong["completed"], wrong["score"], wrong["checks"]["right"]) == (False, 0.5, False)
    assert broken["completed"] is None
    assert "the grader is broken" in broken["error"]
