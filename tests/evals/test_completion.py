from __future__ import annotations

from typing import Any

from firstchair.evals.completion import completion
from firstchair.rollout.environment import Outcome
from firstchair.rollout.episodes import Episode, EpisodeEnd
from firstchair.traces.session import Session


def episode(task: str, completed: bool | None, *, trial: int = 0, **fields: Any) -> Episode:
    outcome = None if completed is None else Outcome(completed=completed)
    defaults: dict[str, Any] = {"end": EpisodeEnd.DONE, "steps": 4, "malformed": 0, "error": None}
    return Episode(
        number=0,
        task_id=task,
        trial=trial,
        session=Session(session_id=f"{task}{trial}"),
        tools=(),
        outcome=outcome,
        sampled_tokens=0,
        tool_s=0.0,
        wall_s=0.0,
        **{**defaults, **fields},
    )


def lost(task: str, error: str) -> Episode:
    return episode(task, None, end=EpisodeEnd.ERROR, error=error)


def test_the_share_completed_has_an_interval_and_leaves_errors_out_by_reason() -> None:
    found = completion(
        [
            episode("a", True),
            episode("b", False, malformed=1, end=EpisodeEnd.MAX_STEPS),
            lost("c", "connection: refused"),
            lost("d", "connection: reset"),
            lost("e", "environment.step: KeyError: 1"),
        ]
    )
    assert found.completed.value == 0.5
    assert found.completed.n == 2
    assert found.completed.low is not None
    assert 0 < found.completed.low < 0.5
    assert found.episodes == 5
    assert found.errors == {"connection": 2, "environment.step": 1}
    assert found.ends == {"done": 1, "max_steps": 1, "error": 3}
    assert found.malformed.value == 1 / 8
    assert found.mean_steps == 4.0


def test_a_task_counts_in_every_row_that_it_exercises() -> None:
    rows = {"a": ("call", "chat"), "b": ("chat",)}
    found = completion([episode("a", True), episode("b", False)], rows)
    assert {row: (share.value, share.n) for row, share in found.by_row.items()} == {
        "call": (1.0, 1),
        "chat": (0.5, 2),
    }


def test_no_judged_episode_gives_no_rate() -> None:
    found = completion([lost("a", "timeout: slow")])
    assert found.completed.value is None
    assert found.completed.n == 0
    assert found.mean_steps is None


def test_the_order_of_episodes_changes_nothing() -> None:
    episodes = [episode(str(n % 20), n % 3 == 0, trial=n // 20) for n in range(60)]
    assert completion(episodes) == completion(episodes[::-1])
