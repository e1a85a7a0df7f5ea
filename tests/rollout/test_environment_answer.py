"""Whatever an environment gives back ends its own episode at most, by name, and is no score."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from firstchair.chat.messages import text_message
from firstchair.core.errors import RunFailed
from firstchair.rollout.environment import Check, Observation, Outcome, Step
from firstchair.rollout.episodes import Episode, EpisodeEnd, run_episodes
from firstchair.rollout.teacher_policy import TeacherPolicy
from firstchair.testing.environment import WordEnvironment, WordExpert, WordTask

TASKS = [WordTask(task_id=name, words=("fox",)) for name in ("odd", "fine")]
HALF = (text_message("user", "half a pair: \ud800"),)


class Odd(WordEnvironment):
    """Gives or raises ``odd`` in one method, for the task of that name."""

    def __init__(self, method: str, odd: Any):
        super().__init__()
        self._method, self._odd = method, odd

    async def reset(self, task: WordTask, seed: int) -> Any:
        return await self._or_odd("reset", super().reset(task, seed))

    async def step(self, action: Any) -> Any:
        return await self._or_odd("step", super().step(action))

    async def verify(self) -> Any:
        return await self._or_odd("verify", super().verify())

    async def _or_odd(self, method: str, work: Any) -> Any:
        given = await work
        if method != self._method or self._task.task_id != "odd":
            return given
        if self._odd == "cancel":
            asyncio.current_task().cancel()
            await asyncio.sleep(0)
        if isinstance(self._odd, BaseException):
            raise self._odd
        return self._odd


def play(method: str, odd: Any) -> list[Episode]:
    async def run() -> list[Episode]:
        policy = TeacherPolicy(WordExpert())
        found = [one async for one in run_episodes(lambda: Odd(method, odd), TASKS, policy, concurrency=2)]
        assert len(asyncio.all_tasks()) == 1
        return sorted(found, key=lambda one: one.number)

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("method", "odd", "named"),
    [
        ("reset", None, "found None; expected Observation"),
        ("reset", Observation((), ()), "messages: found none"),
        ("reset", Observation(({"role": "user"},), ()), "messages: found {'role': 'user'}; expected Message"),
        ("reset", Observation(HALF, ()), "found what JSON cannot hold"),
        ("step", ((), True), "found ((), True); expected Step"),
        ("step", Step("abc", False), "messages: found 'abc'; expected tuple or list"),
        ("step", Step((), "no"), "done: found 'no'; expected bool"),
        ("verify", True, "found True; expected Outcome"),
        ("verify", Outcome(completed=None), "completed: found None; expected bool"),
        ("verify", Outcome(True, checks=(Check("a", 1),)), "checks.a.ok: found 1; expected bool"),
        ("verify", Outcome(True, score=float("nan")), "score: found nan; expected a finite number"),
        (
            "verify",
            Outcome(True, measures={"cost_usd": None}),
            "measures.cost_usd: found None; expected a finite number",
        ),
        ("verify", SystemExit(3), "SystemExit: 3"),
        # Of a task of its own: taken for somebody's wish to stop, it would take the episode along without a word.
        ("step", asyncio.CancelledError(), "CancelledError: nobody had cancelled it"),
    ],
    ids=str,
)
def test_nonsense_of_an_environment_fails_its_own_episode_by_name(method, odd, named):
    bad, fine = play(method, odd)
    assert fine.completed
    assert (bad.end, bad.outcome) == (EpisodeEnd.ERROR, None)
    assert f"environment.{method}: " in bad.error
    assert named in bad.error


def test_an_episode_that_cancels_the_task_it_runs_in_is_not_lost_without_a_word():
    with pytest.raises(RunFailed, match="cancelled the task that it ran in"):
        play("step", "cancel")
